package planetest

import (
	"errors"
	"fmt"
	"slices"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/scenario"
)

// otherwise records that a line had to show a difference of planes at which connections end.
func (r *run) otherwise(how Proxied) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.proxied = append(r.proxied, how)
}

// balanced reports whether the deciding frontend, if any, has a route to backends.
func (r *run) balanced(shots []scenario.Shot) bool {
	return len(shots) > 0 && slices.ContainsFunc(shots, func(s scenario.Shot) bool {
		row := r.table.Get(s.Key)
		return row != nil && balances(row)
	})
}

// asProxied returns the line as expected where connections end at the plane; elsewhere it returns
// the line unchanged.
func (r *run) asProxied(p scenario.Packet, shots []scenario.Shot) scenario.Packet {
	if !r.s.Proxied || p.Want.Verdict != scenario.Answered || !r.balanced(shots) {
		return p
	}
	if p.Want.Or != scenario.Answered {
		r.otherwise(ProxiedRetry)
	}
	if p.Want.Sticky && r.restarted {
		r.otherwise(ProxiedAffinity)
		p.Want.Backends = r.anyOf(p.Want.Backends, shots[0].Key)
	}
	return p
}

// anyOf adds the other backends of the frontend to those in a line.
func (r *run) anyOf(named []scenario.Backend, k lb.Key) []scenario.Backend {
	named = slices.Clone(named)
	for _, route := range r.table.Get(k).Routes {
		if route.To == nil {
			continue
		}
		for b := range route.To.Backends.All() {
			host := r.lab.owner(b.Addr.Addr())
			if !slices.ContainsFunc(named, func(n scenario.Backend) bool { return n.Host == host }) {
				named = append(named, scenario.Backend{Host: host, From: named[0].From})
			}
		}
	}
	return named
}

// origin returns the source that a backend must see for the line's want.
func (r *run) origin(want scenario.Origin, a netlab.Reply, shots []scenario.Shot) scenario.Origin {
	if !r.s.Proxied || want.Host == "" && want.Addr.IsZero() || a.Server == netlab.Sink || !r.balanced(shots) {
		return want
	}
	if want.Host != netlab.Node1 {
		r.otherwise(ProxiedAddress)
	}
	return scenario.Origin{Host: netlab.Node1}
}

// resets reports whether a connection that must be refused was reset, even if the plane had
// accepted it.
func (r *run) resets(p scenario.Packet, shots []scenario.Shot, err error) bool {
	if !r.s.Proxied || p.Want.Verdict != scenario.Refused || !errors.Is(err, netlab.ErrReset) || !r.balanced(shots) {
		return false
	}
	r.otherwise(ProxiedReset)
	return true
}

// overRestart checks a connection that was opened before its plane was closed: err is the result of
// using it again.
func (r *run) overRestart(p scenario.Packet, c *netlab.Conn, err error) error {
	r.otherwise(ProxiedRestart)
	switch udp := c.Proto() == netlab.UDP; {
	case udp && err != nil:
		return fmt.Errorf("connection %s: %w", p.Conn, err)
	case !udp && err == nil:
		return fmt.Errorf("connection %s is still answered, though the proxy that it ended at is gone", p.Conn)
	}
	return nil
}
