package inspect

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/failover"
	"kube-proxy/failover/probe"
	"kube-proxy/internal/plural"
)

// Limits of a query for probes: of the endpoints of one Service, and of the series at once. So one
// query sends about 70 packets a second at most.
const (
	maxProbed      = 100
	probedAtOnce   = 10
	maxSilentNamed = 5
)

// Probes are the answers of the endpoints of a Service.
type Probes struct {
	// Node is the node that probed, and Service "ns/name".
	Node    string  `json:"node"`
	Service string  `json:"service"`
	Probes  []Probe `json:"probes"`
	// More endpoints were not probed.
	More int `json:"more,omitempty"`
}

// Probe is the answer of one endpoint.
type Probe struct {
	// Service is the service port, "ns/name:port".
	Service string         `json:"service"`
	Address netip.AddrPort `json:"address"`
	Node    string         `json:"node,omitempty"`
	Ready   bool           `json:"ready"`
	// Result is answers, refuses, prohibited, silent or no route; "not probed" with the reason in
	// Note. Note explains the others, too.
	Result string `json:"result"`
	Note   string `json:"note,omitempty"`
	// Milliseconds is the time until the answer; 0 without one.
	Milliseconds float64 `json:"milliseconds,omitempty"`
}

// Failed returns those that did not answer.
func (p *Probes) Failed() (all []Probe) {
	for _, x := range p.Probes {
		if x.Result != failover.Answers.String() && x.Result != notProbed {
			all = append(all, x)
		}
	}
	return all
}

// Faulty reports whether the endpoint is at fault: a firewall may treat clients otherwise than this
// node.
func (p Probe) Faulty() bool {
	return p.Result == failover.Refuses.String() || p.Result == failover.NoRoute.String()
}

// Sent returns how many endpoints were probed.
func (p *Probes) Sent() (n int) {
	for _, x := range p.Probes {
		if x.Result != notProbed {
			n++
		}
	}
	return n
}

// notProbed is the result without a probe.
const notProbed = "not probed"

// notes says what a result means for the operator.
var notes = map[failover.Result]string{
	failover.Refuses: "nothing listens there: does targetPort match the port of the program?",
	failover.Prohibited: "a firewall rejects connections of this node: a NetworkPolicy, or a rule of the pod or of a " +
		"node",
	failover.Silent: "no answer: the node or the network is down, or a firewall drops connections of this node",
	failover.NoRoute: "a router or the endpoint's node has no route to it: the pod is gone, or the pod network is " +
		"broken",
}

// Probe connects from this node to the endpoints of a Service by TCP, once. The Service is named as
// for [Inspector.Service].
func (i *Inspector) Probe(ctx context.Context, said string) (*Probes, error) {
	d, err := i.Service(said)
	if err != nil {
		return nil, err
	}
	if i.cfg.Offline {
		return nil, Problemf(Unavailable, "no proxy runs: only a running proxy probes endpoints")
	}
	out := &Probes{Node: d.Node, Service: d.Namespace + "/" + d.Name, Probes: []Probe{}}
	for _, f := range d.Families {
		for _, e := range f.Endpoints {
			if len(out.Probes) == maxProbed {
				out.More++
				continue
			}
			out.Probes = append(out.Probes, Probe{Service: e.Service, Address: e.Address, Node: e.Node, Ready: e.Ready})
		}
		out.More += f.MoreEndpoints
	}
	var running sync.WaitGroup
	free := make(chan struct{}, probedAtOnce)
	k := 0
	for _, f := range d.Families {
		for _, e := range f.Endpoints {
			if k == len(out.Probes) {
				break
			}
			p := &out.Probes[k]
			k++
			if p.Note = i.whyNotProbed(d, &e); p.Note != "" {
				p.Result = notProbed
				continue
			}
			free <- struct{}{}
			running.Go(func() {
				defer func() { <-free }()
				p.run(ctx, e.Local)
			})
		}
	}
	running.Wait()
	return out, ctx.Err()
}

// whyNotProbed returns the reason why an endpoint is not probed; "" if it is. Policy serves no
// refused address, so none is probed.
func (i *Inspector) whyNotProbed(d *Detail, e *Endpoint) string {
	switch {
	case e.Protocol != "tcp":
		return "only TCP endpoints answer a probe"
	case e.Address.Port() == 0:
		return "its EndpointSlice does not have the port"
	case len(e.In) > 0 || !e.Ready && !e.Serving:
		if len(e.In) == 0 {
			return "not ready"
		}
		return ""
	}
	name := cluster.Name{Namespace: d.Namespace, Name: d.Name}
	if i.cfg.Serves != nil && !i.cfg.Serves(name, e.Address) && e.Unreachable == "" {
		return e.Why
	}
	return ""
}

// run probes the endpoint.
func (p *Probe) run(ctx context.Context, here bool) {
	start := time.Now()
	r, err := probe.Run(ctx, failover.Probe{At: p.Address, Tries: failover.Tries, Here: here}, nil)
	if err != nil {
		p.Result, p.Note = failover.Unknown.String(), err.Error()
		return
	}
	p.Result, p.Note = r.String(), notes[r]
	if r != failover.Silent {
		p.Milliseconds = float64(time.Since(start).Microseconds()) / 1000
	}
}

// failoverFindings reports unreachable nodes and endpoints.
func (i *Inspector) failoverFindings(f *findings) {
	if i.cfg.Failover == nil {
		return
	}
	s, action := i.cfg.Failover()
	if s.OwnLink {
		f.add(Error, "failover", "kube-proxy status --watch", "most nodes that this node probed are unreachable from "+
			"here: its own link may be down, so no endpoint is avoided")
	}
	done := "avoided"
	if action != "avoid" {
		done = "affected"
	}
	for _, n := range s.Nodes {
		f.add(Warning, "failover", "kube-proxy events", "%s is unreachable from here since %s: %s %s", n.Name,
			n.For.Round(time.Second), plural.Count(n.Endpoints, "endpoint", "endpoints"), done)
	}
	for k, e := range s.Endpoints {
		if k == maxSilentNamed {
			f.add(Warning, "failover", "kube-proxy why", "%s do not answer either",
				plural.Count(len(s.Endpoints)-k, "more endpoint", "more endpoints"))
			break
		}
		if e.Unreachable {
			f.add(Warning, "failover", "kube-proxy why", "%s is unreachable from here since %s (%s)", e.Address,
				e.For.Round(time.Second), e.Result)
		} else {
			f.add(Warning, "failover", "kube-proxy why", "%s is silent for clients and not avoided: %s", e.Address,
				e.Why)
		}
	}
}
