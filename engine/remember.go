package engine

import "time"

// What is remembered of lines in the log, so that the same thing is not said again and again.

// once remembers what has been said already. It keeps few texts: with many different ones it forgets.
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

// trouble is something that fails and is tried again: until when it waits, and the error that was logged last. An error that
// is as the one before is not logged. The zero trouble is none.
type trouble struct {
	pause
	logged string
}

// news reports whether the error is to be logged.
func (t *trouble) news(err error) bool {
	before := t.logged
	t.logged = err.Error()
	return t.logged != before
}

// remind is the least time from one line about what others do to the next: who undoes our work all the time must not fill
// the log.
const remind = time.Minute

// tally counts what is told once in a while.
type tally struct {
	n    int
	next time.Time // the earliest time for another line
}

// add counts n more, and returns all since the last line if it is time for another one, else 0.
func (t *tally) add(n int, now time.Time) (all int) {
	t.n += n
	if n == 0 || now.Before(t.next) {
		return 0
	}
	all, t.n, t.next = t.n, 0, now.Add(remind)
	return all
}
