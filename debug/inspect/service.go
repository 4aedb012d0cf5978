package inspect

import (
	"fmt"
	"slices"
	"time"

	"kube-proxy/lb"
	"kube-proxy/policy"
)

// Service returns the inputs of one Service, and the result. The Service is named as "ns/name", or
// "name" if only one has it. A port after ":" limits the answer to that port.
func (i *Inspector) Service(said string) (*Detail, error) {
	name, port, err := i.find(said)
	if err != nil {
		return nil, err
	}
	v := i.cfg.Store.View(name)
	if v.Service == nil { // it went just now
		return nil, i.unknown(name.String(), name)
	}
	failing := i.failing()
	d := &Detail{Service: i.service(v, failing), Node: i.Node(), SourceRanges: v.Service.SourceRanges,
		HealthCheck: v.Service.HealthCheckNodePort, Families: []DetailFamily{}}
	if v.Service.Created != 0 {
		d.Created = when(time.Unix(v.Service.Created, 0).UTC())
	}
	if port != "" && !slices.ContainsFunc(d.Ports, func(p Port) bool { return p.Is(port) }) {
		p := Problemf(Unknown, "Service %s has no port %s", name, Cut(port))
		for _, has := range d.Ports[:min(len(d.Ports), maxCandidates)] {
			p.Candidates = append(p.Candidates, has.String())
		}
		return nil, p
	}
	for _, f := range i.cfg.Families {
		if f.Settings == nil {
			continue
		}
		x := policy.Explain(v, f.Settings(name))
		out := DetailFamily{Family: f.Family.String(), Frontends: f.rows(name, failing[name.String()], everyFrontend),
			Ports: []DetailPort{}, Endpoints: []Endpoint{}, Why: x.Why}
		if x.Not != "" {
			out.Why = append(out.Why, x.Not)
		}
		for _, p := range x.Ports {
			if port != "" && !p.Is(port) {
				continue
			}
			out.Endpoints, out.MoreEndpoints = append(out.Endpoints, p.Endpoints...), out.MoreEndpoints+p.MoreEndpoints
			p.Endpoints = nil
			out.Ports = append(out.Ports, p)
		}
		for _, r := range x.Refused {
			out.Refused = append(out.Refused, r.String())
		}
		d.Families = append(d.Families, out)
	}
	d.reasons()
	return d, nil
}

func everyFrontend(*lb.Frontend) bool { return true }

// reasons collects the sentences, the most serious first, each once.
func (d *Detail) reasons() {
	seen := map[string]bool{}
	say := func(s string) {
		if s != "" && !seen[s] {
			seen[s] = true
			d.Reasons = append(d.Reasons, s)
		}
	}
	for _, f := range d.Families {
		for _, r := range f.Frontends {
			switch r.State {
			case "failing":
				say(fmt.Sprintf("The kernel refuses %s: %s.", r.Key, r.Why))
			case "malformed":
				say(fmt.Sprintf("%s is not offered to the kernel: %s.", r.Key, r.Why))
			case "conflict":
				say(fmt.Sprintf("%s belongs to another Service: %s.", r.Key, r.Why))
			}
		}
	}
	for _, f := range d.Families {
		for _, p := range f.Ports {
			for _, s := range p.Why {
				say(p.Service + ": " + s)
			}
		}
		for _, s := range f.Refused {
			say("Not served: " + s + ".")
		}
	}
	for _, f := range d.Families {
		if f.hasFrontends() || !d.hasFrontends() || len(d.Families) == 1 { // a missing single family needs no line
			for _, s := range f.Why {
				say(s)
			}
		}
	}
}

func (f *DetailFamily) hasFrontends() bool { return len(f.Frontends) > 0 }

func (d *Detail) hasFrontends() bool {
	return slices.ContainsFunc(d.Families, func(f DetailFamily) bool { return f.hasFrontends() })
}
