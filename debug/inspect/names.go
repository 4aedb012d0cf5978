package inspect

import (
	"slices"
	"strings"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/internal/nearest"
	"kube-proxy/lb"
)

// Names returns the names of all Services, sorted by namespace and name. The slice is shared and
// must not change.
func (i *Inspector) Names() []cluster.Name {
	names, _ := i.listed()
	return names
}

// listed returns the names, and the number of the newest change that they include for certain.
//
// Listing all names locks a Store, so it is repeated only after a Service changed, and for at most
// a hundredth of the time.
func (i *Inspector) listed() ([]cluster.Name, uint64) {
	c := &i.names
	c.mu.Lock()
	defer c.mu.Unlock()
	newest, changes := i.Newest(), i.cfg.Store.Changes().Services
	switch now := time.Now(); {
	case c.known && c.changes == changes:
		c.newest = newest
	case !c.known || now.After(c.until):
		c.sorted, c.changes, c.newest, c.known = i.cfg.Store.Names(), changes, newest, true
		// a busy machine may have stopped this process meanwhile
		c.until = now.Add(min(100*time.Since(now), 2*time.Second))
		slices.SortFunc(c.sorted, cluster.Name.Compare)
	}
	return c.sorted, c.newest
}

// ParseName parses "ns/name", as in frontends and changes, with or without ":port".
func ParseName(s string) cluster.Name {
	namespace, name, _ := strings.Cut(lb.OwnerOf(s), "/")
	return cluster.Name{Namespace: namespace, Name: name}
}

// find returns the Service that a query names, and the text after ":". A Service is named as
// "ns/name", "name" if only one Service has it, or by its DNS name, "name.ns" with or without "svc"
// and the cluster's domain. If no Service has the name, it returns the given parts.
func (i *Inspector) find(said string) (name cluster.Name, port string, err error) {
	text, port, _ := strings.Cut(strings.TrimSpace(said), ":")
	bare := strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(text, "service/"), "services/"), "svc/")
	namespace, short, qualified := strings.Cut(bare, "/")
	switch {
	case bare == "":
		return name, "", Problemf(Bad, "want the name of a Service, such as shop/web")
	case len(bare) > maxName:
		return name, "", Problemf(Bad, "the name is too long for a Service: %d characters", len(bare))
	case qualified:
		name = cluster.Name{Namespace: namespace, Name: short}
		if i.cfg.Store.View(name).Service != nil {
			return name, port, nil
		}
		return name, "", i.unknown(bare, name)
	}
	if labels := strings.Split(strings.TrimSuffix(bare, "."), "."); len(labels) >= 2 &&
		(len(labels) == 2 || labels[2] == "svc") {
		name = cluster.Name{Namespace: labels[1], Name: labels[0]}
		if i.cfg.Store.View(name).Service != nil {
			return name, port, nil
		}
		return name, "", i.unknown(bare, name)
	}
	var same []cluster.Name
	for _, n := range i.Names() {
		if n.Name == bare {
			same = append(same, n)
		}
	}
	switch len(same) {
	case 0:
		name.Name = bare
		return name, "", i.unknown(bare, name)
	case 1:
		return same[0], port, nil
	}
	return name, "", ambiguous("Services", bare, same)
}

// ambiguous is the problem of a name that several have.
func ambiguous(kind, said string, names []cluster.Name) *Problem {
	p := Problemf(Ambiguous, "%d %s have the name %s: add the namespace", len(names), kind, said)
	for _, n := range names[:min(len(names), maxCandidates)] {
		p.Candidates = append(p.Candidates, n.String())
	}
	return p
}

// maxName is the longest namespaced name, in any form.
const maxName = 600

// unknown returns the problem of a name that no Service has, with similar names, the nearest first.
func (i *Inspector) unknown(said string, name cluster.Name) *Problem {
	p := Problemf(Unknown, "no Service %s", said)
	if i.cfg.Store.View(ParseName(said)).Slices != nil {
		p.Text += ": it has EndpointSlices, but no Service object"
	}
	all := i.Names()
	p.Candidates = nearest.Of(strings.TrimPrefix(name.String(), "/"), func(yield func(string) bool) {
		for _, n := range all {
			if !yield(n.String()) {
				return
			}
		}
	})
	for _, n := range all {
		if len(p.Candidates) >= maxCandidates {
			break
		}
		like := strings.Contains(n.Name, name.Name) || strings.Contains(name.Name, n.Name)
		if like && len(name.Name) > 2 && !slices.Contains(p.Candidates, n.String()) {
			p.Candidates = append(p.Candidates, n.String())
		}
	}
	p.Candidates = p.Candidates[:min(len(p.Candidates), maxCandidates)]
	if len(p.Candidates) == 0 && name.Name != "" {
		p.Text += "; Services with the label service.kubernetes.io/service-proxy-name belong to another proxy and " +
			"are not known here"
	}
	return p
}
