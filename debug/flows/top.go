package flows

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	ctwire "kube-proxy/internal/netlink/conntrack"
	"kube-proxy/lb"
)

// ErrCrowd is the error of who asks when too many do.
var ErrCrowd = errors.New("too many ask for the connections a second of Services: close other pages and commands that do")

// maxAskers is how many may ask at a time.
const maxAskers = 4096

// Config says what a [Top] counts.
type Config struct {
	// Tables returns the rows of each family. It is called when the first asks, and then every period while somebody does, never twice at
	// a time. A table with the very slice of rows of the time before costs nothing.
	Tables func() []Table
	// Every is the period in which rates are told; 0 for a second.
	Every time.Duration
	// Most is how many rows are told one by one; 0 for 1,000.
	Most int
}

// Table is a snapshot of the rows of a family, which nobody writes to.
type Table struct {
	Family lb.Family
	// NodePorts are as in [lb.Node].
	NodePorts []netip.Prefix
	Rows      []*lb.Frontend
}

// Rates are how many connections were opened. Many have the same; it is for reading alone.
type Rates struct {
	// Since is when the counting began, and At when it was told; Span is the time since it was told before.
	Since, At time.Time
	Span      time.Duration
	// Rows are those that had a connection since the counting began, the busiest in Span first.
	Rows []Rate
	// Others are such rows that are too many to be told one by one.
	Others Sum
	// Elsewhere are connections in Span to what is no row.
	Elsewhere uint64
	// Missed is how many messages of the kernel were lost in Span, because more came than were read in time: each was of a connection, to a row or
	// elsewhere. Unless it is 0, all numbers of Span are to be told with "at least"; so are totals where MissedInAll is not 0.
	Missed, MissedInAll uint64
}

// Rate is that of a row.
type Rate struct {
	Family lb.Family
	Row    *lb.Frontend
	// New is how many connections were opened in Span, and PerSecond that by its length.
	New       uint64
	PerSecond float64
	// Total is how many since the counting began, or the row came.
	Total uint64
}

// Sum is of many rows.
type Sum struct {
	Rows       int
	New, Total uint64
}

// AtLeast reports whether the numbers of Span are lower bounds.
func (r *Rates) AtLeast() bool { return r.Missed > 0 }

// Top counts the connections that are opened to each row, while somebody asks. It is safe for concurrent use.
type Top struct {
	cfg  Config
	open func() (feed, error)

	mu     sync.Mutex
	askers map[chan *Rates]struct{}
	stop   func() // nil while nobody asks
}

// feed is where new connections are heard of.
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

// NewTop makes a Top. It calls nothing.
func NewTop(cfg Config) *Top {
	if cfg.Every <= 0 {
		cfg.Every = time.Second
	}
	if cfg.Most <= 0 {
		cfg.Most = 1000
	}
	return &Top{cfg: cfg, open: openFeed, askers: map[chan *Rates]struct{}{}}
}

// Subscribe returns the rates, every period, until ctx ends; then the channel is closed. Who does not read in time misses some, and gets the
// newest. The first who asks has the listening begin, in the network namespace of the thread that he calls from; with the last it ends. An error
// says why there are no rates: this system or kernel cannot tell of new connections, or too many ask.
func (t *Top) Subscribe(ctx context.Context) (<-chan *Rates, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.askers) >= maxAskers {
		return nil, ErrCrowd
	}
	if t.stop == nil {
		if err := t.start(); err != nil {
			return nil, err
		}
	}
	ch := make(chan *Rates, 1)
	t.askers[ch] = struct{}{}
	context.AfterFunc(ctx, func() { t.leave(ch) })
	return ch, nil
}

// leave ends what Subscribe began.
func (t *Top) leave(ch chan *Rates) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, here := t.askers[ch]; !here {
		return
	}
	delete(t.askers, ch)
	close(ch)
	if len(t.askers) == 0 {
		t.stop()
		t.stop = nil
	}
}

// Asked is how many ask now.
func (t *Top) Asked() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.askers)
}

// tell gives rates to all who ask, unless ctx has ended: then others may ask.
func (t *Top) tell(ctx context.Context, r *Rates) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	for ch := range t.askers {
		select {
		case <-ch: // nobody has read it
		default:
		}
		ch <- r
	}
}

// start begins to listen. The caller holds t.mu, under which what it returns is called too.
func (t *Top) start() error {
	from, err := t.open()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := newCount(t.cfg.Most, time.Now())
	t.refresh(ctx, from, c)
	go from.listen(c.add, c.lost)
	go t.run(ctx, from, c)
	t.stop = cancel
	return nil
}

// run tells rates until ctx ends. It alone asks the feed then.
func (t *Top) run(ctx context.Context, from feed, c *count) {
	defer from.close()
	every := time.NewTicker(t.cfg.Every)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-every.C:
			t.tell(ctx, c.rates(now, from.dropped))
			t.refresh(ctx, from, c)
		}
	}
}

// localsEvery is how often the addresses of this machine are read, if there are NodePorts.
const localsEvery = 10 * time.Second

// refresh takes in what rows and addresses there are.
func (t *Top) refresh(ctx context.Context, from feed, c *count) {
	if c.take(t.cfg.Tables()) && time.Since(c.localsRead) >= localsEvery {
		if local, err := from.locals(ctx); err == nil { // else those of before are right, or nearly
			c.local(local)
		}
	}
}
