package planetest

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
)

// visitor is a client of a service port.
type visitor struct {
	service string
	proto   lb.Proto
	from    caller
	key     lb.Key // where affinity is an address's (Config.AffinityByAddress)
}

// meeting is the backend that a client with an affinity met last, in which set.
type meeting struct {
	set     lb.SetID
	backend netip.AddrPort
	key     lb.Key
}

// forgetAll forgets whom clients must meet again: what the kernel knew of it is gone.
func (h *history) forgetAll() { clear(h.met) }

// forgetGone forgets affinities that are over: the backend, the affinity or the row is gone.
func (h *history) forgetGone() {
	for v, m := range h.met {
		row := h.table.Get(m.key)
		route := routeOf(row, v.from.class)
		if row == nil || row.Affinity == 0 || row.Service != v.service || route == nil || route.To == nil || route.To.ID != m.set ||
			!hasBackend(route.To, m.backend) {
			delete(h.met, v)
		}
	}
}

// forgetEndpoints forgets who met endpoints that no set with affinity of the service port has. What packets meet is in the kernel by
// then; an endpoint that left and returned between two rounds may never have been missed there.
func (h *history) forgetEndpoints() {
	for v, known := range h.known {
		h.known[v] = slices.DeleteFunc(known, func(a netip.AddrPort) bool {
			for _, row := range h.table.Sorted() {
				if row.Service == v.service && row.Key.Proto == v.proto && row.Affinity > 0 &&
					slices.ContainsFunc(row.Routes, func(r lb.Route) bool { return r.To != nil && hasBackend(r.To, a) }) {
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

func hasBackend(s *lb.BackendSet, a netip.AddrPort) bool {
	return s.Backends.Has(a)
}

// call is one packet, or one connection, that is to be sent in a round.
type call struct {
	from  caller
	to    netip.AddrPort
	proto lb.Proto
	row   *lb.Frontend // nil: no Service has to do with it
	must  netip.AddrPort
}

// round sends to all rows, from each caller with a chance of one half, and to those that no Service stands for.
// Of one service port a caller asks once at a time: what it meets decides about the next. In one round of three it also
// listens to silence, which takes time.
func (h *history) round() error {
	h.forgetEndpoints()
	waves := [][]call{h.strangers()}
	next := map[visitor]int{}
	listen := h.rnd.IntN(3) == 0
	for _, row := range h.table.Sorted() {
		if row.Kind == lb.HealthCheck {
			continue
		}
		to := netip.AddrPortFrom(row.Key.Addr, row.Key.Port)
		if row.Key.IsNodePort() {
			n1, _ := netlab.HostByName(netlab.Node1)
			to = netip.AddrPortFrom(n1.Addr(h.six()), row.Key.Port)
		}
		for _, from := range h.callers() {
			c := call{from: from, to: to, proto: row.Key.Proto, row: row}
			if h.rnd.IntN(2) == 0 {
				continue
			}
			if h.silent(c) {
				if listen {
					waves[0] = append(waves[0], c)
				}
				continue
			}
			v := visitor{service: row.Service, proto: row.Key.Proto, from: from}
			i := next[v]
			next[v]++
			if i == len(waves) {
				waves = append(waves, nil)
			}
			waves[i] = append(waves[i], c)
		}
	}
	for _, w := range waves {
		if err := h.send(w); err != nil {
			return err
		}
	}
	return nil
}

// silent reports whether nobody may answer.
func (h *history) silent(c call) bool {
	return h.refuses(c) || routeOf(c.row, c.from.class).Do == lb.Drop
}

// refuses reports whether the row's source ranges leave the caller out.
func (h *history) refuses(c call) bool {
	a := c.from.addr(h.six())
	return len(c.row.Sources) > 0 && !slices.ContainsFunc(c.row.Sources, func(p netip.Prefix) bool { return p.Contains(a) })
}

func (c caller) addr(six bool) netip.Addr {
	if c.local.IsValid() {
		return c.local
	}
	return hostAddr(c.host, six)
}

// strangers are packets that are for no Service: of pods to pods, of the node to itself, of others to both.
func (h *history) strangers() []call {
	var out []call
	for i, way := range [][2]string{{"pod1", "pod2"}, {"pod1", "pod4"}, {"pod3", netlab.Node1}, {netlab.Node1, netlab.Node1},
		{netlab.Node1, "pod1"}, {netlab.Node1, "pod5"}, {netlab.Client, "pod3"}, {netlab.Client, netlab.Node1}, {netlab.Node2, "pod1"}} {
		n := (i + h.rnd.IntN(townServices)) % townServices
		proto := lb.Proto(protoOf(n))
		to := netip.AddrPortFrom(hostAddr(way[1], h.six()), uint16(townPort+n))
		out = append(out, call{from: caller{host: way[0], local: hostAddr(way[0], h.six())}, to: to, proto: proto, must: to})
	}
	return out
}

// send makes all calls of a wave at once and checks what came of them.
func (h *history) send(wave []call) error {
	var all sync.WaitGroup
	replies := make([]netlab.Reply, len(wave))
	local := make([]netip.Addr, len(wave))
	errs := make([]error, len(wave))
	for i, c := range wave {
		all.Go(func() {
			timeout := h.patience
			if c.row != nil && h.silent(c) {
				timeout = h.lab.silence
			}
			from := netip.AddrPortFrom(c.from.local, h.lab.nextPort())
			conn, err := h.lab.lab.Open(c.from.host, protos[c.proto], c.to, netlab.DialOptions{Timeout: timeout, Local: from})
			if err != nil {
				errs[i] = err
				return
			}
			replies[i], local[i] = conn.First(), conn.Local().Addr()
			errs[i] = conn.Close()
		})
	}
	all.Wait()
	for i, c := range wave {
		h.probes++
		if err := h.check(c, replies[i], local[i], errs[i]); err != nil {
			return fmt.Errorf("%s %s → %s/%s: %w", c.from.host, c.from.addr(h.six()), c.to, c.proto, err)
		}
	}
	return nil
}

// check compares what came of a call with what the table says.
func (h *history) check(c call, a netlab.Reply, local netip.Addr, err error) error {
	if c.row == nil {
		switch {
		case err != nil:
			return fmt.Errorf("is for no Service, and failed: %w", err)
		case a.At != c.must:
			return fmt.Errorf("is for no Service, and %s answered at %s", a.Server, a.At)
		case a.Seen.Addr() != local:
			return fmt.Errorf("is for no Service, and %s saw the source %s", a.Server, a.Seen)
		}
		return nil
	}
	route := routeOf(c.row, c.from.class)
	switch {
	case h.silent(c):
		return wanted(err, netlab.ErrTimeout, a)
	case route.Do == lb.Reject:
		return wanted(err, netlab.ErrRefused, a)
	case err != nil:
		return fmt.Errorf("%s: %w", c.row.Service, err)
	case !hasBackend(route.To, a.At):
		return fmt.Errorf("meant for %s, and %s answered at %s, which is none of its backends", c.row.Service, a.Server, a.At)
	}
	if err := h.checkSeen(c, route, a, local); err != nil {
		return err
	}
	return h.checkSame(c, route, a)
}

func wanted(err, want error, a netlab.Reply) error {
	switch {
	case err == nil:
		return fmt.Errorf("wanted %w, and %s answered at %s", want, a.Server, a.At)
	case !errors.Is(err, want):
		return fmt.Errorf("wanted %w: %w", want, err)
	}
	return nil
}

// checkSeen checks the source that the backend saw. Nothing can masquerade what the node itself takes in.
func (h *history) checkSeen(c call, route *lb.Route, a netlab.Reply, local netip.Addr) error {
	seen := a.Seen.Addr()
	switch hairpin := a.At.Addr() == local; {
	case a.Server == netlab.Node1:
	case (route.Masq || hairpin || h.cfg.Proxied) && h.lab.owner(seen) != netlab.Node1:
		return fmt.Errorf("%s saw the source %s, which is not the node's", a.Server, a.Seen)
	case !h.cfg.Proxied && !route.Masq && !hairpin && seen != local:
		return fmt.Errorf("%s saw the source %s, not the client's own", a.Server, a.Seen)
	}
	return nil
}

// checkSame checks the affinity, and remembers it.
func (h *history) checkSame(c call, route *lb.Route, a netlab.Reply) error {
	if c.row.Affinity == 0 {
		return nil
	}
	v := visitor{service: c.row.Service, proto: c.row.Key.Proto, from: c.from}
	if h.cfg.AffinityByAddress {
		if last := c.row.Routes[len(c.row.Routes)-1]; last.To != route.To {
			return nil
		}
		v.key = c.row.Key
	}
	last, again := h.met[v]
	h.met[v] = meeting{route.To.ID, a.At, c.row.Key}
	if again && last.set == route.To.ID {
		if last.backend != a.At && !slices.Contains(h.known[v], a.At) {
			return fmt.Errorf("%s met %s before, which is still there, and now %s", c.row.Service, last.backend, a.At)
		}
		h.kept++
	}
	if h.cfg.AffinityByEndpoint && !slices.Contains(h.known[v], a.At) {
		h.known[v] = append(h.known[v], a.At)
	}
	return nil
}
