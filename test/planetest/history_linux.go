package planetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/seedtest"
)

// historySteps is how many steps History takes in each family.
const historySteps = 36

// History walks at random through the life of a node. After every step it sends packets to all
// Services, not only to those that the step changed. In a step, one to three of these happen: a
// Service is changed, added or deleted; a new plane replaces the plane; the plane is Reset; another
// program damages its rules ([Config.Drift]); another proxy takes its place and is replaced
// ([Config.TakeOver]).
//
// Every packet must have the outcome that trace reads from the table: a pod of its Service answers,
// which the port of the answer identifies. A client with a live affinity must reach the same
// backend as long as that exists, except after damage. A packet for no Service must reach its
// destination unchanged.
//
// A round is one batch of sockets. Each client connects to each Service in half of the rounds:
// affinities that rest while backends come and go are the most fragile ones.
//
// With [Config.Break] History also breaks single rules or elements. Trace and Differences must then
// report each packet with another outcome.
func History(t *testing.T, cfg Config) {
	needRoot(t)
	for _, f := range families {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			h := newHistory(cfg, f, seedtest.Of(t))
			if testing.Short() {
				h.steps /= 3
			}
			begin := time.Now()
			err := h.run()
			t.Logf("%s in %v", h.reported(), time.Since(begin).Round(time.Millisecond))
			switch {
			case err != nil:
				t.Error(err)
			case cfg.Break != nil && (h.repaired == 0 || h.found == 0):
				t.Error("nothing was broken that could be noticed")
			}
		})
	}
}

// history is one walk of one plane.
type history struct {
	town
	cfg   Config
	steps int
	// timeout is how long an answer may take that is expected.
	timeout time.Duration

	lab    *field
	plane  Plane
	table  lb.Table
	met    map[visitor]meeting
	known  map[visitor][]netip.AddrPort // for [Config.AffinityByEndpoint]
	recent []string                     // the last events, for a failure

	restarts, resets, drifts, takeovers, changes, probes, kept int
	// Counters of sabotage: things broken and repaired, packets that met something else, packets
	// that trace named, differences.
	broken, repaired, felt, named, found int
}

func newHistory(cfg Config, f lb.Family, seed uint64) *history {
	rnd := rand.New(rand.NewPCG(seed, uint64(f)))
	return &history{town: town{family: f, rnd: rnd}, cfg: cfg, steps: historySteps, timeout: timeout,
		met: map[visitor]meeting{}, known: map[visitor][]netip.AddrPort{}}
}

func (h *history) reported() string {
	return fmt.Sprintf("%d steps: %d changes of Services, %d restarts, %d resets, %d drifts, %d take-overs; %d "+
		"packets, %d affinities kept; "+
		"%d things broken, %d repaired, %d packets met something else, %d were named, %d differences",
		h.steps, h.changes, h.restarts, h.resets, h.drifts, h.takeovers, h.probes, h.kept, h.broken, h.repaired, h.felt,
		h.named, h.found)
}

// run runs the history in its own lab.
func (h *history) run() error {
	lab, err := newField(netlab.Options{})
	if err != nil {
		return err
	}
	h.lab = lab
	return errors.Join(h.walk(), lab.lab.Close())
}

func (h *history) walk() (err error) {
	if err := h.settle(h.lab); err != nil {
		return err
	}
	h.table.Node = h.node()
	for i := range townServices {
		h.change(i)
	}
	defer func() { err = errors.Join(err, shut(h.plane)) }()
	if err := h.onNode(h.restart); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	for step := range h.steps {
		h.recent = append(h.recent, fmt.Sprintf("step %d:", step))
		if err := h.step(step); err != nil {
			return h.failed(err)
		}
	}
	// Some damage has no effect, such as that of an unused chain.
	for i := 0; h.cfg.Break != nil && (h.repaired == 0 || h.found == 0) && i < moreSabotage; i++ {
		if err := errors.Join(h.sabotage(1), h.round()); err != nil {
			return h.failed(err)
		}
	}
	return nil
}

func (h *history) step(n int) error {
	for range 1 + h.rnd.IntN(3) {
		if err := h.onNode(h.act); err != nil {
			return err
		}
	}
	if h.cfg.Break != nil && n%sabotageEvery == 0 {
		if err := h.sabotage(n / sabotageEvery); err != nil {
			return err
		}
	}
	return h.round()
}

func (h *history) failed(err error) error {
	text := ""
	if e := h.onNode(func() error { var e error; text, e = Dump(h.plane); return e }); e != nil {
		text = e.Error()
	}
	return fmt.Errorf("%w\nwhat happened: %s\ntable:\n%s\nplane:\n%s", err, strings.Join(h.recent, " "),
		h.table.String(), text)
}

func (h *history) onNode(f func() error) error { return h.lab.lab.Do(netlab.Node1, f) }

func (h *history) note(format string, args ...any) {
	h.recent = append(h.recent, fmt.Sprintf(format, args...))
	h.recent = h.recent[max(0, len(h.recent)-60):]
}

// act does one thing, in the node's namespace.
func (h *history) act() error {
	switch n := h.rnd.IntN(20); {
	case n < 3:
		h.note("restart")
		h.restarts++
		h.changeSome()
		return h.restart()
	case n < 5:
		h.note("reset")
		h.resets++
		h.changeSome()
		return h.reset()
	case n == 5 && h.cfg.Drift != nil:
		h.note("drift")
		h.drifts++
		return h.drift()
	case n == 6 && h.cfg.TakeOver != nil:
		h.note("take-over")
		h.takeovers++
		h.forgetAll()
		if err := h.stop(); err != nil {
			return err
		}
		if err := h.cfg.TakeOver(h.family); err != nil {
			return fmt.Errorf("another proxy takes over: %w", err)
		}
		return h.restart()
	}
	changes := h.change(h.rnd.IntN(townServices))
	if _, err := h.plane.Apply(context.Background(), changes); err != nil {
		return fmt.Errorf("apply %d changes: %w", len(changes), err)
	}
	return nil
}

// changeSome changes Services between two planes, as they change while a proxy restarts.
func (h *history) changeSome() {
	for range h.rnd.IntN(3) {
		h.change(h.rnd.IntN(townServices))
	}
}

// change gives a Service a new form, and returns the changes.
func (h *history) change(i int) []lb.Change {
	h.changes++
	owner, fronts := h.reform(i)
	h.note("%s", outline(owner, fronts))
	changes, _ := h.table.Replace(owner, fronts)
	h.forgetGone()
	return changes
}

// outline describes a Service, as in "town/s1@1000+affine→pod1,pod4".
func outline(o lb.Owner, fronts []*lb.Frontend) string {
	if len(fronts) == 0 {
		return o.Name + " gone"
	}
	text := fmt.Sprintf("%s@%d", o.Name, o.Created)
	if slices.ContainsFunc(fronts, func(f *lb.Frontend) bool { return f.Affinity > 0 }) {
		text += "+affine"
	}
	for _, f := range fronts {
		for i, r := range f.Routes {
			if r.To == nil || i > 0 || f.Kind != lb.ClusterIP {
				continue
			}
			var hosts []string
			for b := range r.To.Backends.All() {
				hosts = append(hosts, netlab.Owner(b.Addr.Addr()))
			}
			text += "→" + strings.Join(hosts, ",")
		}
	}
	return text
}

func (h *history) stop() error {
	err := shut(h.plane)
	h.plane = nil
	if err != nil {
		return fmt.Errorf("close the plane: %w", err)
	}
	return nil
}

func (h *history) restart() error {
	if h.plane != nil {
		if err := h.stop(); err != nil {
			return err
		}
	}
	p, err := h.cfg.New(h.family)
	if err != nil { // p may be a nil pointer of the plane's own type
		return fmt.Errorf("new plane: %w", err)
	}
	h.plane = p
	if h.cfg.Proxied {
		h.forgetAll()
	}
	return h.reset()
}

func (h *history) reset() error {
	if _, err := ResetAll(context.Background(), h.plane, &h.table); err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	return nil
}

// drift damages the plane's state and lets an audit repair it, or a Reset if the audit requests
// one.
func (h *history) drift() error {
	h.forgetAll()
	if err := h.cfg.Drift(h.family, h.rnd); err != nil {
		return fmt.Errorf("drift: %w", err)
	}
	for range 20 {
		repaired, err := h.plane.Audit(context.Background(), true)
		switch {
		case err != nil:
			return h.reset()
		case repaired == 0:
			return nil
		}
	}
	return errors.New("an audit never ends repairing")
}
