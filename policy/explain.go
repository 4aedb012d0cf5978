package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"kube-proxy/cluster"
	"kube-proxy/internal/plural"
	"kube-proxy/lb"
)

// maxExplained limits the endpoints of one explanation, each counted once for each port.
const maxExplained = 10_000

// Explanation gives the reasons for the frontends of a Service in one family. Sentences are for
// people.
type Explanation struct {
	// Service is "ns/name".
	Service string
	// Family is "IPv4" or "IPv6".
	Family string
	// Not is the reason why the Service has no frontends, as a sentence; "" if it has some.
	Not string
	// Ports are the service's ports in its order.
	Ports []ExplainedPort
	// Refused lists the refused addresses: [Refused].
	Refused []Refusal
	// Why has sentences about the whole Service.
	Why []string
}

// Port is one entry of spec.ports.
type Port struct {
	Name     string `json:"name,omitempty"`
	Port     uint16 `json:"port"`
	Protocol string `json:"protocol"` // tcp, udp, sctp
	NodePort uint16 `json:"nodePort,omitempty"`
}

// PortOf returns the port as people see it.
func PortOf(p *cluster.ServicePort) Port {
	return Port{p.Name, p.Port, lb.Proto(p.Protocol).String(), p.NodePort}
}

func (p Port) number() string { return strconv.Itoa(int(p.Port)) }

// Is reports whether people mean the port: by its name, its number, or as in "80/tcp".
func (p Port) Is(said string) bool {
	return p.Name == said || p.number() == said || p.number()+"/"+p.Protocol == said
}

// String returns "http (80/tcp)", or "80/tcp".
func (p Port) String() string {
	if p.Name == "" {
		return p.number() + "/" + p.Protocol
	}
	return fmt.Sprintf("%s (%s/%s)", p.Name, p.number(), p.Protocol)
}

// ExplainedPort gives the reasons for the backends of a service port.
type ExplainedPort struct {
	Port
	// Service is the service port as in [lb.Frontend.Service].
	Service string `json:"service"`
	// Frontends are those that the Service requests for this port. Another Service may still win a
	// key: see [lb.Table.Lost].
	Frontends []*lb.Frontend `json:"-"`
	// Cluster and Local report whether frontends may lead to all endpoints of the cluster, or to
	// those on this node alone, if there are any. The traffic policies decide that (SV-19, SV-20).
	// InCluster and InLocal are how many of Endpoints are in these sets.
	Cluster   bool `json:"cluster"`
	Local     bool `json:"local"`
	InCluster int  `json:"inCluster"`
	InLocal   int  `json:"inLocal"`
	// Endpoints lists the slices' entries for the port, by address and port, within the limit of an
	// explanation. MoreEndpoints is the number of other entries.
	Endpoints     []ExplainedEndpoint `json:"-"`
	MoreEndpoints int                 `json:"moreEndpoints,omitempty"`
	// Why has sentences about the port: why it has no backends, which hints count, and the effect
	// on clients.
	Why []string `json:"why,omitempty"`
	// Chosen are the sentences of Why about how backends were chosen, or why the port has none.
	Chosen []string `json:"-"`
}

// ExplainedEndpoint reports whether an endpoint serves a port, and why not.
type ExplainedEndpoint struct {
	// Service and Protocol are those of its port.
	Service  string `json:"service"`
	Protocol string `json:"protocol"`
	// Address has port 0 if its slice does not have the port.
	Address netip.AddrPort `json:"address"`
	// Node is the endpoint's node according to the API; "" if the API does not name one.
	Node string `json:"node,omitempty"`
	// Local: that is this node.
	Local bool `json:"local,omitempty"`
	// Zone is the endpoint's zone according to the API; SameZone reports whether this node is in it
	// too.
	Zone     string `json:"zone,omitempty"`
	SameZone bool   `json:"sameZone,omitempty"`
	// Ready, Serving and Terminating are its conditions. Of several entries for the address, one
	// with a condition is enough (SV-32).
	Ready       bool `json:"ready"`
	Serving     bool `json:"serving"`
	Terminating bool `json:"terminating,omitempty"`
	// ForZones and ForNodes are the targets of its topology hints.
	ForZones []string `json:"forZones,omitempty"`
	ForNodes []string `json:"forNodes,omitempty"`
	// Entries is the number of slice entries that name it.
	Entries int `json:"-"`
	// Unreachable is the reason why this node does not reach it, in a few words; "" if nothing is
	// known against it. Such an endpoint is avoided unless no other is left.
	Unreachable string `json:"unreachable,omitempty"`
	// InCluster and InLocal report whether it is in the set of all endpoints, or in this node's,
	// and frontends use that set. In names these sets.
	InCluster bool     `json:"-"`
	InLocal   bool     `json:"-"`
	In        []string `json:"in"`
	// WhyNotCluster and WhyNotLocal give the reason why it is not, in a few words ("not ready"); ""
	// if it is, and if the port needs no such set. Why has both.
	WhyNotCluster string `json:"-"`
	WhyNotLocal   string `json:"-"`
	Why           string `json:"why,omitempty"`
}

// Explain returns the reasons for the frontends that [Resolve] returns for the same facts. It calls
// the same functions. Its cost is proportional to the ports times the slices and endpoints of the
// Service, as that of Resolve is, but about ten times as high.
func Explain(v cluster.View, s Settings) Explanation {
	x := Explanation{Service: v.Name.String(), Family: s.Family.String(), Refused: Refused(v, s)}
	s.reserve(&v)
	r, serves := newResolver(&v, &s)
	if !serves {
		x.Not = s.whyNone(&v)
		return x
	}
	whole := v // including the endpoints above the limit, in a fixed order
	whole.Slices = slices.SortedFunc(slices.Values(v.Slices), byName)
	v.Slices, _ = s.bounded(&v)
	r.indexPorts()
	e := explainer{resolver: &r, entire: r, room: maxExplained}
	e.entire.view, e.entire.ports = &whole, nil
	e.entire.indexPorts()
	e.has = e.entire.facts()
	for i := range r.svc.Ports {
		x.Ports = append(x.Ports, e.port(&r.svc.Ports[i]))
	}
	if len(r.rows) == 0 {
		x.Not = "It has no port with a number."
		return x
	}
	r.healthCheck()
	x.Why = e.about()
	return x
}

// whyNone returns the reason why the Service has no address in the family, for the case that
// newResolver returns serves=false.
func (s *Settings) whyNone(v *cluster.View) string {
	svc := v.Service
	switch {
	case svc == nil && len(v.Slices) > 0:
		return fmt.Sprintf("There is no such Service here, though %s its name: it was deleted, or another proxy "+
			"serves it (label service.kubernetes.io/service-proxy-name).",
			plural.Count(len(v.Slices), "EndpointSlice has", "EndpointSlices have"))
	case svc == nil:
		return "There is no such Service here. Those with the label service.kubernetes.io/service-proxy-name are " +
			"another proxy's, and not known."
	case svc.Type == cluster.TypeExternalName:
		return "It is of type ExternalName: DNS gives clients another name, and there is nothing to proxy."
	case len(svc.ClusterIPs) == 0:
		return "It has no cluster IP: it is headless, and DNS gives clients the addresses of its endpoints; or no " +
			"address was assigned yet."
	}
	if s.clusterIP(svc).IsValid() {
		return fmt.Sprintf("Nothing of it is served: it %s.", s.overBudget())
	}
	for _, a := range svc.ClusterIPs {
		if lb.FamilyOf(a) == s.Family {
			return fmt.Sprintf("Its cluster IP %s %s.", a, s.refuses(a, asClusterIP))
		}
	}
	return fmt.Sprintf("It has no cluster IP of %s, only %s.", s.Family, svc.ClusterIPs[0])
}

// explainer is one call of Explain.
type explainer struct {
	*resolver
	entire resolver // of all slices, while resolver has those within the limits
	has    sliceFacts
	room   int // how many more endpoints may be named
}

// sliceFacts holds properties of all slices of the family together.
type sliceFacts struct {
	slices, endpoints int
	ports             []string // the first few, for people
}

// facts collects properties of the slices.
func (r *resolver) facts() (f sliceFacts) {
	for _, sl := range r.view.Slices {
		if !r.settings.ofFamily(sl) {
			continue
		}
		f.slices++
		f.endpoints += sl.Endpoints.Len()
		for _, sp := range sl.Ports {
			if len(f.ports) == maxPorts {
				break
			}
			if name := fmt.Sprintf("%q (%d/%s)", sp.Name, sp.Port, lb.Proto(sp.Protocol)); !slices.Contains(f.ports,
				name) {
				f.ports = append(f.ports, name)
			}
		}
	}
	return f
}

// maxPorts is the most slice ports that a sentence names.
const maxPorts = 5

// port explains a service port.
func (e *explainer) port(p *cluster.ServicePort) ExplainedPort {
	before := len(e.rows)
	e.resolver.port(p)
	x := ExplainedPort{Port: PortOf(p), Service: e.portName(p), Frontends: slices.Clone(e.rows[before:]),
		Endpoints: []ExplainedEndpoint{}}
	for _, f := range x.Frontends {
		policy := e.svc.ExternalPolicy
		if f.Kind == lb.ClusterIP {
			policy = e.svc.InternalPolicy
		}
		x.Local = x.Local || policy == cluster.PolicyLocal
		x.Cluster = x.Cluster || policy == cluster.PolicyCluster || f.Kind != lb.ClusterIP // the short circuit of SV-53
	}
	groups := e.groupsOf(nil, p)
	c := portExplainer{explainer: e, port: &x, groups: groups, cluster: chooseCluster(groups),
		local: chooseLocal(groups)}
	c.known = knownOf(groups, c.cluster.avoided)
	c.endpoints(p)
	c.why(p)
	return x
}

// portExplainer explains one port from the contents of its sets.
type portExplainer struct {
	*explainer
	port           *ExplainedPort
	groups         []portGroup
	known          known
	cluster, local choice
}

// hasAny reports whether there is such a candidate.
func (c *portExplainer) hasAny(is func(*candidate) bool) bool {
	for _, g := range c.groups {
		for i := range c.in(g.group) {
			if is(&c.in(g.group)[i]) {
				return true
			}
		}
	}
	return false
}

// candidate returns the candidate at the address and port, or nil.
func (c *portExplainer) candidate(at netip.AddrPort) *candidate {
	for _, g := range c.groups {
		all := c.in(g.group)
		i, is := slices.BinarySearchFunc(all, at.Addr(), func(c candidate, a netip.Addr) int {
			return c.addr.Compare(a)
		})
		if is && g.port == at.Port() {
			return &all[i]
		}
	}
	return nil
}

// endpoints lists all entries of the slices for the port.
func (c *portExplainer) endpoints(p *cluster.ServicePort) {
	found := map[netip.AddrPort]*named{}
	for _, s := range c.entire.served(nil, p) {
		c.gather(found, c.entire.view.Slices[s.slice], s.port)
	}
	if c.ports == nil { // of many ports each slice has a few
		for _, sl := range c.entire.view.Slices {
			if c.settings.ofFamily(sl) && !slices.ContainsFunc(sl.Ports, func(sp cluster.SlicePort) bool {
				return isPort(sp, p)
			}) {
				c.gather(found, sl, 0)
			}
		}
	}
	for at, n := range found {
		slices.Sort(n.ForZones)
		slices.Sort(n.ForNodes)
		n.ForZones, n.ForNodes = slices.Compact(n.ForZones), slices.Compact(n.ForNodes)
		candidate := c.candidate(at)
		switch {
		case n.second:
			n.out(c.port, "the second address of an endpoint; only the first one is used")
		case candidate != nil:
			c.judge(&n.ExplainedEndpoint, candidate)
		case at.Port() == 0:
			n.out(c.port, fmt.Sprintf("in an EndpointSlice that has no port %q of %s", p.Name, lb.Proto(p.Protocol)))
		case n.counts && n.running && !n.Ready:
			n.out(c.port, "terminating, and another pod, which is not ready, has its address")
		case n.counts:
			n.out(c.port, "one endpoint too many for the Service's ports")
		case !c.settings.serves(at.Addr(), asEndpoint):
			n.out(c.port, "not served: its address "+cmp.Or(c.settings.refuses(at.Addr(), asEndpoint),
				"is of the other family"))
		case n.Terminating:
			n.out(c.port, "terminating, and serves no more")
		default:
			n.out(c.port, "not ready")
		}
		c.port.add(n.ExplainedEndpoint)
	}
	slices.SortFunc(c.port.Endpoints, func(a, b ExplainedEndpoint) int { return a.Address.Compare(b.Address) })
}

// named is an endpoint that an explanation names.
type named struct {
	ExplainedEndpoint
	counts  bool // an entry makes a candidate
	second  bool // the address is not the first one of its endpoint
	running bool // an entry is neither ready nor terminating
}

// name returns a new endpoint of the port.
func (c *portExplainer) name(at netip.AddrPort) *named {
	return &named{ExplainedEndpoint: ExplainedEndpoint{Service: c.port.Service, Protocol: c.port.Protocol, Address: at,
		In: []string{}}}
}

// gather records the entries of a slice; port is 0 if the slice lacks the port, and then entries
// that have the port in another slice are left out.
func (c *portExplainer) gather(found map[netip.AddrPort]*named, sl *cluster.Slice, port uint16) {
	if c.room == 0 && len(found) == 0 {
		c.port.MoreEndpoints += sl.Endpoints.Len() + len(sl.Unused)
		return
	}
	for e := range sl.Endpoints.All() {
		at := netip.AddrPortFrom(e.Addr, port)
		n := found[at]
		switch {
		case n != nil:
		case c.room == 0:
			c.port.MoreEndpoints++
			continue
		default:
			c.room--
			n = c.name(at)
			found[at] = n
		}
		n.Entries++
		n.second = false
		n.counts, n.running = n.counts || c.counts(&e), n.running || !e.Ready && !e.Terminating
		n.Local = n.Local || e.OnNode(c.view.Node.NodeName)
		n.place(e.Place(), &c.view.Node)
		n.Ready, n.Serving, n.Terminating = n.Ready || e.Ready, n.Serving || e.Serving, n.Terminating || e.Terminating
		if e.Hints != nil {
			n.ForZones, n.ForNodes = append(n.ForZones, e.Hints.Zones...), append(n.ForNodes, e.Hints.Nodes...)
		}
	}
	c.gatherUnused(found, sl, port)
}

// gatherUnused records addresses of a slice that get no packets.
func (c *portExplainer) gatherUnused(found map[netip.AddrPort]*named, sl *cluster.Slice, port uint16) {
	for _, a := range sl.Unused {
		at := netip.AddrPortFrom(a, port)
		switch {
		case found[at] != nil: // it is the first one of another endpoint
		case c.room == 0:
			c.port.MoreEndpoints++
		default:
			c.room--
			found[at] = c.name(at)
			found[at].Entries, found[at].second = 1, true
		}
	}
}

// add lists a judged endpoint, and counts it in its sets.
func (p *ExplainedPort) add(e ExplainedEndpoint) {
	if e.InCluster {
		e.In = append(e.In, lb.Cluster.String())
		p.InCluster++
	}
	if e.InLocal {
		e.In = append(e.In, lb.Local.String())
		p.InLocal++
	}
	e.Why = e.WhyNotCluster
	if e.WhyNotLocal != e.Why && e.WhyNotLocal != "" {
		e.Why = strings.TrimPrefix(e.Why+"; "+e.WhyNotLocal, "; ")
	}
	p.Endpoints = append(p.Endpoints, e)
}

// place records an entry's node and zone. Of several entries the first counts, but one on this node
// comes before all others (SV-32).
func (e *ExplainedEndpoint) place(at cluster.Place, node *cluster.Facts) {
	here := node.NodeName != "" && at.Node == node.NodeName
	if e.Node == "" || here && e.Node != node.NodeName {
		if e.Node != "" {
			e.Zone = "" // of another node
		}
		e.Node, e.Zone = at.Node, cmp.Or(at.Zone, e.Zone)
	}
	e.Zone = cmp.Or(e.Zone, at.Zone)
	e.SameZone = e.Zone != "" && node.Node != nil && e.Zone == node.Node.Zone
}

// out records that an endpoint is in no set.
func (e *ExplainedEndpoint) out(p *ExplainedPort, why string) {
	if p.Cluster {
		e.WhyNotCluster = why
	}
	if p.Local {
		e.WhyNotLocal = why
	}
}

// judge records the sets of a candidate.
func (c *portExplainer) judge(e *ExplainedEndpoint, is *candidate) {
	if is.avoided != reached {
		e.Unreachable = is.avoided.String()
	}
	e.InCluster, e.InLocal = c.port.Cluster && c.cluster.takes(is), c.port.Local && c.local.takes(is)
	if c.port.Cluster && !e.InCluster {
		switch {
		case !is.usable():
			e.WhyNotCluster = flowsOnly
		case !c.cluster.avoided && is.avoided != reached:
			e.WhyNotCluster = is.avoided.String()
		case !is.ready:
			e.WhyNotCluster = "terminating, while others are ready"
		case c.cluster.hints == thisNode:
			e.WhyNotCluster = "for other nodes, by its topology hints"
		default:
			e.WhyNotCluster = "for other zones, by its topology hints"
		}
	}
	if c.port.Local && !e.InLocal {
		switch {
		case !is.usable():
			e.WhyNotLocal = flowsOnly
		case is.local && !c.local.avoided && is.avoided != reached:
			e.WhyNotLocal = is.avoided.String()
		case is.local:
			e.WhyNotLocal = "terminating, while others on this node are ready"
		case e.Node == "":
			e.WhyNotLocal = "on no node that the API names"
		default:
			e.WhyNotLocal = "on another node"
		}
	}
}

// flowsOnly describes a state that the API does not foresee: such an endpoint only keeps its flows
// (DP-50).
const flowsOnly = "not ready, though said to serve"
