package engine

import (
	"time"

	"kube-proxy/internal/once"
)

// trouble is an operation that fails and is retried: the end of its backoff, and the last logged
// error. An error equal to the last is not logged. The zero trouble has no error.
type trouble struct {
	pause
	logged once.Error
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
