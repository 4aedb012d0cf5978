package userspace

import (
	"fmt"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// The weight of a Service is at least that of its listeners, redirects and backends, with every
// redirector (TN-11).
func TestWeigh(t *testing.T) {
	for _, own := range []bool{false, true} {
		t.Run(fmt.Sprint("by addresses: ", own), func(t *testing.T) {
			planetest.Weighing{Family: lb.IPv4, Weigh: weigh, Within: 8, Costly: 40_000,
				Count: func(t *testing.T, want *lb.Table) (objects int) {
					m := newMachine()
					m.own = own
					for _, p := range want.Node.NodePorts {
						m.addrs = append(m.addrs, p.Addr())
					}
					p := begin(t, m, Config{}, want)
					defer p.Close()
					objects = len(m.socks)*listenerObjects + len(m.leads)*leadObjects
					for _, s := range p.services {
						for _, set := range s.sets {
							objects += set.now.Backends.Len() * backendObjects
						}
					}
					return objects
				}}.Run(t)
		})
	}
}
