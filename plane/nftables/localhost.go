//go:build linux

package nftables

import (
	"context"
	"strings"

	"kube-proxy/internal/nft/rule"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/internal/relay"
	"kube-proxy/plane/localhost"
)

// openLocalhost opens the listeners for NodePorts on localhost, if cfg enables them.
func (p *Plane) openLocalhost(cfg Config) (err error) {
	if !cfg.LocalhostNodePorts {
		return nil
	}
	if cfg.Descriptors == nil {
		cfg.Descriptors = relay.ProcessGroups()
	}
	p.rules.uncounted, err = p.lacks(context.Background(), p.rules.New("", rule.Counter))
	if err != nil {
		return err
	}
	if !p.rules.uncounted {
		p.rejected, err = p.newCounters(map[setIndex]int{sLocalhostRejected: 0})
		if err != nil {
			return err
		}
	}
	p.localhost, err = localhost.New(localhost.Config{Mark: p.rules.mark, Descriptors: cfg.Descriptors, Log: cfg.Log})
	return err
}

// atLocalhost reports whether TCP NodePorts answer on localhost.
func (r *ruleset) atLocalhost() bool { return r.localhost && r.node.Localhost.IsValid() }

// localhostRules count and reject packets to NodePorts on localhost, except TCP where it is
// selected: the proxy listens. They look up maps of frontends, so changes of frontends need no new
// rules. They are where packets arrive: a packet that is rejected on the way out fails sendto()
// with EPERM, but upstream's clients get ECONNREFUSED.
func (r *ruleset) localhostRules() []rule.Rule {
	at, note := r.Family.Loopback(), "localhost: not selected by nodePortAddresses"
	to := []rule.Statement{rule.Is(r.Destination(), at.String(), at.AsSlice())}
	if r.atLocalhost() {
		to, note = append(to, rule.NotOverTCP), "localhost: TCP alone is served"
	}
	to = append(to, rule.NewConnection, rule.Find(rule.Number, r.set(sNodePorts), rule.NodePort...),
		rule.NotZero(rule.Number))
	reject := r.New(note, append(to[:len(to):len(to)], r.Reject())...)
	if r.uncounted {
		return []rule.Rule{reject}
	}
	return []rule.Rule{
		r.New("localhost: count", append(to, rule.Increment(r.set(sLocalhostRejected), 0, rule.NodePort...))...),
		reject}
}

// notTheProxy matches packets except those of the proxy to an endpoint, which must not be
// translated again: the endpoint may have the address of another Service.
func (r *ruleset) notTheProxy() rule.Statement {
	if !r.atLocalhost() {
		return rule.Statement{}
	}
	return rule.IsZero(rule.PacketMark.And(r.mark))
}

// measureLocalhost is Measure for localhost NodePorts.
func (p *Plane) measureLocalhost(emit mode.Emit) error {
	if p.localhost == nil {
		return nil
	}
	listeners, failures := p.localhost.Stats()
	emit(localhostListeners, float64(listeners))
	emit(localhostFailures, float64(failures))
	if p.rejected == nil {
		return nil
	}
	rejected := map[lb.Proto]uint64{lb.TCP: 0, lb.UDP: 0, lb.SCTP: 0}
	err := p.rejected.read(context.Background(), func(row lb.Key, n uint64) { rejected[row.Proto] += n })
	for proto, n := range rejected {
		emit(localhostRejected, float64(n), strings.ToUpper(proto.String()))
	}
	return err
}
