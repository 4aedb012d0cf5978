package engine

import "time"

// Memory of log lines, so that the same line is not logged repeatedly.

// once remembers logged texts. It keeps few: with many different ones it forgets.
type once map[string]struct{}

func (o *once) first(text string) bool {
	if _, said := (*o)[text]; said {
		return false
	}
	if *o == nil || len(*o) >= 1000 {
		*o = once{}
	}
	(*o)[text] = struct{}{}
	return true
}

// trouble is an operation that fails and is retried: the end of its backoff, and the last logged
// error. An error equal to the last is not logged. The zero trouble has no error.
type trouble struct {
	pause
	logged string
}

// news reports whether to log the error.
func (t *trouble) news(err error) bool {
	before := t.logged
	t.logged = err.Error()
	return t.logged != before
}

// remind is the least time between two log lines about other programs: one that undoes our work all
// the time must not fill the log.
const remind = time.Minute

// tally counts events that are reported at intervals.
type tally struct {
	n    int
	next time.Time // the earliest time for another line
}

// add counts n more. It returns the sum since the last line if another line is due, else 0.
func (t *tally) add(n int, now time.Time) (all int) {
	t.n += n
	if n == 0 || now.Before(t.next) {
		return 0
	}
	all, t.n, t.next = t.n, 0, now.Add(remind)
	return all
}
