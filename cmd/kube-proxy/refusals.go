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

// refusals remembers which addresses of a family were told not to be served, so that each is told once for as long as
// it stands there (SV-26). Its memory follows the number of Services that have such addresses. One engine calls it.
type refusals map[cluster.Name]string // the subject of what was told

// news returns what is to be told of a Service: one sentence and what it is about, however many addresses there are.
// A sentence that differs by numbers alone is none.
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

// resolver returns what gives a family's engine the rows of a Service, and tells of its addresses that get none.
func (p *proxy) resolver(fam lb.Family, budget *engine.Budget) func(cluster.View) []*lb.Frontend {
	told := refusals{}
	messages := ratelimit.New(p.log.With("family", fam.String()), "Part of a Service is refused")
	return func(v cluster.View) []*lb.Frontend {
		settings := budget.Settings(v.Name)
		if what, subject := told.news(v.Name, policy.Refused(v, settings)); what != "" && messages.Allow(v.Name.Namespace) {
			e := event.AddressRefused(v.Name.String(), what, subject)
			p.log.Warn("Part of a Service is refused", "note", e.Note, "service", v.Name.String(), "family", fam.String())
			p.tell(e)
		}
		p.refused.of(fam.String()).Store(int64(len(told)))
		return policy.Resolve(v, settings)
	}
}
