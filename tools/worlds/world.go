package main

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
)

// world is a cluster of network namespaces with a proxy, what other programs did to its nodes, and
// connections. It is a function of seed, round and modes.
type world struct {
	seed, round uint64
	mode        string
	// bridge joins the pods of a node in a bridge; flat gives pods a route to each other over it,
	// as most bridge plugins do.
	bridge, flat bool
	flags        []string // of the proxy
	services     []service
	mutations    []mutation
	queries      []query
}

// mutation is one change of a host by a program other than kube-proxy.
type mutation struct {
	kind string // the cause in the summary
	host string
	do   string // a shell script; $CLIENT is the path of the client's namespace
}

// query is a connection, and the question about it.
type query struct {
	from  string // a host
	as    string // another address of that host, "" for its own
	to    netip.AddrPort
	udp   bool
	port  uint16 // the client's port, 0 for any
	in    string // --in, "" for none
	about string // the Service and the kind of its address
}

func (q query) proto() string {
	if q.udp {
		return "udp"
	}
	return "tcp"
}

// source is the client's address.
func (q query) source() netip.Addr {
	if q.as != "" {
		return netip.MustParseAddr(q.as)
	}
	return addressOf(q.from, q.to.Addr().Is6())
}

// args are the arguments of "kube-proxy trace".
func (q query) args() []string {
	src := q.source().String()
	switch {
	case q.from == "node1":
		src = "node"
	case q.port != 0:
		src = netip.AddrPortFrom(q.source(), q.port).String()
	}
	args := []string{src, q.to.String() + "/" + q.proto()}
	if q.in != "" {
		args = append(args, "--in", q.in)
	}
	return args
}

func (q query) String() string {
	return fmt.Sprintf("%s: kube-proxy trace %s (%s)", q.from, strings.Join(q.args(), " "), q.about)
}

// service is a Service of both families with a TCP and a UDP port.
type service struct {
	name     string
	number   int // the last byte of its addresses
	kind     string
	port     uint16
	target   uint16
	affinity bool
	external bool // an external IP
	ranges   bool // loadBalancerSourceRanges without most clients
	etp, itp string
	backends []backend
}

type backend struct {
	host  string
	ready bool
}

func (s service) nodePort() uint16 { return uint16(30000 + s.number) }

func (s service) address(prefix4, prefix6 string, six bool) netip.Addr {
	if six {
		return netip.MustParseAddr(fmt.Sprintf("%s%d", prefix6, s.number))
	}
	return netip.MustParseAddr(fmt.Sprintf("%s%d", prefix4, s.number))
}

func (s service) clusterIP(six bool) netip.Addr { return s.address("10.96.0.", "fd00:10:96::", six) }
func (s service) balancer(six bool) netip.Addr  { return s.address("192.0.2.", "2001:db8:2::", six) }
func (s service) externalIP(six bool) netip.Addr {
	return s.address("198.51.100.", "2001:db8:51::", six)
}

// manifest is the Service with its EndpointSlices.
func (s service) manifest() string {
	var b strings.Builder
	node := ""
	if s.kind != "ClusterIP" {
		node = fmt.Sprintf(", nodePort: %d", s.nodePort())
	}
	fmt.Fprintf(&b, "kind: Service\nmetadata: {name: %s, namespace: lab}\nspec:\n  type: %s\n", s.name, s.kind)
	fmt.Fprintf(&b, "  clusterIP: %[1]s\n  clusterIPs: [%[1]s, %[2]q]\n", s.clusterIP(false), s.clusterIP(true))
	b.WriteString("  ipFamilies: [IPv4, IPv6]\n  ipFamilyPolicy: RequireDualStack\n")
	if s.affinity {
		b.WriteString("  sessionAffinity: ClientIP\n")
	}
	if s.etp != "" {
		fmt.Fprintf(&b, "  externalTrafficPolicy: %s\n", s.etp)
	}
	if s.itp != "" {
		fmt.Fprintf(&b, "  internalTrafficPolicy: %s\n", s.itp)
	}
	if s.external {
		fmt.Fprintf(&b, "  externalIPs: [%s, %q]\n", s.externalIP(false), s.externalIP(true))
	}
	if s.ranges {
		b.WriteString("  loadBalancerSourceRanges: [203.0.113.0/24, \"2001:db8:77::/64\"]\n")
	}
	fmt.Fprintf(&b, "  ports:\n  - {name: tcp, port: %d%s}\n  - {name: udp, port: %d, protocol: UDP%s}\n", s.port,
		node,
		s.port, node)
	if s.kind == "LoadBalancer" {
		fmt.Fprintf(&b, "status: {loadBalancer: {ingress: [{ip: %s}, {ip: %q}]}}\n", s.balancer(false),
			s.balancer(true))
	}
	for _, six := range []bool{false, true} {
		var list []string
		for _, e := range s.backends {
			list = append(list, fmt.Sprintf("{addresses: [%q], nodeName: %s, conditions: {ready: %t}}",
				addressOf(e.host, six), nodeOf(e.host), e.ready))
		}
		family := "IPv4"
		if six {
			family = "IPv6"
		}
		fmt.Fprintf(&b, "---\nkind: EndpointSlice\nmetadata: {name: %[1]s-%[4]s, namespace: lab, "+
			"labels: {kubernetes.io/service-name: %[1]s}}\naddressType: %[2]s\n"+
			"ports: [{name: tcp, port: %[5]d}, {name: udp, port: %[5]d, protocol: UDP}]\nendpoints: [%[3]s]\n",
			s.name, family, strings.Join(list, ", "), strings.ToLower(family), s.target)
	}
	return b.String()
}

// nodes are the Node objects.
const nodes = `kind: Node
metadata: {name: node1}
spec: {podCIDRs: [10.1.1.0/24, "fd00:10:1:1::/64"]}
status: {addresses: [{type: InternalIP, address: 172.18.0.2}, {type: InternalIP, address: "fd00:18::2"}]}
---
kind: Node
metadata: {name: node2}
spec: {podCIDRs: [10.1.2.0/24, "fd00:10:1:2::/64"]}
status: {addresses: [{type: InternalIP, address: 172.18.0.3}, {type: InternalIP, address: "fd00:18::3"}]}
`

// Ports of the pods. Nothing listens at deaf.
const (
	served = 8080
	stolen = 9999 // where rules of other programs lead connections
	deaf   = 7777
)

// maker makes a world at random.
type maker struct {
	*rand.Rand
	w *world
}

// newWorld makes the world of a round.
func newWorld(seed, round uint64, modes []string) *world {
	w := &world{seed: seed, round: round}
	m := maker{rand.New(rand.NewPCG(seed, round)), w}
	w.mode = modes[round%uint64(len(modes))]
	w.bridge = m.IntN(5) < 2
	w.flat = w.bridge && m.IntN(2) == 0
	m.proxy()
	for number := 10; number < 14; number++ {
		w.services = append(w.services, m.service(number))
	}
	for range 8 {
		w.queries = append(w.queries, m.query())
	}
	for range []int{0, 1, 1, 1, 1, 1, 2, 2, 2, 3, 4}[m.IntN(11)] {
		w.mutations = append(w.mutations, m.mutation())
	}
	return w
}

// proxy chooses flags of the proxy.
func (m maker) proxy() {
	w := m.w
	if m.IntN(6) > 0 {
		w.flags = append(w.flags, "--cluster-cidr=10.1.0.0/16,fd00:10:1::/48")
	}
	if m.IntN(8) == 0 {
		w.flags = append(w.flags, "--masquerade-all")
	}
	switch m.IntN(4) {
	case 0:
		w.flags = append(w.flags, "--nodeport-addresses=172.18.0.0/24,fd00:18::/64")
	case 1:
		w.flags = append(w.flags, "--nodeport-addresses=0.0.0.0/0,::/0")
	}
}

// service makes one of the usual kinds.
func (m maker) service(number int) service {
	s := service{name: fmt.Sprintf("s%d", number), number: number, port: 80, target: served}
	s.kind = pick(m, "ClusterIP", "ClusterIP", "NodePort", "LoadBalancer")
	s.affinity, s.external = m.IntN(6) == 0, m.IntN(5) == 0
	if m.IntN(12) == 0 {
		s.target = deaf
	}
	if s.kind != "ClusterIP" && m.IntN(3) == 0 {
		s.etp = "Local"
	}
	if m.IntN(8) == 0 {
		s.itp = "Local"
	}
	s.ranges = s.kind == "LoadBalancer" && m.IntN(3) == 0
	hosts := []string{"pod1", "pod2", "pod2", "pod3", "pod4", "pod5", "node1", "node2"}
	m.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
	for _, h := range hosts[:[]int{0, 1, 1, 1, 2, 2, 3}[m.IntN(7)]] {
		if !slices.ContainsFunc(s.backends, func(b backend) bool { return b.host == h }) {
			s.backends = append(s.backends, backend{h, m.IntN(8) > 0})
		}
	}
	return s
}

// query makes a connection to an address of a Service.
func (m maker) query() query {
	s := m.w.services[m.IntN(len(m.w.services))]
	six := m.IntN(3) == 0
	q := query{udp: m.IntN(3) == 0, from: pick(m, "pod1", "pod1", "pod2", "pod3", "node1", "client", "client")}
	kinds := []string{"cluster IP"}
	if s.kind != "ClusterIP" {
		kinds = append(kinds, "NodePort", "NodePort")
	}
	if s.kind == "LoadBalancer" {
		kinds = append(kinds, "load balancer")
	}
	if s.external {
		kinds = append(kinds, "external IP")
	}
	kind := kinds[m.IntN(len(kinds))]
	q.about = s.name + ", " + kind
	switch kind {
	case "NodePort":
		q.to = netip.AddrPortFrom(addressOf("node1", six), s.nodePort())
		if m.IntN(6) == 0 {
			q.from = "pod4" // of the other node
		}
		if q.from == "node1" && !six && m.IntN(4) == 0 {
			q.to = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), s.nodePort())
		}
	case "load balancer":
		q.to = netip.AddrPortFrom(s.balancer(six), s.port)
	case "external IP":
		q.to = netip.AddrPortFrom(s.externalIP(six), s.port)
	default:
		q.to = netip.AddrPortFrom(s.clusterIP(six), s.port)
	}
	if q.from != "node1" && m.IntN(3) == 0 {
		q.port = uint16(20000 + m.IntN(8000))
	}
	return q
}

// pick returns one of all.
func pick[T any](m maker, all ...T) T { return all[m.IntN(len(all))] }
