package cluster

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
)

// Event is a change that a source reports. The set of events is closed: the types below.
type Event interface{ foldInto(*Store, *Dirty) }

// The events. A …Listed event is a complete list: objects that it does not name are deleted. A
// source sends one for Services and one for slices after its first successful list, and again after
// each relist. An interrupted list is no event, so an outage of the API server never removes
// anything.
type (
	ServiceSet     struct{ Service *Service }
	ServiceGone    struct{ Name Name }
	ServicesListed struct{ Services []*Service }

	SliceSet     struct{ Slice *Slice }
	SliceGone    struct{ Name Name }
	SlicesListed struct{ Slices []*Slice }

	// NodeSet has this node; the Store ignores nodes of other names.
	NodeSet  struct{ Node *Node }
	NodeGone struct{ Name string }

	CIDRSet     struct{ CIDR *ServiceCIDR }
	CIDRGone    struct{ Name string }
	CIDRsListed struct{ CIDRs []*ServiceCIDR }
	// CIDRsAbsent: the source cannot list ServiceCIDRs (SV-03). Known ones stay.
	CIDRsAbsent struct{}

	// APIServerAt has the addresses at which the source reaches the API server, in either family.
	// It replaces earlier ones.
	APIServerAt struct{ Addrs []netip.AddrPort }

	// NodeHolds has the addresses that this machine's interfaces have, without those that a data
	// plane gave them. It replaces earlier ones.
	NodeHolds struct{ Addrs []netip.Addr }

	// Batch is several events that belong together: no View is between them.
	Batch []Event
)

// Ref is a dirty service and the families in which it is dirty.
type Ref struct {
	Name   Name
	V4, V6 bool
	Cause  Cause
	// Verb is the change of the object; meaningless for the cause ByFacts.
	Verb Verb
	// Trigger is the time of the change of a Pod or Service that caused the change of a slice, in
	// nanoseconds since 1970 (SV-35), or 0. Slices of the first list, deleted slices and slices
	// with an unchanged time stamp have none.
	Trigger int64
}

// Cause is the kind of object that made a service dirty.
type Cause uint8

// The causes. Each Ref of the cause ByService or BySlice is one change of one API object, so that
// they can be counted (MT-07, MT-08). A slice that moves to another Service is removed from one and
// added to the other: two changes.
const (
	ByFacts Cause = iota // the node
	ByService
	BySlice
)

// Verb is the kind of change of an API object. A slice that moves to another Service is deleted
// from the one and created for the other.
type Verb uint8

// The verbs.
const (
	Changed Verb = iota
	Created
	Deleted
)

// Changes counts changes of Services and of EndpointSlices.
type Changes struct{ Services, Slices uint64 }

// Dirty has the results of a fold.
type Dirty struct {
	// Services must be resolved again. One may occur more than once. Names with slices but no
	// Service do not occur here: they have no effect (SV-01).
	Services []Ref
	// Facts: the node or the service network changed, or the source reported that no Node exists;
	// see [Store.Facts].
	Facts bool
}

// IsZero reports whether nothing changed.
func (d Dirty) IsZero() bool { return len(d.Services) == 0 && !d.Facts }

// View has everything that decides one service.
type View struct {
	Name Name
	// Service is nil if only slices exist; they have no effect (SV-01).
	Service *Service
	// Slices are the service's slices of both families, in no order.
	Slices []*Slice
	Node   Facts
	// HealthPorts are those ports of the Service at which health check NodePorts of any Service
	// answer, if the Service names an address of this machine.
	HealthPorts []uint16
}

// Facts describe the node and the service network.
type Facts struct {
	// NodeName is this node's name, even if no Node object is known.
	NodeName string
	// Node is nil before the first Node object. If the object is gone, or has no address or no pod
	// CIDR, the last known values stay (PR-06).
	Node *Node
	// NodeGone: the Node object was deleted.
	NodeGone bool
	// CIDRs is the service network, sorted; empty if unknown.
	CIDRs []netip.Prefix
	// APIServers are the known addresses of the cluster's API servers, sorted; at most
	// maxAPIServers.
	APIServers []netip.AddrPort
	// Own are this machine's addresses, those of its interfaces and of the Node object, sorted.
	Own []netip.Addr
	// Unreachable is what this node does not reach.
	Unreachable Unreachable
}

// Store folds events into the current state. It is safe for concurrent use. Make one with
// [NewStore].
type Store struct {
	mu       sync.Mutex
	services map[Name]*entry
	slices   map[Name]placed
	cidrs    map[string]*ServiceCIDR
	facts    Facts
	changes  Changes
	index    index

	reached []netip.AddrPort // by APIServerAt
	held    []netip.Addr     // by NodeHolds
	health  map[uint16]int   // Services by health check NodePort
	// exposed are the Services that name an address of Facts.Own, by their TCP ports.
	exposed map[uint16]map[Name]struct{}

	servicesListed, slicesListed bool
	// waitForFacts: Synced also waits for these two.
	waitForFacts, nodeListed, cidrsListed bool
	// waitForPodCIDRs: Synced also waits for hadPodCIDRs, which stays true once the node had some.
	waitForPodCIDRs, hadPodCIDRs bool
}

// entry is one service. It exists while there is a Service or a slice.
type entry struct {
	service *Service
	slices  []*Slice
}

// placed is a slice with its index in entry.slices, so that one of many is found at once.
type placed struct {
	*Slice
	at int
}

// NewStore returns an empty store for the node of that name.
func NewStore(nodeName string) *Store {
	return &Store{
		services: map[Name]*entry{},
		slices:   map[Name]placed{},
		cidrs:    map[string]*ServiceCIDR{},
		facts:    Facts{NodeName: nodeName},
		health:   map[uint16]int{},
		exposed:  map[uint16]map[Name]struct{}{},
	}
}

// Fold applies an event and returns the changes. Its cost is proportional to the event, except for
// lists and for changes of the node that affect every Service (SV-40).
func (s *Store) Fold(ev Event) Dirty {
	s.mu.Lock()
	defer s.mu.Unlock()
	var d Dirty
	ev.foldInto(s, &d)
	return d
}

// Synced reports whether both Services and slices have been listed (SV-05), and whether the waits
// of [Store.WaitForFacts] and [Store.WaitForPodCIDRs] are over.
func (s *Store) Synced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.servicesListed && s.slicesListed && (!s.waitForFacts || s.nodeListed && s.cidrsListed) &&
		(!s.waitForPodCIDRs || s.hadPodCIDRs)
}

// WaitForFacts makes Synced also wait until a source has reported the Node, or its absence, and has
// listed the service network; false ends the wait. It reports whether any of these is missing.
// Without the wait a restarted proxy would close its NodePorts until the Node arrives.
func (s *Store) WaitForFacts(wait bool) (missing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waitForFacts = wait
	return !s.nodeListed || !s.cidrsListed
}

// WaitForPodCIDRs makes Synced also wait until the node has pod CIDRs of either family (PR-05). The
// wait does not time out, because nothing may be written without them.
func (s *Store) WaitForPodCIDRs() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waitForPodCIDRs = true
}

// PodCIDRsMissing reports whether [Store.WaitForPodCIDRs] still waits: the node never had any. A
// Node that is deleted later does not stop the proxy.
func (s *Store) PodCIDRsMissing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waitForPodCIDRs && !s.hadPodCIDRs
}

// NodeEligible reports whether this node's Node object exists, and whether load balancers may use
// the node. They may not if the Node is unknown, deleted, being deleted, or about to be removed
// (HT-06).
func (s *Store) NodeEligible() (known, eligible bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.facts.Node
	known = n != nil && !s.facts.NodeGone
	return known, known && !n.Leaving
}

// Changes returns the number of changes of Services and slices so far, including those of lists.
// Events without a difference do not count (MT-07, MT-08).
func (s *Store) Changes() Changes {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changes
}

// View returns the view of a service. The caller owns the slice of slices.
func (s *Store) View(name Name) View {
	var view View
	s.Look(name, func(v View) {
		view = v
		view.Slices = slices.Clone(v.Slices)
	})
	return view
}

// Look calls f with the view of a Service, while it holds the Store's lock. f must be quick and
// keep nothing.
func (s *Store) Look(name Name, f func(View)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := View{Name: name, Node: s.facts}
	if e := s.services[name]; e != nil {
		v.Service, v.Slices = e.service, e.slices
		v.HealthPorts = s.healthPorts(e.service)
	}
	f(v)
}

// Facts returns the facts about the node and the service network.
func (s *Store) Facts() Facts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.facts
}

// Names returns the names of all services that have a Service object, in no order.
func (s *Store) Names() []Name { return s.names(func(*Service) bool { return true }) }

// NamesIn returns the names of the Services that have a cluster IP of the family, in no order.
// Others are not served in it (SV-11).
func (s *Store) NamesIn(ipv6 bool) []Name {
	return s.names(func(svc *Service) bool { return svc.in(ipv6) })
}

func (s *Service) in(ipv6 bool) bool {
	return slices.ContainsFunc(s.ClusterIPs, func(a netip.Addr) bool { return a.Is6() == ipv6 })
}

func (s *Store) names(which func(*Service) bool) []Name {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make([]Name, 0, len(s.services))
	for n, e := range s.services {
		if e.service != nil && which(e.service) {
			names = append(names, n)
		}
	}
	return names
}

func (s *Store) entry(n Name) *entry {
	e := s.services[n]
	if e == nil {
		e = &entry{}
		s.services[n] = e
	}
	return e
}

func (s *Store) forgetIfEmpty(n Name) {
	if e := s.services[n]; e != nil && e.service == nil && len(e.slices) == 0 {
		delete(s.services, n)
	}
}

// serviceChanged notes that the Service object changed.
func (s *Store) serviceChanged(n Name, v Verb, d *Dirty) {
	s.changes.Services++
	d.Services = append(d.Services, Ref{Name: n, V4: true, V6: true, Cause: ByService, Verb: v})
}

// sliceChanged notes that a slice of e changed. An unknown service does not become dirty.
func (s *Store) sliceChanged(e *entry, ref Ref, d *Dirty) {
	s.changes.Slices++
	if e.service != nil {
		ref.Cause = BySlice
		d.Services = append(d.Services, ref)
	}
	if ref.Name == apiService {
		s.setAPIServers(d)
	}
}

func (b Batch) foldInto(s *Store, d *Dirty) {
	for _, ev := range b {
		ev.foldInto(s, d)
	}
}

func (ev ServiceSet) foldInto(s *Store, d *Dirty) {
	e := s.entry(ev.Service.Name)
	if e.service.Equal(ev.Service) {
		return
	}
	verb := Changed
	if e.service == nil {
		verb = Created
	}
	was := e.service
	e.service = ev.Service
	s.portsChanged(was, ev.Service, d)
	s.serviceChanged(ev.Service.Name, verb, d)
}

func (ev ServiceGone) foldInto(s *Store, d *Dirty) {
	e := s.services[ev.Name]
	if e == nil || e.service == nil {
		return
	}
	was := e.service
	e.service = nil
	s.portsChanged(was, nil, d)
	s.forgetIfEmpty(ev.Name)
	s.serviceChanged(ev.Name, Deleted, d)
}

func (ev ServicesListed) foldInto(s *Store, d *Dirty) {
	first, before := !s.servicesListed, len(d.Services)
	if first {
		d.Services = slices.Grow(d.Services, len(ev.Services))
	}
	if len(s.services) == 0 {
		s.services = make(map[Name]*entry, len(ev.Services))
	}
	s.servicesListed = true
	gone := map[Name]struct{}{}
	for n, e := range s.services {
		if e.service != nil {
			gone[n] = struct{}{}
		}
	}
	for _, svc := range ev.Services {
		delete(gone, svc.Name)
		ServiceSet{svc}.foldInto(s, d)
	}
	for n := range gone {
		ServiceGone{n}.foldInto(s, d)
	}
	if !first {
		return
	}
	for i := range d.Services[before:] { // most Services of a start are of one family
		ref := &d.Services[before+i]
		if e := s.services[ref.Name]; e != nil && e.service != nil && len(e.service.ClusterIPs) > 0 {
			ref.V4, ref.V6 = e.service.in(false), e.service.in(true)
		}
	}
}

func (ev SliceSet) foldInto(s *Store, d *Dirty) {
	was := s.slices[ev.Slice.Name].Slice
	if was.Equal(ev.Slice) {
		s.settle(was, ev.Slice)
		return
	}
	ref := Ref{Name: ev.Slice.Service, V4: !ev.Slice.IPv6, V6: ev.Slice.IPv6}
	if was == nil || was.Trigger != ev.Slice.Trigger {
		ref.Trigger = ev.Slice.Trigger
	}
	if was != nil && was.Service != ev.Slice.Service {
		SliceGone{was.Name}.foldInto(s, d)
		was = nil
	}
	e := s.entry(ev.Slice.Service)
	at := len(e.slices)
	s.index.add(e, ev.Slice)
	if was != nil {
		s.index.remove(e, was)
		at = s.slices[was.Name].at
		e.slices[at] = ev.Slice
	} else {
		e.slices = append(e.slices, ev.Slice)
		ref.Verb = Created
	}
	s.slices[ev.Slice.Name] = placed{ev.Slice, at}
	if was != nil && was.IPv6 != ev.Slice.IPv6 {
		ref.V4, ref.V6 = true, true
	}
	s.sliceChanged(e, ref, d)
}

// settle copies the zones of a slice without any other difference. No packet depends on them, so
// nothing becomes dirty.
func (s *Store) settle(was, now *Slice) {
	if was.SamePlaces(now) {
		return
	}
	kept := *now
	kept.Trigger = was.Trigger // else the next change would lose its time
	at := s.slices[was.Name].at
	s.services[was.Service].slices[at] = &kept
	s.slices[was.Name] = placed{&kept, at}
}

func (ev SliceGone) foldInto(s *Store, d *Dirty) {
	was, known := s.slices[ev.Name]
	if !known {
		return
	}
	delete(s.slices, ev.Name)
	e := s.services[was.Service]
	s.index.remove(e, was.Slice)
	last := len(e.slices) - 1
	if moved := e.slices[last]; was.at != last { // the last takes its place
		e.slices[was.at] = moved
		s.slices[moved.Name] = placed{moved, was.at}
	}
	e.slices = slices.Delete(e.slices, last, last+1)
	s.forgetIfEmpty(was.Service)
	s.sliceChanged(e, Ref{Name: was.Service, V4: !was.IPv6, V6: was.IPv6, Verb: Deleted}, d)
}

func (ev SlicesListed) foldInto(s *Store, d *Dirty) {
	first, before := !s.slicesListed, len(d.Services)
	if first {
		d.Services = slices.Grow(d.Services, len(ev.Slices))
	}
	if len(s.slices) == 0 {
		s.slices = make(map[Name]placed, len(ev.Slices))
	}
	s.slicesListed = true
	gone := map[Name]struct{}{}
	for n := range s.slices {
		gone[n] = struct{}{}
	}
	for _, sl := range ev.Slices {
		delete(gone, sl.Name)
		SliceSet{sl}.foldInto(s, d)
	}
	for n := range gone {
		SliceGone{n}.foldInto(s, d)
	}
	if first { // a restart does not make old changes new
		for i := range d.Services[before:] {
			d.Services[before+i].Trigger = 0
		}
	}
}

func (ev NodeSet) foldInto(s *Store, d *Dirty) {
	if ev.Node.Name != s.facts.NodeName {
		return
	}
	s.nodeListed = true
	now := lasting(s.facts.Node, ev.Node)
	if s.facts.Node.Equal(now) && !s.facts.NodeGone {
		return
	}
	s.facts.NodeGone = false
	s.setNode(now, d)
}

// lasting returns now, with the addresses and pod CIDRs of was if now has none: the object of a
// machine that registers again is empty at first, and no machine works without them. The zone is
// always that of now, because a machine may have none.
func lasting(was, now *Node) *Node {
	if was == nil || len(now.Addrs) > 0 && len(now.PodCIDRs) > 0 {
		return now
	}
	filled := *now
	if len(now.Addrs) == 0 {
		filled.Addrs = was.Addrs
	}
	if len(now.PodCIDRs) == 0 {
		filled.PodCIDRs = was.PodCIDRs
	}
	return &filled
}

// NodeGone keeps all facts about the machine: it may only be drained, or may return, and its
// connections continue (PR-06).
func (ev NodeGone) foldInto(s *Store, d *Dirty) {
	if ev.Name != s.facts.NodeName {
		return
	}
	if !s.nodeListed { // a missing Node is a new fact (PN-71)
		s.nodeListed, d.Facts = true, true
	}
	if s.facts.Node != nil && !s.facts.NodeGone {
		s.facts.NodeGone, d.Facts = true, true
	}
}

// setNode marks the Services dirty whose frontends may depend on the change: the zone decides
// topology (SV-38), the addresses are allowed in source ranges (SV-16), and the pod CIDRs of a
// family decide whether NodeCIDR recognises pods (SV-67).
func (s *Store) setNode(n *Node, d *Dirty) {
	was := s.facts.Node
	s.facts.Node = n
	s.hadPodCIDRs = s.hadPodCIDRs || len(n.PodCIDRs) > 0
	d.Facts = true
	if was == nil {
		was = &Node{}
	}
	wasV4, wasV6 := families(was.PodCIDRs)
	hasV4, hasV6 := families(n.PodCIDRs)
	zone, addrs := was.Zone != n.Zone, !slices.Equal(was.Addrs, n.Addrs)
	if addrs {
		s.setOwn(d)
	}
	all := Ref{V4: zone || wasV4 != hasV4, V6: zone || wasV6 != hasV6}
	if !all.V4 && !all.V6 && !addrs {
		return
	}
	for name, e := range s.services {
		ref := all
		if e.service == nil {
			continue
		}
		if addrs && len(e.service.SourceRanges) > 0 {
			ref.V4, ref.V6 = true, true
		}
		if ref.V4 || ref.V6 {
			ref.Name = name
			d.Services = append(d.Services, ref)
		}
	}
}

// families reports the families of the prefixes.
func families(ps []netip.Prefix) (v4, v6 bool) {
	for _, p := range ps {
		v4 = v4 || p.Addr().Is4()
		v6 = v6 || p.Addr().Is6()
	}
	return v4, v6
}

func (ev CIDRSet) foldInto(s *Store, d *Dirty) {
	s.cidrs[ev.CIDR.Name] = ev.CIDR
	s.setCIDRs(d)
}

func (ev CIDRGone) foldInto(s *Store, d *Dirty) {
	delete(s.cidrs, ev.Name)
	s.setCIDRs(d)
}

func (ev CIDRsListed) foldInto(s *Store, d *Dirty) {
	s.cidrsListed = true
	s.cidrs = make(map[string]*ServiceCIDR, len(ev.CIDRs))
	for _, c := range ev.CIDRs {
		s.cidrs[c.Name] = c
	}
	s.setCIDRs(d)
}

func (ev CIDRsAbsent) foldInto(s *Store, _ *Dirty) { s.cidrsListed = true }

func (s *Store) setCIDRs(d *Dirty) {
	var all []netip.Prefix
	for c := range maps.Values(s.cidrs) {
		all = append(all, c.Prefixes...)
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	all = slices.Compact(all)
	if !slices.Equal(all, s.facts.CIDRs) {
		s.facts.CIDRs = all
		d.Facts = true
	}
}
