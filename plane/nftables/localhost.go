//go:build linux

package nftables

import (
	"context"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/internal/relay"
	"kube-proxy/plane/localhost"
)

// openLocalhost opens what serves NodePorts on localhost, if that is asked for.
func (p *Plane) openLocalhost(cfg Config) (err error) {
	if !cfg.LocalhostNodePorts {
		return nil
	}
	if cfg.Descriptors == nil {
		cfg.Descriptors = relay.ProcessGroups()
	}
	can, err := p.sock.canCount(context.Background(), p.rules)
	if err != nil {
		return err
	}
	if p.rules.uncounted = !can; can {
		if p.rejected, err = p.newCounters(map[setIndex]int{sLocalhostRejected: 0}); err != nil {
			return err
		}
	}
	p.localhost, err = localhost.New(localhost.Config{Mark: p.rules.mark, Descriptors: cfg.Descriptors, Log: cfg.Log})
	return err
}

// atLocalhost reports whether TCP NodePorts answer on localhost.
func (r *ruleset) atLocalhost() bool { return r.localhost && r.node.Localhost.IsValid() }

// localhostRules count and reject packets to NodePorts on localhost, but those of TCP, for which the proxy listens. What they look
// up follows the rows by itself.
func (r *ruleset) localhostRules() []rule {
	if !r.atLocalhost() {
		return nil
	}
	to := []statement{match(r.destination().text+" "+r.node.Localhost.String(), r.destination(), expr.CmpOpEq, r.node.Localhost.AsSlice()),
		match(l4proto.text+" != tcp", l4proto, expr.CmpOpNeq, []byte{unix.IPPROTO_TCP}), newConnection, r.find(number, sNodePorts, nodePort...), notZero(number)}
	reject := r.rule("localhost: TCP alone is served", append(to[:len(to):len(to)], r.reject())...)
	if r.uncounted {
		return []rule{reject}
	}
	return []rule{r.rule("localhost: count", append(to, r.increment(sLocalhostRejected, nodePort, 0))...), reject}
}

// notTheProxy matches packets but those of the proxy to an endpoint, which are led nowhere else: the endpoint may be at the address of
// another Service.
func (r *ruleset) notTheProxy() statement {
	if !r.atLocalhost() {
		return statement{}
	}
	o := packetMark.and(r.mark)
	return match(o.text+" == 0x00000000", o, expr.CmpOpEq, make([]byte, 4))
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
	rejected := map[lb.Proto]uint64{lb.UDP: 0, lb.SCTP: 0}
	err := p.rejected.read(context.Background(), func(set counted, key []byte, n uint64) { rejected[parseKey(key, set.addrLen).Proto] += n })
	for proto, n := range rejected {
		emit(localhostRejected, float64(n), strings.ToUpper(proto.String()))
	}
	return err
}
