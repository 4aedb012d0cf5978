package planetest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kube-proxy/cluster"
	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

const (
	// townServices is how many Services there are at most.
	townServices = 8
	// townPort is the port at which pods serve the first Service. Each Service has another port, so
	// that an answer identifies the Service.
	townPort = 9000
	// outsiders is the number of further addresses of the client.
	outsiders = 12
)

// outside4 and outside6 have the outsiders.
var (
	outside4 = netip.MustParsePrefix("172.19.0.0/24")
	outside6 = netip.MustParsePrefix("fd00:19::/112")
)

// town makes Services at random, in a netlab whose every host can serve each of them.
type town struct {
	family lb.Family
	rnd    *rand.Rand
}

func (w *town) six() bool { return w.family == lb.IPv6 }

func (w *town) addr(v4, v6 string) netip.Addr {
	if w.six() {
		return netip.MustParseAddr(v6)
	}
	return netip.MustParseAddr(v4)
}

func (w *town) settings() policy.Settings {
	return policy.Settings{
		Family:        w.family,
		ClusterCIDRs:  []netip.Prefix{netlab.Cluster4, netlab.Cluster6},
		NodePortAddrs: policy.NodePortAddrs{Primary: true},
	}
}

func (w *town) facts() cluster.Facts {
	h, _ := netlab.HostByName(netlab.Node1)
	return cluster.Facts{
		NodeName: h.Name,
		Node: &cluster.Node{Name: h.Name, Addrs: []netip.Addr{h.V4, h.V6},
			PodCIDRs: []netip.Prefix{netlab.Node1Pods4, netlab.Node1Pods6}},
		CIDRs: []netip.Prefix{netlab.Service4, netlab.Service6},
	}
}

func (w *town) node() lb.Node { return policy.ResolveNode(w.facts(), w.settings()) }

// protoOf is the protocol of Service i.
func protoOf(i int) cluster.Protocol {
	if i%4 == 3 {
		return cluster.UDP
	}
	return cluster.TCP
}

// reform returns the frontends of Service i in a form that it did not have, or none.
func (w *town) reform(i int) (lb.Owner, []*lb.Frontend) {
	name := cluster.Name{Namespace: "town", Name: fmt.Sprintf("s%d", i)}
	if w.rnd.IntN(10) == 0 {
		return lb.Owner{Name: name.String(), Created: 1000}, nil
	}
	s := &cluster.Service{
		Name: name, Created: 1000 + int64(w.rnd.IntN(2)), Type: cluster.TypeLoadBalancer,
		ClusterIPs: []netip.Addr{w.addr(fmt.Sprintf("10.97.0.%d", i+1), fmt.Sprintf("fd00:10:96::2:%x", i+1))},
		Ports:      []cluster.ServicePort{{Name: "p", Protocol: protoOf(i), Port: 80, NodePort: uint16(30080 + i)}},
	}
	if w.rnd.IntN(3) > 0 {
		s.AffinitySeconds = 3600
	}
	if w.rnd.IntN(3) == 0 {
		s.ExternalPolicy = cluster.PolicyLocal
	}
	if w.rnd.IntN(2) == 0 {
		s.LoadBalancerIPs = []netip.Addr{w.addr(fmt.Sprintf("192.0.2.%d", i+1), fmt.Sprintf("2001:db8:2::%x", i+1))}
		if w.rnd.IntN(2) == 0 {
			s.SourceRanges = []netip.Prefix{netlab.LAN4, netlab.LAN6}
		}
	}
	if w.rnd.IntN(3) == 0 { // all claim the same address, and the next Service's cluster IP
		s.ExternalIPs = []netip.Addr{w.addr("198.51.100.7", "2001:db8:51::7"),
			w.addr(fmt.Sprintf("10.97.0.%d", (i+1)%townServices+1), fmt.Sprintf("fd00:10:96::2:%x", (i+1)%townServices+
				1))}
	}
	facts := w.facts()
	v := cluster.View{Name: name, Service: s, Slices: []*cluster.Slice{w.slice(i, name)}, Node: facts}
	return lb.Owner{Name: name.String(), Created: s.Created}, policy.Resolve(v, w.settings())
}

// slice has each host with some chance; one in eight slices is empty.
func (w *town) slice(i int, service cluster.Name) *cluster.Slice {
	s := &cluster.Slice{
		Name: service, Service: service, IPv6: w.six(),
		Ports: []cluster.SlicePort{{Name: "p", Protocol: protoOf(i), Port: uint16(townPort + i)}},
	}
	if w.rnd.IntN(8) == 0 {
		return s
	}
	for _, h := range netlab.Hosts() {
		// A node is the endpoint of a pod in the host's network.
		if h.Node == "" || w.rnd.IntN(5) > 1 || !h.Pod() && w.rnd.IntN(3) > 0 {
			continue
		}
		e := cluster.Endpoint{Addr: h.Addr(w.six()), Ready: true, Serving: true}
		if w.rnd.IntN(6) > 0 { // custom controllers forget it
			e.Where = cluster.At(h.Node, "")
		}
		s.Endpoints = s.Endpoints.With(e)
	}
	return s
}

// settle makes all hosts serve all Services, and gives the client many addresses.
func (w *town) settle(lab *field) error {
	for _, h := range netlab.Hosts() {
		if h.Node == "" {
			continue
		}
		for i := range townServices {
			proto := netlab.Proto(lb.Proto(protoOf(i)).String())
			if _, err := lab.lab.Listen(h.Name, proto, uint16(townPort+i)); err != nil {
				return err
			}
		}
	}
	client, _ := netlab.HostByName(netlab.Client)
	prefix := outside4
	if w.six() {
		prefix = outside6
	}
	err := lab.inHost(netlab.Client, func(h *netlink.Handle) error {
		for i := range outsiders {
			if err := hold(h, netip.PrefixFrom(w.outsider(i), prefix.Addr().BitLen()), true); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("give the client addresses: %w", err)
	}
	for _, node := range []string{netlab.Node1, netlab.Node2} {
		err := lab.inHost(node, func(h *netlink.Handle) error {
			link, err := h.LinkByName(netlab.Uplink)
			if err != nil {
				return err
			}
			return h.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(prefix),
				Gw: client.Addr(w.six()).AsSlice(), Table: unix.RT_TABLE_MAIN})
		})
		if err != nil {
			return fmt.Errorf("route %s on %s: %w", prefix, node, err)
		}
	}
	return nil
}

// caller is a sender: a host, and its source address if it has several.
type caller struct {
	host  string
	local netip.Addr
	class lb.From
}

// callers are those whose packets to Services meet the node.
func (w *town) callers() []caller {
	all := []caller{{"pod1", netip.Addr{}, lb.Pods}, {"pod2", netip.Addr{}, lb.Pods}, {"pod3", netip.Addr{}, lb.Pods},
		{netlab.Node1, netip.Addr{}, lb.Host}, {netlab.Client, netlab.Addr(netlab.Client, w.six()), lb.Anywhere}}
	for i := range outsiders {
		all = append(all, caller{netlab.Client, w.outsider(i), lb.Anywhere})
	}
	return all
}

func (w *town) outsider(i int) netip.Addr {
	return w.addr(fmt.Sprintf("172.19.0.%d", i+1), fmt.Sprintf("fd00:19::%x", i+1))
}
