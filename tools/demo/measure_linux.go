package main

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/scenario"
)

// Number of connections of a row.
const (
	// many is for the first table: shares are within 8 % of their limit.
	many = 300
	// full shows the answering backends after a change; to miss one of four random backends in that
	// many has a probability of 10⁻⁷.
	full = 60
	// few is enough to see that a row has not changed; changed ones are measured again in full.
	few = 20
	// forSticky connections meet one of three pods each time by chance once in 59,049 times.
	forSticky = 11
	// scouts go first, at the same time; if none gets an answer, no more are sent.
	scouts = 3
)

// slowAnswer is how long a connection may take to be answered or refused: a lost SYN is repeated
// after a second.
const slowAnswer = 2500 * time.Millisecond

// workers is the number of rows measured at the same time.
const workers = 8

// effort is the thoroughness of a measurement.
type effort struct {
	connections int
	// quick accepts silence even if an answer is expected, as after a change: then any result is
	// possible.
	quick bool
}

// measure sends each row's connections. It returns early when ctx ends.
func (f *field) measure(ctx context.Context, rows []row, e effort) []tally {
	tallies := make([]tally, len(rows))
	next := make(chan int)
	var running sync.WaitGroup
	for range min(workers, len(rows)) {
		running.Go(func() {
			for i := range next {
				tallies[i] = f.measureRow(ctx, rows[i], e)
			}
		})
	}
	for i := range rows {
		next <- i
	}
	close(next)
	running.Wait()
	return tallies
}

func (f *field) measureRow(ctx context.Context, r row, e effort) tally {
	timeout := slowAnswer
	if e.quick || r.want.Verdict == scenario.Dropped {
		timeout = f.silence
	}
	n, first := e.connections, scouts
	if r.want.Sticky {
		// Simultaneous clients may be sent to different pods.
		n, first = forSticky, 1
	}
	var t tally
	f.volley(r, timeout, first, &t)
	// If the row answers, a late answer counts.
	timeout = slowAnswer
	for t.answered() > 0 && t.sent() < n && t.silent < scouts && ctx.Err() == nil {
		f.volley(r, timeout, 1, &t)
	}
	return t
}

// volley makes n connections at the same time.
func (f *field) volley(r row, timeout time.Duration, n int, t *tally) {
	type end struct {
		a   answer
		err error
	}
	ends := make(chan end, n)
	for range n {
		shoot := func() {
			a, err := f.connect(r, timeout)
			ends <- end{a, err}
		}
		if n == 1 {
			shoot()
		} else {
			go shoot()
		}
	}
	for range n {
		x := <-ends
		t.add(x.a, x.err)
	}
}

func (f *field) connect(r row, timeout time.Duration) (answer, error) {
	port := uint16(33000 + f.port.Add(1)%32000) // not used lately, so that no flow is taken for an older one
	c, err := f.lab.Open(r.from, netlab.Proto(r.shot.Proto.String()), r.shot.To, netlab.DialOptions{
		Timeout: timeout, Local: netip.AddrPortFrom(r.shot.Local, port),
	})
	if err != nil {
		return answer{}, err
	}
	reply := c.First()
	a := answer{server: reply.Server, port: reply.At.Port(), seen: reply.Seen.Addr().Unmap(),
		local: c.Local().Addr().Unmap()}
	return a, c.Close()
}
