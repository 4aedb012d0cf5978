package scale

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"kube-proxy/internal/pause"
)

// Storm is a failure that makes many nodes turn to the API server at once.
type Storm struct {
	Name string
	// Break causes the failure and returns when the API server can be reached by all again.
	Break func(ctx context.Context, h *Harness, outage time.Duration, all []*Population) error
}

// Storms are all of them.
var Storms = []Storm{
	{"restart", restart}, {"etcd", etcdAway}, {"partition", partition}, {"update", update}, {"boot", boot},
}

// Gust is the activity of one population in a storm.
type Gust struct {
	Population string
	Nodes      int
	// Received are the requests that reached the API server until the end of the window, and Failed
	// those that found no connection; Kinds are of both.
	Received, Failed int
	Kinds            map[string]int
	// Dials are the attempts to connect.
	Dials int64
	// Peak is the largest number of requests that the API server received in a second.
	Peak int
	// Median and Longest are the times from its return until a node had all changes.
	Median, Longest time.Duration
}

// Requests are all of the storm.
func (g Gust) Requests() int { return g.Received + g.Failed }

// Run runs a storm with running populations, which must be in step before, and counts until the
// window after it has passed and all nodes are in step again.
func (h *Harness) Run(ctx context.Context, s Storm, outage, window time.Duration, all []*Population) ([]Gust, error) {
	for _, p := range all {
		if err := h.settle(ctx, p); err != nil {
			return nil, fmt.Errorf("before %s: %w", s.Name, err)
		}
		p.meter.reset()
	}
	if err := s.Break(ctx, h, outage, all); err != nil {
		return nil, fmt.Errorf("storm %s: %w", s.Name, err)
	}
	back := time.Now()
	addr, err := h.Mark(ctx)
	if err != nil {
		return nil, err
	}
	wait, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for _, p := range all {
		if err := p.Await(wait, addr); err != nil {
			return nil, fmt.Errorf("after %s: %w", s.Name, err)
		}
	}
	if err := sleep(ctx, time.Until(back.Add(window))); err != nil {
		return nil, err
	}
	var gusts []Gust
	for _, p := range all {
		g := p.gust(back.Add(window))
		took := p.since(addr, back)
		g.Median, g.Longest = took[len(took)/2], took[len(took)-1]
		h.Logf("%s: %v", s.Name, g)
		gusts = append(gusts, g)
	}
	return gusts, nil
}

// gust counts the requests of a population before the end of a storm.
func (p *Population) gust(end time.Time) Gust {
	m := p.meter
	m.mu.Lock()
	defer m.mu.Unlock()
	g := Gust{Population: p.Name, Nodes: len(p.nodes), Failed: m.failed, Kinds: maps.Clone(m.kinds),
		Dials: m.dials.Load()}
	seconds := map[time.Duration]int{}
	for _, t := range m.requests {
		if t < end.Sub(m.start) {
			g.Received++
			seconds[t/time.Second]++
		}
	}
	for _, n := range seconds {
		g.Peak = max(g.Peak, n)
	}
	return g
}

func (g Gust) String() string {
	var kinds []string
	for _, k := range slices.Sorted(maps.Keys(g.Kinds)) {
		kinds = append(kinds, fmt.Sprintf("%d %s", g.Kinds[k], k))
	}
	return fmt.Sprintf("%s, %d nodes: %d requests received, %d failed (%v), %d dials, peak %d a second, "+
		"in step after %v, the last after %v",
		g.Population, g.Nodes, g.Received, g.Failed, kinds, g.Dials, g.Peak, g.Median.Round(time.Millisecond),
		g.Longest.Round(time.Millisecond))
}

// restart kills the API server and starts it again after the outage. Its new watch cache begins
// later than the nodes' versions, so it answers each watch with 410 Gone.
func restart(ctx context.Context, h *Harness, outage time.Duration, _ []*Population) error {
	if err := h.Bed.API.APIServer().Kill(); err != nil {
		return err
	}
	if err := sleep(ctx, outage); err != nil {
		return err
	}
	return h.Bed.API.StartAPIServer(ctx)
}

// etcdAway kills etcd, and starts it again after the outage.
func etcdAway(ctx context.Context, h *Harness, outage time.Duration, _ []*Population) error {
	if err := h.Bed.API.Etcd().Kill(); err != nil {
		return err
	}
	if err := sleep(ctx, outage); err != nil {
		return err
	}
	return errors.Join(h.Bed.API.StartEtcd(ctx), h.Bed.API.AwaitAPIServer(ctx))
}

// partition drops the packets of each second node.
func partition(ctx context.Context, _ *Harness, outage time.Duration, all []*Population) error {
	each := func(f func(*link)) {
		for _, p := range all {
			for i, n := range p.nodes {
				if i%2 == 0 {
					f(n.link)
				}
			}
		}
	}
	each((*link).sever)
	defer each((*link).heal)
	return sleep(ctx, outage)
}

// update restarts a tenth of the nodes after the other, as a DaemonSet with maxUnavailable 10 %
// does.
func update(ctx context.Context, h *Harness, _ time.Duration, all []*Population) error {
	for _, p := range all {
		for batch := range slices.Chunk(p.nodes, (len(p.nodes)+9)/10) {
			for _, n := range batch {
				if err := n.end(); err != nil {
					return err
				}
				n.start(ctx, h.access)
			}
			if err := h.settle(ctx, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// boot starts all nodes while the API server is down, which starts after the outage.
func boot(ctx context.Context, h *Harness, outage time.Duration, all []*Population) error {
	if err := h.Bed.API.APIServer().Kill(); err != nil {
		return err
	}
	for _, p := range all {
		if err := p.Stop(); err != nil {
			return err
		}
		p.meter.reset()
		p.Start(ctx)
	}
	if err := sleep(ctx, outage); err != nil {
		return err
	}
	return h.Bed.API.StartAPIServer(ctx)
}

func sleep(ctx context.Context, d time.Duration) error {
	pause.For(ctx, d)
	return ctx.Err()
}
