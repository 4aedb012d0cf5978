//go:build linux

package ipvs

import (
	"net/netip"
	"testing"

	"kube-proxy/lb"
)

// firstLab has a pod's address that tenant/a may claim, on a node whose detector cannot recognise
// pods.
type firstLab struct {
	served
	pod           netip.Addr
	with, without lb.Node // nodes with and without pod networks
}

func newFirstLab(t *testing.T) *firstLab {
	d := &firstLab{served: newServed(t)}
	d.pod = d.Addr(100, 5)
	d.with, d.without = d.table.Node, d.table.Node
	d.without.Pods = lb.Detector{}
	d.table.Node = d.without
	d.restart()
	return d
}

// claim makes tenant/a claim the pod's address.
func (d *firstLab) claim(kind lb.Kind, created int64) {
	d.Helper()
	d.apply(lb.Owner{Name: "tenant/a", Created: created},
		[]*lb.Frontend{{Key: lb.Key{Addr: d.pod, Port: 8080, Proto: lb.TCP}, Service: "tenant/a:p", Kind: kind,
			Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Reject}}}})
}

// backend adds the pod to the endpoints of ns/svc-1.
func (d *firstLab) backend(created int64) {
	d.Helper()
	owner, fronts := d.ClusterIP(1, 4, 3)
	owner.Created = created
	d.apply(owner, fronts)
}

// bound checks that kube-ipvs0 has the pod's address, and whether ns/svc-1 has a real server there;
// the other must not.
func (d *firstLab) bound(when string, want, real bool) {
	d.Helper()
	_, named := d.sets[setIPs.name(lb.IPv4)].members[member{addr: d.pod}.wire(mark{})]
	if is := d.devs[lb.IPv4].addrs[d.pod]; is != want || named != want {
		d.Errorf("%s: kube-ipvs0 has the address %t, KUBE-IPVS-IPS %t, want %t", when, is, named, want)
	}
	has := false
	for _, v := range d.ipvs.State() {
		for _, s := range v.Destinations {
			has = has || s.Addr.Addr() == d.pod && s.Weight > 0
		}
	}
	if has != real {
		d.Errorf("%s: there is a real server at the address: %t, want %t", when, has, real)
	}
	if left, err := d.p.Audit(d.Context(), true); left != 0 || err != nil {
		d.Errorf("%s: an audit repairs %d, %v", when, left, err)
	}
}

// A provisional address that is also an endpoint's stays with its first owner while that Service
// has it, also over restarts. A slice does not take an external or load-balancer address from
// another Service, nor does a Service take a pod's address (TN-61). No virtual server has a real
// server at a bound address (TN-62).
func TestFirstKeepsTheAddress(t *testing.T) {
	d := newFirstLab(t)
	for _, kind := range []lb.Kind{lb.ExternalIP, lb.LoadBalancer} {
		for _, restart := range []func(){func() {}, d.restart} {
			d.claim(kind, 9)
			restart()
			d.bound("no endpoint's", true, false)
			d.backend(1)
			d.bound("provisional, then a backend's", true, false)
			restart()
			d.bound("provisional, then a backend's, later", true, false)
			d.apply(d.ClusterIP(2, 5, 1))
			d.bound("provisional, then two backends'", true, false)
			d.apply(lb.Owner{Name: "tenant/a"}, nil)
			d.bound("only the backends'", false, true)
			restart()
			d.claim(kind, 0)
			d.bound("a backend's, then provisional", false, true)
			restart()
			d.bound("a backend's, then provisional, later", false, true)
			d.apply(lb.Owner{Name: "ns/svc-1"}, nil)
			restart()
			d.bound("another backend's, then provisional", false, true)
			d.apply(lb.Owner{Name: "ns/svc-2"}, nil)
			d.bound("only provisional", true, false)
			d.apply(d.ClusterIP(2, 5, 1))
			d.bound("provisional, then a backend's again", true, false)
			d.apply(lb.Owner{Name: "ns/svc-2"}, nil)
			for _, n := range []lb.Node{d.with, d.without} {
				must(d, d.p.SetNode(d.Context(), n))
				d.bound("some pod's, by the node's prefixes, or no endpoint's", n.Pods.IsZero(), false)
			}
			d.apply(lb.Owner{Name: "tenant/a"}, nil)
			d.bound("no endpoint's again", false, false)
		}
	}
}

// On a new node the older Service gets the address, as it would get a key (TN-61).
func TestOlderHasTheAddress(t *testing.T) {
	for _, older := range []bool{false, true} {
		d := newFirstLab(t)
		d.table.Replace(lb.Owner{Name: "ns/svc-1", Created: 5}, second(d.ClusterIP(1, 4, 3)))
		created := int64(9)
		if older {
			created = 1
		}
		d.claim(lb.ExternalIP, created)
		d.lab = newLab(t)
		d.restart()
		d.bound("on a fresh node", older, !older)
	}
}

func second[A, B any](_ A, b B) B { return b }

// A cluster IP is bound whatever the endpoints are. No address of the service network has a real
// server, whether the network is known or not. It has one again when it belongs to no Service and
// is outside of the network (TN-62).
func TestEndpointsAtClusterIPs(t *testing.T) {
	d := newFirstLab(t)
	d.backend(1)
	d.claim(lb.ClusterIP, 9)
	d.bound("an endpoint that becomes a cluster IP", true, false)
	d.restart()
	d.bound("a restart later", true, false)
	d.apply(lb.Owner{Name: "tenant/a"}, nil)
	d.bound("no cluster IP any more", false, true)
	node := d.without
	node.ServiceCIDRs = append(node.ServiceCIDRs, netip.PrefixFrom(d.pod, 24).Masked())
	for _, n := range []lb.Node{node, d.without} {
		must(t, d.p.SetNode(t.Context(), n))
		d.bound("of a service network, or not", false, len(n.ServiceCIDRs) == 1)
	}
}

// An external IP that equals one of the Service's own endpoints, such as a node whose network the
// pods share, is not bound on other nodes.
func TestExternalIPOfTheServicesOwnEndpoint(t *testing.T) {
	d := newFirstLab(t)
	row := &lb.Frontend{Key: lb.Key{Addr: d.pod, Port: 8080, Proto: lb.TCP}, Service: "ns/svc-1:http",
		Kind: lb.ExternalIP, Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Reject}}}
	d.apply(lb.Owner{Name: "ns/svc-1"}, []*lb.Frontend{row})
	d.bound("before there are endpoints", true, false)
	with := *row
	_, fronts := d.ClusterIP(1, 4, 3)
	with.Routes = fronts[0].Routes
	d.apply(lb.Owner{Name: "ns/svc-1"}, []*lb.Frontend{&with})
	d.bound("with an endpoint there", false, true)
	d.restart()
	d.bound("a restart later", false, true)
}

// The address of an API server is not bound for a Service that names it, in any order; a cluster IP
// is (TN-66).
func TestAddressOfAnAPIServer(t *testing.T) {
	d := newFirstLab(t)
	node := d.without
	node.APIServers = []netip.Addr{d.pod}
	set := func(n lb.Node) {
		t.Helper()
		d.table.Node = n
		must(t, d.p.SetNode(t.Context(), n))
	}
	for _, kind := range []lb.Kind{lb.ExternalIP, lb.LoadBalancer, lb.ClusterIP} {
		d.claim(kind, 1)
		d.bound("no endpoint's", true, false)
		set(node)
		d.bound("an API server's", kind == lb.ClusterIP, false)
		d.restart()
		d.bound("an API server's, after a restart", kind == lb.ClusterIP, false)
		d.apply(lb.Owner{Name: "tenant/a"}, nil)
		d.claim(kind, 1)
		d.bound("an API server's before", kind == lb.ClusterIP, false)
		set(d.without)
		d.bound("no API server's any more", true, false)
		d.apply(lb.Owner{Name: "tenant/a"}, nil)
	}
}
