package planetest

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/scenario"
	"kube-proxy/trace"
)

// visitor is a client of a service port.
type visitor struct {
	service string
	proto   lb.Proto
	from    caller
	key     lb.Key // where affinity is an address's (Config.AffinityByAddress)
}

// meeting is the last backend of a client with an affinity, and its set.
type meeting struct {
	set     lb.SetID
	backend netip.AddrPort
	key     lb.Key
}

// forgetAll clears the expected affinities: the kernel has lost them.
func (h *history) forgetAll() { clear(h.met) }

// forgetGone removes ended affinities: the backend, the affinity or the frontend no longer exists.
func (h *history) forgetGone() {
	for v, m := range h.met {
		row := h.table.Get(m.key)
		route := routeOf(row, v.from.class)
		if row == nil || row.Affinity == 0 || row.Service != v.service || route == nil || route.To == nil ||
			route.To.ID != m.set || !route.To.Backends.Has(m.backend) {
			delete(h.met, v)
		}
	}
}

// forgetEndpoints forgets the clients of endpoints that no set with affinity of the service port
// has. The kernel's rules are current when it runs. An endpoint that left and returned between two
// rounds may never have left the kernel.
func (h *history) forgetEndpoints() {
	for v, known := range h.known {
		h.known[v] = slices.DeleteFunc(known, func(a netip.AddrPort) bool {
			for _, row := range h.table.Sorted() {
				if row.Service == v.service && row.Key.Proto == v.proto && row.Affinity > 0 &&
					slices.ContainsFunc(row.Routes, func(r lb.Route) bool {
						return r.To != nil && r.To.Backends.Has(a)
					}) {
					return false
				}
			}
			return true
		})
	}
}

func routeOf(row *lb.Frontend, from lb.From) *lb.Route {
	if row == nil {
		return nil
	}
	for i, r := range row.Routes {
		if r.From == from || r.From == lb.Anywhere {
			return &row.Routes[i]
		}
	}
	return nil
}

// call is one packet, or one connection, to a frontend or between strangers.
type call struct {
	from caller
	shot scenario.Shot
	row  *lb.Frontend // nil: no Service
	// timeout is the time limit for an answer.
	timeout time.Duration
	// met is the answer, if err is nil.
	met netlab.Reply
	err error
}

// calls returns those of each caller to each frontend.
func (h *history) calls(callers []caller, timeout time.Duration) (all []*call) {
	for _, row := range h.table.Sorted() {
		if row.Kind == lb.HealthCheck {
			continue
		}
		to := netip.AddrPortFrom(row.Key.Addr, row.Key.Port)
		if row.Key.IsNodePort() {
			to = netip.AddrPortFrom(netlab.Addr(netlab.Node1, h.six()), row.Key.Port)
		}
		for _, from := range callers {
			shot := scenario.Shot{Local: from.addr(h.six()), To: to, Proto: row.Key.Proto, Key: row.Key}
			all = append(all, &call{from: from, shot: shot, row: row, timeout: timeout})
		}
	}
	return all
}

func (c caller) addr(six bool) netip.Addr {
	if c.local.IsValid() {
		return c.local
	}
	return netlab.Addr(c.host, six)
}

// strangers returns packets for no Service: between pods, from the node to itself, from others to
// both.
func (h *history) strangers() (all []*call) {
	for i, way := range [][2]string{{"pod1", "pod2"}, {"pod1", "pod4"}, {"pod3", netlab.Node1},
		{netlab.Node1, netlab.Node1},
		{netlab.Node1, "pod1"}, {netlab.Node1, "pod5"}, {netlab.Client, "pod3"}, {netlab.Client, netlab.Node1},
		{netlab.Node2, "pod1"}} {
		n := (i + h.rnd.IntN(townServices)) % townServices
		to := netip.AddrPortFrom(netlab.Addr(way[1], h.six()), uint16(townPort+n))
		shot := scenario.Shot{Local: netlab.Addr(way[0], h.six()), To: to, Proto: lb.Proto(protoOf(n))}
		all = append(all, &call{from: caller{host: way[0]}, shot: shot, timeout: h.timeout})
	}
	return all
}

// round sends to all frontends, from each caller with a probability of one half, and between
// strangers. A caller has one connection to a service port at a time, because each determines the
// next. One round of three also sends packets that must be dropped, which takes time.
func (h *history) round() error {
	h.forgetEndpoints()
	waves := [][]*call{h.strangers()}
	next := map[visitor]int{}
	listen := h.rnd.IntN(3) == 0
	r := h.asks()
	for _, c := range h.calls(h.callers(), h.timeout) {
		if h.rnd.IntN(2) == 0 {
			continue
		}
		if trace.Ask(&h.table, r.how(), r.way(c.from.host, c.shot, netip.Addr{})).Verdict == trace.Drop {
			c.timeout = h.lab.silence
			if listen {
				waves[0] = append(waves[0], c)
			}
			continue
		}
		v := c.visitor()
		i := next[v]
		next[v]++
		if i == len(waves) {
			waves = append(waves, nil)
		}
		waves[i] = append(waves[i], c)
	}
	for _, w := range waves {
		if err := h.send(w); err != nil {
			return err
		}
	}
	return nil
}

func (c *call) visitor() visitor {
	return visitor{service: c.row.Service, proto: c.row.Key.Proto, from: c.from}
}

// asks returns an empty inquiry for the table.
func (h *history) asks() *run {
	return &run{s: &suite{Config: h.cfg, timeout: h.timeout}, sc: &scenario.Scenario{}, lab: h.lab, family: h.family,
		table: &h.table, ports: townPorts()}
}

// shoot makes all calls at the same time. It returns their outcomes with the answers of trace.
func (h *history) shoot(calls []*call) *run {
	r := h.asks()
	var sending sync.WaitGroup
	for _, c := range calls {
		sending.Go(func() {
			v := &volley{r: r, p: scenario.Packet{From: c.from.host}}
			conn, err := v.shoot(c.shot, c.timeout)
			c.err = err
			if err == nil {
				c.met, c.err = conn.First(), conn.Close()
			}
		})
	}
	sending.Wait()
	for packet, f := range r.inquiry.met {
		f.answer = trace.Ask(r.table, r.how(), packet)
	}
	h.probes += len(calls)
	return r
}

// send makes all calls of a wave, and checks their outcomes.
func (h *history) send(wave []*call) error {
	r := h.shoot(wave)
	for _, packet := range r.inquiry.order {
		if other := r.otherFate(packet, r.inquiry.met[packet]); other != "" {
			return errors.New(other)
		}
	}
	for _, c := range wave {
		err := c.err
		switch {
		case err == nil && c.row != nil:
			err = h.checkSame(c)
		case errors.Is(err, netlab.ErrRefused), errors.Is(err, netlab.ErrTimeout), errors.Is(err, netlab.ErrReset):
			err = nil // otherFate has judged it
		}
		if err != nil {
			return fmt.Errorf("%s %s → %s/%s: %w", c.from.host, c.shot.Local, c.shot.To, c.shot.Proto, err)
		}
	}
	return nil
}

// checkSame checks the affinity, and remembers it.
func (h *history) checkSame(c *call) error {
	if c.row.Affinity == 0 {
		return nil
	}
	v, route := c.visitor(), routeOf(c.row, c.from.class)
	if h.cfg.AffinityByAddress {
		if last := c.row.Routes[len(c.row.Routes)-1]; last.To != route.To {
			return nil
		}
		v.key = c.row.Key
	}
	last, again := h.met[v]
	h.met[v] = meeting{route.To.ID, c.met.At, c.row.Key}
	if again && last.set == route.To.ID {
		if last.backend != c.met.At && !slices.Contains(h.known[v], c.met.At) {
			return fmt.Errorf("%s met %s before, which is still there, and now %s", c.row.Service, last.backend,
				c.met.At)
		}
		h.kept++
	}
	h.learn(v, c)
	return nil
}

// learn records an endpoint that may remember the client.
func (h *history) learn(v visitor, c *call) {
	if h.cfg.AffinityByEndpoint && !slices.Contains(h.known[v], c.met.At) {
		h.known[v] = append(h.known[v], c.met.At)
	}
}
