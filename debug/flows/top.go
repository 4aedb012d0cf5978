package flows

import (
	"context"
	"net/netip"
	"time"

	ctwire "kube-proxy/internal/netlink/conntrack"
	"kube-proxy/lb"
)

// Table is a snapshot of the frontends of a family, which must not change.
type Table struct {
	Family lb.Family
	// NodePorts are as in [lb.Node].
	NodePorts []netip.Prefix
	Frontends []*lb.Frontend
}

// Rates are how many connections were opened.
type Rates struct {
	// Since is when the counting began, and At the time of the report; Span is the time since the
	// previous report.
	Since, At time.Time
	Span      time.Duration
	// Frontends are those that had a connection since counting began, the busiest in Span first; at
	// most 1,000.
	Frontends []Rate
	// Others is the number of frontends that are not listed.
	Others int
	// Elsewhere counts connections in Span without a frontend.
	Elsewhere uint64
	// Missed is the number of lost kernel messages in Span, because they were not read in time:
	// each was about a connection, to a frontend or elsewhere. Unless it is 0, all numbers of Span
	// are lower bounds; so are totals if MissedInAll is not 0.
	Missed, MissedInAll uint64
}

// Rate is the rate of a frontend.
type Rate struct {
	Family   lb.Family
	Frontend *lb.Frontend
	// New is how many connections were opened in Span, and PerSecond that by its length.
	New       uint64
	PerSecond float64
	// Total is the number since counting began, or since the frontend was added.
	Total uint64
}

// AtLeast reports whether the numbers of Span are lower bounds.
func (r *Rates) AtLeast() bool { return r.Missed > 0 }

// Top counts new connections to each frontend. Make one with [Listen].
type Top struct {
	tables func() []Table // as in [Listen]
	every  time.Duration  // the period of the reports
	most   int            // the number of listed frontends
	from   feed
}

// feed is the source of new connections.
type feed interface {
	// listen calls f with each until close, and lost when some were lost.
	listen(f func(*ctwire.Entry), lost func())
	// dropped is how many messages were lost since the feed was opened.
	dropped() (uint32, error)
	// locals are the addresses of this machine.
	locals(context.Context) (map[netip.Addr]struct{}, error)
	// close may be called while another goroutine listens.
	close() error
}

// Listen starts to listen, in the network namespace of the calling thread, until [Top.Each] ends.
// tables returns the frontends of each family. It is called at the start and after every report. A
// table with the same slice as before costs nothing. An error gives the reason why there are no
// rates: this system or kernel does not report new connections.
func Listen(tables func() []Table) (*Top, error) {
	from, err := openFeed()
	if err != nil {
		return nil, err
	}
	return &Top{tables: tables, every: time.Second, most: 1000, from: from}, nil
}

// Each calls f with the rates of every second until it returns false or ctx ends. If f takes longer
// than that, the next period is as long. Call it once.
func (t *Top) Each(ctx context.Context, f func(*Rates) bool) {
	defer t.from.close()
	c := newCount(t.most, time.Now())
	t.refresh(ctx, c)
	go t.from.listen(c.add, c.lost)
	every := time.NewTicker(t.every)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
			if !f(c.rates(time.Now(), t.from.dropped)) {
				return
			}
			t.refresh(ctx, c)
		}
	}
}

// localsEvery is how often the addresses of this machine are read, if there are NodePorts.
const localsEvery = 10 * time.Second

// refresh loads the current frontends and addresses.
func (t *Top) refresh(ctx context.Context, c *count) {
	if c.take(t.tables()) && time.Since(c.localsRead) >= localsEvery {
		if local, err := t.from.locals(ctx); err == nil { // else the previous ones are right, or nearly
			c.local(local)
		}
	}
}
