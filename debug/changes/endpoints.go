package changes

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/cluster"
	"kube-proxy/internal/plural"
	"kube-proxy/lb"
)

// Endpoints receives the changes that a plane accepted, and names the added and removed endpoints:
// in the newest entry of the Service, and to Report. It is an observer of an engine.
type Endpoints struct {
	Family lb.Family
	Ring   *Ring
	Store  *cluster.Store
	// Report, if not nil, receives each text, from the engine's goroutine.
	Report func(service cluster.Name, text string)
}

// Limits of the comparison and its text: a Service may have very many ports and endpoints.
const (
	maxPorts    = 8    // service ports of a Service
	maxBackends = 1000 // backends of a port; of larger ones only the numbers are reported
	maxNamed    = 3    // endpoints that are named, of each kind
	maxServices = 100  // Services of one write
)

// Applied is part of engine.Observer. Its time follows the Services of the write, at most
// [maxServices].
func (o *Endpoints) Applied(changes []lb.Change) {
	all := map[string]*delta{}
	for _, c := range changes {
		if c.Old == nil || c.New == nil || c.New.Kind == lb.HealthCheck {
			continue // an added or removed frontend has its own text
		}
		owner := lb.OwnerOf(c.New.Service)
		d := all[owner]
		if d == nil && len(all) < maxServices {
			d = &delta{}
			all[owner] = d
		}
		if d != nil {
			d.add(c)
		}
	}
	for owner, d := range all {
		namespace, name, _ := strings.Cut(owner, "/")
		service := cluster.Name{Namespace: namespace, Name: name}
		if text := d.text(o.Store, service); text != "" {
			o.Ring.name(o.Family, service, text)
			if o.Report != nil {
				o.Report(service, text)
			}
		}
	}
}

// delta is which endpoints of a Service new connections may reach, or not any more.
type delta struct {
	added, removed         []netip.AddrPort
	moreAdded, moreRemoved int
	large                  string // the numbers of a port with very many
	ports                  []port
}

// port is a compared service port: its frontends have the same endpoints.
type port struct {
	service string
	proto   lb.Proto
}

// add records the effect of a change on the endpoints of its service port.
func (d *delta) add(c lb.Change) {
	was, is := reached(c.Old), reached(c.New)
	p := port{c.New.Service, c.Key.Proto}
	if was == is || len(d.ports) == maxPorts || slices.Contains(d.ports, p) {
		return
	}
	d.ports = append(d.ports, p)
	var before, after lb.Backends
	if was != nil {
		before = was.Backends
	}
	if is != nil {
		after = is.Backends
	}
	if before.Len() > maxBackends || after.Len() > maxBackends {
		d.large = fmt.Sprintf("%d endpoints before, %d now", before.Len(), after.Len())
		return
	}
	d.added, d.moreAdded = named(d.added, d.moreAdded, after.Without(&before))
	d.removed, d.moreRemoved = named(d.removed, d.moreRemoved, before.Without(&after))
}

// reached returns the set that most connections to a frontend reach: that of the cluster, else that
// of this node.
func reached(f *lb.Frontend) *lb.BackendSet {
	if f == nil {
		return nil
	}
	if s := f.Set(lb.Cluster); s != nil {
		return s
	}
	return f.Set(lb.Local)
}

// named appends as many as the limit allows, and counts the others.
func named(all []netip.AddrPort, more int, of []netip.AddrPort) ([]netip.AddrPort, int) {
	n := min(len(of), maxNamed-len(all))
	return append(all, of[:n]...), more + len(of) - n
}

// text returns the delta in words, as in "−10.1.2.14:8080 (node2, not ready), +10.1.2.15:8080
// (node1)"; "" for none. The Store has the nodes of endpoints, and the reason why one is not used
// any longer.
func (d *delta) text(store *cluster.Store, name cluster.Name) string {
	if len(d.added)+len(d.removed) == 0 {
		return d.large
	}
	view := store.View(name)
	about, avoids := d.look(view), &view.Node.Unreachable
	var all []string
	for _, a := range d.removed {
		why := "gone"
		if e, there := about[a.Addr()]; there {
			why = strings.TrimPrefix(e.Place().Node+", "+d.unused(a, &e, avoids), ", ")
		}
		all = append(all, fmt.Sprintf("−%s (%s)", a, why))
	}
	for _, a := range d.added {
		s := "+" + a.String()
		if e := about[a.Addr()]; e.Place().Node != "" {
			s += " (" + e.Place().Node + ")"
		}
		all = append(all, s)
	}
	if d.moreRemoved > 0 {
		all = append(all, plural.Count(d.moreRemoved, "more is removed", "more are removed"))
	}
	if d.moreAdded > 0 {
		all = append(all, plural.Count(d.moreAdded, "more is added", "more are added"))
	}
	return strings.Join(all, ", ")
}

// unused is why connections do not reach an endpoint that a slice still has.
func (d *delta) unused(a netip.AddrPort, e *cluster.Endpoint, avoids *cluster.Unreachable) string {
	unreachable := false
	for _, p := range d.ports {
		is, _ := avoids.Has(a, cluster.Protocol(p.proto), e.Place().Node)
		unreachable = unreachable || is
	}
	moved := slices.IndexFunc(d.added, func(now netip.AddrPort) bool { return now.Addr() == a.Addr() })
	switch {
	case e.Terminating:
		return "terminating"
	case moved >= 0:
		return fmt.Sprintf("its port is %d now", d.added[moved].Port())
	case e.Ready && unreachable:
		return "avoided: unreachable from here"
	case e.Ready:
		return "ready, but not for this node"
	}
	return "not ready"
}

// look returns the slices' entries of the named endpoints; of several entries a ready one counts.
func (d *delta) look(v cluster.View) map[netip.Addr]cluster.Endpoint {
	about := map[netip.Addr]cluster.Endpoint{}
	wanted := slices.Concat(d.added, d.removed)
	for _, s := range v.Slices {
		for e := range s.Endpoints.All() {
			if !slices.ContainsFunc(wanted, func(a netip.AddrPort) bool { return a.Addr() == e.Addr }) {
				continue
			}
			if was, there := about[e.Addr]; !there || e.Ready && !was.Ready {
				about[e.Addr] = e
			}
		}
	}
	return about
}
