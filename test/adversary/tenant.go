package adversary

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"

	"kube-proxy/cluster"
)

// Victims holds the targets among others that a tenant knows.
type Victims struct {
	// ClusterIPs and Pods are those of other tenants, of both families. Free are unused addresses
	// of the service network.
	ClusterIPs, Pods, Free []netip.Addr
	// Special are addresses of the node itself, or of all hosts.
	Special []netip.Addr
	// Node has the addresses of this node, NodeName is its name.
	Node     []netip.Addr
	NodeName string
	// Ports, NodePorts and Targets are those of other tenants: at their addresses, at the node's,
	// at their pods'.
	Ports, NodePorts, Targets []uint16
}

// Special returns addresses that no Service may have: it would take a node's traffic to itself, or
// that of its neighbours.
func Special() []netip.Addr {
	return addrs("0.0.0.0", "0.1.2.3", "127.0.0.1", "127.255.255.254", "169.254.169.254", "224.0.0.1",
		"239.255.255.250", "255.255.255.255",
		"::", "::1", "fe80::1", "ff02::1", "ff0e::fb", "::ffff:10.96.0.1", "::10.96.0.1")
}

func addrs(texts ...string) []netip.Addr {
	out := make([]netip.Addr, len(texts))
	for i, t := range texts {
		out[i] = netip.MustParseAddr(t)
	}
	return out
}

// Tenant writes objects in one namespace.
type Tenant struct {
	// Namespace is where the tenant has all rights.
	Namespace string
	// ClusterIP returns the addresses that the API server gives the tenant's Service of that
	// number.
	ClusterIP func(i int) []netip.Addr

	rnd     *rand.Rand
	victims Victims
}

// New returns a tenant whose actions the seed determines.
func New(namespace string, seed uint64, v Victims, clusterIP func(i int) []netip.Addr) *Tenant {
	return &Tenant{namespace, clusterIP, rand.New(rand.NewPCG(seed, 8)), v}
}

func (t *Tenant) one(in int) bool { return t.rnd.IntN(in) == 0 }

func pick[T any](t *Tenant, from []T) T { return from[t.rnd.IntN(len(from))] }

// services is the number of Services of a tenant, so that his changes meet earlier ones.
const services = 4

// Event writes or deletes an object.
func (t *Tenant) Event() cluster.Event {
	i := t.rnd.IntN(services)
	switch t.rnd.IntN(10) {
	case 0:
		return cluster.ServiceGone{Name: t.name(i)}
	case 1:
		return cluster.SliceGone{Name: t.sliceName(i, t.rnd.IntN(3))}
	case 2, 3, 4, 5:
		return cluster.ServiceSet{Service: t.Service(i)}
	}
	return cluster.SliceSet{Slice: t.Slice(i, t.rnd.IntN(3))}
}

// Leave deletes all that the tenant may have written.
func (t *Tenant) Leave() (out []cluster.Event) {
	for i := range services {
		out = append(out, cluster.ServiceGone{Name: t.name(i)})
		for k := range 3 {
			out = append(out, cluster.SliceGone{Name: t.sliceName(i, k)})
		}
	}
	return out
}

func (t *Tenant) name(i int) cluster.Name {
	names := []string{"a", strings.Repeat("s", 63), "web", "kubernetes"}
	return cluster.Name{Namespace: t.Namespace, Name: names[i%len(names)]}
}

func (t *Tenant) sliceName(i, k int) cluster.Name {
	return cluster.Name{Namespace: t.Namespace, Name: fmt.Sprintf("%.240s-%d-%d", t.name(i).Name, i, k)}
}

// addr is an address to claim, or to name as an endpoint.
func (t *Tenant) addr() netip.Addr {
	v := &t.victims
	switch t.rnd.IntN(8) {
	case 0:
		if len(v.Special) > 0 {
			return pick(t, v.Special)
		}
	case 1, 2:
		return pick(t, v.ClusterIPs)
	case 3:
		return pick(t, v.Free)
	case 4:
		return pick(t, v.Pods)
	case 5:
		return pick(t, v.Node)
	case 6: // an address of the Internet that all tenants claim
		return pick(t, addrs("192.0.2.7", "198.51.100.7", "2001:db8::7"))
	}
	return netip.AddrFrom4([4]byte{byte(t.rnd.IntN(256)), byte(t.rnd.IntN(256)), byte(t.rnd.IntN(256)),
		byte(t.rnd.IntN(256))})
}

func (t *Tenant) addrs(most int) (out []netip.Addr) {
	for range t.rnd.IntN(most + 1) {
		out = append(out, t.addr())
	}
	return out
}

func (t *Tenant) port() uint16 {
	switch t.rnd.IntN(6) {
	case 0:
		return pick(t, []uint16{0, 1, 65535})
	case 1:
		return uint16(t.rnd.IntN(1 << 16))
	}
	return pick(t, t.victims.Ports)
}

func (t *Tenant) nodePort() uint16 {
	switch t.rnd.IntN(6) {
	case 0:
		return 0
	case 1: // of a program of the node
		return pick(t, []uint16{1, 22, 6443, 10250, 10256, 65535})
	}
	return pick(t, t.victims.NodePorts)
}

var protocols = []cluster.Protocol{cluster.TCP, cluster.TCP, cluster.UDP, cluster.SCTP}

// Service is the tenant's Service i in one of its forms.
func (t *Tenant) Service(i int) *cluster.Service {
	s := &cluster.Service{
		Name:            t.name(i),
		Created:         pick(t, []int64{0, 1, 1000, 1 << 40}),
		Type:            cluster.ServiceType(t.rnd.IntN(4)),
		ClusterIPs:      t.ClusterIP(i),
		ExternalIPs:     t.addrs(6),
		LoadBalancerIPs: t.addrs(4),
		InternalPolicy:  cluster.TrafficPolicy(t.rnd.IntN(2)),
		ExternalPolicy:  cluster.TrafficPolicy(t.rnd.IntN(2)),
		AffinitySeconds: pick(t, []int32{0, 0, 1, 10800, 86400, -1, 1 << 30}),
	}
	switch t.rnd.IntN(8) {
	case 0:
		s.ClusterIPs = nil // headless
	case 1:
		s.ClusterIPs = s.ClusterIPs[:1]
	}
	s.HealthCheckNodePort = t.nodePort()
	s.PreserveDestination = t.rnd.IntN(4) == 0
	for range t.rnd.IntN(5) {
		s.SourceRanges = append(s.SourceRanges, t.prefix())
	}
	for p := range 1 + t.rnd.IntN(6) {
		s.Ports = append(s.Ports, cluster.ServicePort{Name: t.portName(p), Protocol: pick(t, protocols), Port: t.port(),
			NodePort: t.nodePort()})
	}
	return s
}

// prefix returns a source range: of all addresses, of one, of a victim.
func (t *Tenant) prefix() netip.Prefix {
	a := t.addr()
	p, err := a.WithZone("").Prefix(pick(t, []int{0, 1, 8, 24, a.BitLen()}))
	if err != nil {
		return netip.Prefix{}
	}
	return p
}

// portName is seldom missing, and never repeated.
func (t *Tenant) portName(p int) string {
	if p == 0 && t.one(4) {
		return ""
	}
	return fmt.Sprintf("p%d", p)
}

// Slice is slice k of Service i in one of its forms.
func (t *Tenant) Slice(i, k int) *cluster.Slice {
	s := &cluster.Slice{Name: t.sliceName(i, k), Service: t.name(i), IPv6: t.one(2)}
	if t.one(10) { // the label names another Service, which may not exist
		s.Service = t.name(t.rnd.IntN(2 * services))
	}
	for p := range 1 + t.rnd.IntN(6) {
		s.Ports = append(s.Ports, cluster.SlicePort{Name: t.portName(p), Protocol: pick(t, protocols),
			Port: pick(t, append([]uint16{0}, t.victims.Targets...))})
	}
	n := t.rnd.IntN(6)
	if t.one(50) {
		n = 1000
	}
	endpoints := make([]cluster.Endpoint, n)
	for j := range endpoints {
		endpoints[j] = t.endpoint(s.IPv6)
	}
	s.Endpoints = cluster.EndpointsOf(endpoints...)
	return s
}

// endpoint is a pod of another tenant, the node, or a special address; now and then without a
// node's name.
func (t *Tenant) endpoint(six bool) cluster.Endpoint {
	e := cluster.Endpoint{Ready: !t.one(5), Serving: !t.one(3), Terminating: t.one(4)}
	for range 20 {
		e.Addr = t.addr()
		if e.Addr.Is6() == six {
			break
		}
	}
	switch t.rnd.IntN(4) {
	case 0:
	case 1:
		e.Where = cluster.At(strings.Repeat("n", 253), strings.Repeat("z", 63))
	default:
		e.Where = cluster.At(t.victims.NodeName, "<script>")
	}
	if t.one(4) {
		e.Hints = &cluster.Hints{Zones: []string{pick(t, []string{"", "a", strings.Repeat("z", 63)})},
			Nodes: []string{t.victims.NodeName}}
	}
	return e
}
