package main

import (
	"strings"
	"sync/atomic"

	"kube-proxy/cluster"
	"kube-proxy/engine"
	"kube-proxy/event"
	"kube-proxy/internal/ratelimit"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

// refusals remembers which refused addresses of a family were reported, so that each is reported
// once for as long as the Service has it (SV-26). Its memory follows the number of Services with
// such addresses. One engine calls it.
type refusals map[cluster.Name]string // the subject of the last report

// news returns the report about a Service: one sentence and its subject, however many addresses are
// refused; "" if the last report differs by numbers alone.
func (r refusals) news(name cluster.Name, now []policy.Refusal) (what, subject string) {
	if len(now) == 0 {
		delete(r, name)
		return "", ""
	}
	var texts, subjects []string
	for _, refusal := range now {
		texts = append(texts, refusal.String())
		subjects = append(subjects, refusal.Subject())
	}
	subject = strings.Join(subjects, ", ")
	if r[name] == subject {
		return "", ""
	}
	r[name] = subject
	return strings.Join(texts, "; "), subject
}

// refusedServices is how many Services have addresses that are not served, by family.
type refusedServices struct{ v4, v6 atomic.Int64 }

func (r *refusedServices) of(fam string) *atomic.Int64 {
	if fam == lb.IPv6.String() {
		return &r.v6
	}
	return &r.v4
}

// resolver returns the function that computes a Service's frontends for a family's engine, and
// reports refused addresses.
func (p *proxy) resolver(fam lb.Family, budget *engine.Budget) func(cluster.View) []*lb.Frontend {
	reported := refusals{}
	messages := ratelimit.New(p.log.With("family", fam.String()), "Part of a Service is refused")
	return func(v cluster.View) []*lb.Frontend {
		settings := budget.Settings(v.Name)
		if what, subject := reported.news(v.Name, policy.Refused(v, settings)); what != "" &&
			messages.Allow(v.Name.Namespace) {
			e := event.AddressRefused(v.Name.String(), what, subject)
			p.log.Warn("Part of a Service is refused", "note", e.Note, "service", v.Name.String(), "family",
				fam.String())
			p.publish(e)
		}
		p.refused.of(fam.String()).Store(int64(len(reported)))
		return policy.Resolve(v, settings)
	}
}
