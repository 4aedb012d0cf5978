// Package traffic sums the counters of the planes by Service, for metrics (docs/adr/0069): a fixed
// number of Services with the most traffic have their own series, and all others share one.
package traffic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"kube-proxy/lb"
	"kube-proxy/mode"
)

// Others represents, as namespace and as name, all Services without their own series. No Service
// can have that name.
const Others = "_others"

// Most is the largest number of Services with their own series.
const Most = 1000

const (
	// maxKept is how many counters are remembered while readings fail; then the next one is a first
	// one.
	maxKept = 1 << 20
	// every is how long a reading is reused: more frequent scrapes cost nothing.
	every = 5 * time.Second
	// patience is how long a reading may take.
	patience = 10 * time.Second
	// atOnce is how many Services are looked up while the engine waits: some hundred microseconds.
	atOnce = 500
)

// Config configures what is counted, and for which Services.
type Config struct {
	// Counter counts.
	Counter mode.TrafficCounter
	// Query calls its argument with the desired table, which it only reads (engine.Engine.Query).
	Query func(func(*lb.Table))
	// Services is the number of Services with their own series, 1 to [Most].
	Services int
	// Now is the clock; nil for the usual one.
	Now func() time.Time
}

// Account adds up the traffic of one IP family since it was made. Its methods may be called from
// any goroutine.
type Account struct {
	cfg Config

	reading sync.Mutex // held by the reader
	round   int        // of readings
	before  map[mode.CounterID]reported
	begun   bool // a first reading, the base of differences, was made
	read    time.Time

	mu     sync.Mutex // of the following fields
	own    map[string]*series
	others mode.Traffic
}

// reported is the last value of a counter, and the number of its reading.
type reported struct {
	mode.Traffic
	round int
}

// series is a Service with its own series.
type series struct {
	mode.Traffic
	rate float64    // connections a second, of late
	now  [2]float64 // connections and bytes a second, between the last two readings
}

// New returns an account without counts.
func New(cfg Config) *Account {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.Services = min(max(cfg.Services, 1), Most)
	return &Account{cfg: cfg, before: map[mode.CounterID]reported{}, own: map[string]*series{}}
}

// Each reads the counters, unless that was just done, and calls f with each Service that has its
// own series, by name, and at last with [Others]. Of simultaneous callers one reads; the others get
// the previous values. With an error it returns the previous values.
func (a *Account) Each(ctx context.Context, f func(namespace, name string, t mode.Traffic)) error {
	err := a.refresh(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(a.own)) {
		ns, n, _ := strings.Cut(name, "/")
		f(strings.ToValidUTF8(ns, "?"), strings.ToValidUTF8(n, "?"), a.own[name].Traffic)
	}
	f(Others, Others, a.others)
	return err
}

// Rates reads the counters as Each does, and calls f with the connections and bytes per second of
// each Service that has a series of its own, as between the last two readings.
func (a *Account) Rates(ctx context.Context, f func(service string, connections, bytes float64)) error {
	err := a.refresh(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, s := range a.own {
		f(name, s.now[0], s.now[1])
	}
	return err
}

// refresh reads the counters, unless that was done just now or is being done.
func (a *Account) refresh(ctx context.Context) error {
	if !a.cfg.Counter.Counts() || !a.reading.TryLock() {
		return nil
	}
	defer a.reading.Unlock()
	if now := a.cfg.Now(); now.Sub(a.read) >= every {
		return a.update(ctx, now)
	}
	return nil
}

// used is a frontend or a service port, with what was counted since the last reading.
type used struct {
	row   lb.Key
	port  string // "" for that of the frontend
	since mode.Traffic
}

// update reads the counters and adds the differences. a.reading is held.
func (a *Account) update(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var news []used
	a.round++
	err := a.cfg.Counter.Traffic(ctx, func(c mode.Count) {
		was := a.before[c.CounterID]
		a.before[c.CounterID] = reported{c.Traffic, a.round}
		if d := since(was.Traffic, c.Traffic); a.begun && d != (mode.Traffic{}) {
			news = append(news, used{c.Frontend, c.ServicePort, d})
		}
	})
	switch {
	case err == nil:
		// A kernel may leave out entries while its state changes: a missing counter may still
		// exist, and must not be counted from 0 again.
		maps.DeleteFunc(a.before, func(_ mode.CounterID, t reported) bool { return t.round < a.round-1 })
	case len(a.before) > maxKept:
		a.before, a.begun = map[mode.CounterID]reported{}, false
		fallthrough
	default:
		a.round-- // counters missing in a failed reading do not age
		err = fmt.Errorf("count connections by Service: %w", err)
	}
	if err != nil && !a.begun {
		return err
	}
	took := now.Sub(a.read).Seconds()
	a.begun, a.read = true, now
	a.add(a.byService(news), took)
	return errors.Join(err, ctx.Err())
}

// since returns the difference to the previous reading. For a counter that restarted it is the
// whole value.
func since(before, t mode.Traffic) mode.Traffic {
	if t.Connections < before.Connections || t.Bytes < before.Bytes {
		return t
	}
	return mode.Traffic{Connections: t.Connections - before.Connections, Bytes: t.Bytes - before.Bytes}
}

// byService adds up the used counters, a piece at a time, so that no change waits long. Counters
// without a Service belong to "".
func (a *Account) byService(all []used) map[string]mode.Traffic {
	sum := map[string]mode.Traffic{}
	for piece := range slices.Chunk(all, atOnce) {
		a.cfg.Query(func(t *lb.Table) {
			for _, u := range piece {
				name := u.service(t)
				s := sum[name]
				s.Connections += u.since.Connections
				s.Bytes += u.since.Bytes
				sum[name] = s
			}
		})
	}
	return sum
}

// service returns the name of the Service, "" if it no longer exists.
func (u *used) service(t *lb.Table) string {
	if u.port == "" {
		if row := t.Get(u.row); row != nil {
			return lb.OwnerOf(row.Service)
		}
	} else if name := lb.OwnerOf(u.port); len(t.Owned(name)) > 0 {
		return name
	}
	return ""
}

// add counts the traffic of Services in the last seconds, and gives series to those with the most.
//
// A Service without a series counts among the others until it gets one, and its earlier traffic
// stays there: so each series only grows, and the sum of all is always right.
func (a *Account) add(sum map[string]mode.Traffic, seconds float64) {
	seconds = max(seconds, 1)
	gone := a.gone()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range gone {
		delete(a.own, name)
	}
	for name, s := range a.own {
		s.rate += (float64(sum[name].Connections)/seconds - s.rate) / 4
	}
	var without []candidate
	for name, t := range sum {
		if a.own[name] == nil && name != "" {
			without = append(without, candidate{name, float64(t.Connections) / seconds})
		}
	}
	a.promote(without)
	for name, s := range a.own {
		t := sum[name]
		s.now = [2]float64{float64(t.Connections) / seconds, float64(t.Bytes) / seconds}
	}
	for name, t := range sum {
		to := &a.others
		if s := a.own[name]; s != nil {
			to = &s.Traffic
		}
		to.Connections += t.Connections
		to.Bytes += t.Bytes
	}
}

// candidate is a Service without its own series, with its connections per second.
type candidate struct {
	name string
	rate float64
}

// promote gives series to Services, those with the most traffic first: free ones, or those of
// Services with less than half as much recent traffic. This half, and a limit of a tenth of the
// series for each time, keep many Services from creating new series all the time. a.mu is held.
func (a *Account) promote(candidates []candidate) {
	slices.SortFunc(candidates, func(x, y candidate) int {
		return cmp.Or(cmp.Compare(y.rate, x.rate), strings.Compare(x.name, y.name))
	})
	least := slices.SortedFunc(maps.Keys(a.own), func(x, y string) int {
		return cmp.Or(cmp.Compare(a.own[x].rate, a.own[y].rate), strings.Compare(x, y))
	})
	least = least[:min(len(least), max(a.cfg.Services/10, 1))]
	for _, c := range candidates {
		if len(a.own) >= a.cfg.Services {
			if len(least) == 0 || c.rate <= 2*a.own[least[0]].rate {
				return
			}
			delete(a.own, least[0])
			least = least[1:]
		}
		a.own[c.name] = &series{rate: c.rate}
	}
}

// gone returns the deleted Services that still have their own series. a.reading is held, so the
// series do not change.
func (a *Account) gone() (names []string) {
	a.mu.Lock()
	all := slices.Collect(maps.Keys(a.own))
	a.mu.Unlock()
	for piece := range slices.Chunk(all, atOnce) {
		a.cfg.Query(func(t *lb.Table) {
			for _, name := range piece {
				if len(t.Owned(name)) == 0 {
					names = append(names, name)
				}
			}
		})
	}
	return names
}
