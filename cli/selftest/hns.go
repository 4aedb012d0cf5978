package selftest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"kube-proxy/lb"
	"kube-proxy/plane/hns"
)

// Documentation addresses (RFC 5737), which no machine has.
var (
	pod     = netip.MustParseAddr("192.0.2.1")
	absent  = netip.MustParseAddr("192.0.2.250")
	vip     = netip.MustParseAddr("198.51.100.1")
	unknown = "00000000-0000-0000-0000-00000000fade"
)

// hnsNode is the HNS of this machine and the objects of the test.
type hnsNode struct {
	*run
	net       hns.Network
	features  hns.Features
	endpoints map[netip.Addr]hns.Endpoint
	echoes    map[string]echo // of step 7, by name
	// spurious is the number of deletes that failed without a reason.
	deletes, spurious int
}

// onHNS returns the steps with HNS, and a function that deletes their endpoints.
func (r *run) onHNS() (steps []func(context.Context) bool, end func(context.Context)) {
	n := &hnsNode{run: r, endpoints: map[netip.Addr]hns.Endpoint{}}
	steps = []func(context.Context) bool{n.version, n.network, n.roundTrip, n.refusals, n.balancers, n.measure,
		n.dataPath, n.restart, r.service}
	return steps, func(ctx context.Context) {
		var err error
		for _, e := range n.endpoints {
			err = errors.Join(err, n.remove(ctx, e.ID, n.HNS.DeleteEndpoint))
		}
		n.check("endpoints-deleted", "the endpoints of the test are deleted", err)
	}
}

// version is step 1.
func (n *hnsNode) version(ctx context.Context) bool {
	n.node(ctx)
	f, err := n.HNS.Features(ctx)
	if err == nil && !f.V2 {
		err = errors.New("no schema version 2: want Windows Server 2019 or later")
	}
	n.features = f
	n.answer("build", f.Build)
	n.answer("hns-version", f.Version)
	n.answer("features", f)
	if !n.Elevated {
		n.check("elevated", "this process has administrator rights", errors.New("run it as administrator or SYSTEM"))
	}
	return n.check("hns", "HNS answers", err)
}

// network is step 2.
func (n *hnsNode) network(ctx context.Context) bool {
	all, err := n.HNS.Networks(ctx, n.Plane.Network)
	if err == nil {
		err = errors.Join(hns.Missing(n.Plane, all)...)
	}
	usable := n.check("network", "one HNS network has this name, and has all that the proxy needs", err)
	if len(all) != 1 {
		return false
	}
	n.net = all[0]
	n.answer("network-settings", n.net)
	if n.overlay() {
		list, err := n.HNS.Endpoints(ctx, n.net.ID)
		if i := with(list, n.Plane.SourceVIP); err == nil && (i < 0 || list[i].Flags&hns.RemoteEndpoint != 0) {
			err = fmt.Errorf("%s has none: --source-vip names it, and the proxy creates it when it starts",
				n.Plane.SourceVIP)
		}
		n.check("source-vip", "the source VIP has a local endpoint", err)
	}
	return usable
}

func (n *hnsNode) overlay() bool { return strings.EqualFold(string(n.net.Type), string(hns.Overlay)) }

// with returns the index of the endpoint with an address, or -1.
func with(all []hns.Endpoint, a netip.Addr) int {
	return slices.IndexFunc(all, func(e hns.Endpoint) bool { return e.Has(a) })
}

// asked returns the plane's request for an endpoint, with a name that no proxy uses.
func (n *hnsNode) asked(a netip.Addr) (hns.Endpoint, error) {
	e, err := hns.EndpointOf(n.net, a)
	e.Name = "kube-proxy-selftest " + a.String()
	return e, err
}

// endpoint returns the endpoint of an address, and creates it once.
func (n *hnsNode) endpoint(ctx context.Context, a netip.Addr) (e hns.Endpoint, err error) {
	if e, ok := n.endpoints[a]; ok {
		return e, nil
	}
	want, err := n.asked(a)
	if err == nil {
		e, err = n.HNS.CreateEndpoint(ctx, want)
	}
	if err != nil { // a killed test may have left it
		all, _ := n.HNS.EndpointsAt(ctx, n.net.ID, a.String())
		if i := with(all, a); i >= 0 && all[i].Name == want.Name {
			e, err = all[i], nil
		}
	}
	if err == nil {
		n.endpoints[a] = e
	}
	return e, err
}

// remove deletes an object in up to three attempts.
func (n *hnsNode) remove(ctx context.Context, id string, by func(context.Context, string) error) (err error) {
	ctx = context.WithoutCancel(ctx) // an interrupted test leaves nothing behind
	for range 3 {
		n.deletes++
		if err = by(ctx, id); err == nil || errors.Is(err, hns.ErrNotFound) {
			return nil
		}
		n.spurious++
	}
	return fmt.Errorf("deleting it: %w", err)
}

// roundTrip is step 3.
func (n *hnsNode) roundTrip(ctx context.Context) bool {
	want, err1 := n.asked(pod)
	made, err2 := n.endpoint(ctx, pod)
	if !n.check("create", "HNS creates a remote endpoint", cmp.Or(err1, err2)) {
		return false
	}
	all, err := n.HNS.Endpoints(ctx, n.net.ID)
	i, added := with(all, pod), []string{}
	if err == nil && i < 0 {
		err = errors.New("no endpoint has the address")
	} else if err == nil {
		n.answer("endpoint-asked", want)
		n.answer("endpoint-shown", all[i])
		if e := all[i]; e.Name != want.Name || e.Flags != want.Flags || hns.ProviderOf(e) != hns.ProviderOf(want) {
			err = errors.New("name, flags or provider address differ")
		}
	}
	if n.check("list", "the list shows the endpoint as requested", err) {
		for _, p := range all[i].Policies {
			if p.Type != hns.PolicyProviderAddress {
				added = append(added, p.Type)
			}
		}
		n.answer("policies-added", added)
	}
	present, err1 := n.HNS.EndpointsAt(ctx, n.net.ID, pod.String())
	none, err2 := n.HNS.EndpointsAt(ctx, n.net.ID, absent.String())
	n.check("filtered", "HNS answers filtered lists", errors.Join(err1, err2))
	filter := "match"
	if len(none) > 0 {
		filter = "everything"
	} else if with(present, pod) < 0 {
		filter = "nothing"
	}
	n.answer("filter", filter)
	want.Name, want.MacAddress = want.Name+" twice", "02-13-00-00-00-01"
	double, err := n.HNS.CreateEndpoint(ctx, want)
	n.answer("duplicate-address", err == nil)
	if err == nil {
		n.check("duplicate-deleted", "the second endpoint is deleted", n.remove(ctx, double.ID, n.HNS.DeleteEndpoint))
	}
	delete(n.endpoints, pod)
	err = n.remove(ctx, made.ID, n.HNS.DeleteEndpoint)
	if all, failed := n.HNS.Endpoints(ctx, n.net.ID); failed != nil || with(all, pod) >= 0 {
		err = errors.Join(err, failed, fmt.Errorf("the list has %+v", all))
	}
	return n.check("delete", "the endpoint is deleted", err)
}

// balancer is a TCP load balancer; without a VIP it serves a NodePort.
func (n *hnsNode) balancer(vip netip.Addr, port uint16, endpoints ...string) hns.LoadBalancer {
	l := hns.LoadBalancer{HostComputeEndpoints: endpoints, SchemaVersion: hns.Version2,
		PortMappings: []hns.PortMapping{{Protocol: 6, InternalPort: echoPort, ExternalPort: port}}}
	if n.Plane.SourceVIP.IsValid() {
		l.SourceVIP = n.Plane.SourceVIP.String()
	}
	if vip.IsValid() {
		l.FrontendVIPs = []string{vip.String()}
	} else {
		l.PortMappings[0].Flags = hns.MappingLocalRoutedVIP
	}
	return l
}

// during calls f while a load balancer exists.
func (n *hnsNode) during(ctx context.Context, l hns.LoadBalancer, f func(made hns.LoadBalancer) error) error {
	made, err := n.HNS.CreateLoadBalancer(ctx, l)
	if err != nil {
		return err
	}
	return errors.Join(f(made), n.remove(ctx, made.ID, n.HNS.DeleteLoadBalancer))
}

// takes reports whether HNS accepts a load balancer, and answers the code if not.
func (n *hnsNode) takes(ctx context.Context, name string, l hns.LoadBalancer) bool {
	err := n.during(ctx, l, func(hns.LoadBalancer) error { return nil })
	n.code(name, err)
	return err == nil
}

// code answers the code of a refusal.
func (n *hnsNode) code(name string, err error) {
	var e *hns.Error
	if errors.As(err, &e) {
		n.answer("code/"+name, fmt.Sprintf("0x%x", e.Code))
	}
}

// refusals is step 4.
func (n *hnsNode) refusals(ctx context.Context) bool {
	e, err := n.endpoint(ctx, pod)
	l := n.balancer(vip, 80, e.ID)
	if err == nil {
		err = n.during(ctx, l, func(hns.LoadBalancer) error {
			twice, again := n.HNS.CreateLoadBalancer(ctx, l)
			n.refused("same-key", hns.ErrExists, again)
			if again == nil {
				return n.remove(ctx, twice.ID, n.HNS.DeleteLoadBalancer)
			}
			return nil
		})
	}
	if !n.check("load-balancer", "HNS creates and deletes a load balancer", err) {
		return false
	}
	n.refused("unknown-load-balancer", hns.ErrNotFound, n.HNS.DeleteLoadBalancer(ctx, unknown))
	n.refused("unknown-endpoint", hns.ErrNotFound, n.HNS.DeleteEndpoint(ctx, unknown))
	if l.SourceVIP != "" {
		l.SourceVIP = absent.String()
		n.answer("source-vip-endpoint", !n.takes(ctx, "source-vip-endpoint", l))
	}
	if s, err := net.Listen("tcp", ":0"); err == nil {
		n.answer("listener-conflict", !n.takes(ctx, "listener-conflict",
			n.balancer(vip, uint16(s.Addr().(*net.TCPAddr).Port), e.ID)))
		_ = s.Close() // no connection is open
	}
	var reserved [2]uint16
	for _, port := range []uint16{30000, 31000, 32000, 32700, 32767} {
		if !n.takes(ctx, fmt.Sprintf("port-%d", port), n.balancer(netip.Addr{}, port, e.ID)) {
			reserved = [2]uint16{cmp.Or(reserved[0], port), port}
		}
	}
	n.answer("reserved-ports", reserved)
	return true
}

// refused checks why HNS refused a call, and answers the code.
func (n *hnsNode) refused(name string, want, err error) {
	n.code(name, err)
	if errors.Is(err, want) {
		err = nil
	} else {
		err = fmt.Errorf("HNS answers %v", err)
	}
	n.check("refusal/"+name, "HNS refuses it: "+want.Error(), err)
}

// balancers is step 5.
func (n *hnsNode) balancers(ctx context.Context) bool {
	accepted := n.mappingFlags(ctx)
	for _, family := range []lb.Family{lb.IPv4, lb.IPv6} {
		if family == lb.IPv6 && !n.hasIPv6() {
			n.skip("shapes/IPv6", "this HNS or its network has no IPv6")
			continue
		}
		cfg := n.Plane
		cfg.Family = family
		all, err := hns.Shapes(cfg, n.net, n.features, accepted)
		n.check("shapes/"+family.String(), fmt.Sprintf("the plane writes %d kinds of load balancers", len(all)), err)
		for i, l := range all {
			m := l.PortMappings[0]
			claim := fmt.Sprintf("%v:%d/%s of %d endpoints, source %q, flags %d and %d, distribution %d: created, "+
				"shown as requested, modified, deleted",
				l.FrontendVIPs, m.ExternalPort, lb.Proto(m.Protocol), len(l.HostComputeEndpoints), l.SourceVIP, l.Flags,
				m.Flags, m.DistributionType)
			n.check(fmt.Sprintf("shape/%s/%d", family, i+1), claim, n.shape(ctx, l))
		}
	}
	n.answer("deletes-fail", n.deletes/max(1, n.spurious)*min(1, n.spurious))
	return true
}

// hasIPv6 reports whether the network has IPv6 endpoints.
func (n *hnsNode) hasIPv6() bool {
	return n.features.IPv6DualStack && slices.ContainsFunc(n.net.Ipams, func(i hns.Ipam) bool {
		return slices.ContainsFunc(i.Subnets, func(s hns.Subnet) bool {
			return strings.Contains(s.IPAddressPrefix, ":")
		})
	})
}

// mappingFlags returns the flags of port mappings that HNS accepts, each by itself.
func (n *hnsNode) mappingFlags(ctx context.Context) (accepted hns.PortMappingFlags) {
	e, err := n.endpoint(ctx, pod)
	for flag := hns.MappingILB; err == nil && flag <= hns.MappingVIPExternal; flag <<= 1 {
		l := n.balancer(vip, 80, e.ID)
		l.PortMappings[0].Flags = flag
		if n.features.DSR && (flag == hns.MappingUseMux || flag == hns.MappingPreserveDIP) {
			l.Flags = hns.FlagDSR
		}
		if n.takes(ctx, fmt.Sprintf("mapping-flag-%d", flag), l) {
			accepted |= flag
		}
	}
	n.answer("mapping-flags", accepted)
	return accepted
}

// shape creates a load balancer, reads it, replaces its endpoints and deletes it.
func (n *hnsNode) shape(ctx context.Context, l hns.LoadBalancer) error {
	var ids []string
	another := netip.MustParseAddr(l.HostComputeEndpoints[0]).Prev()
	for _, a := range append(l.HostComputeEndpoints, another.String()) {
		e, err := n.endpoint(ctx, netip.MustParseAddr(a))
		if err != nil {
			return err
		}
		ids = append(ids, e.ID)
	}
	last := len(ids) - 1
	l.HostComputeEndpoints = ids[:last]
	return n.during(ctx, l, func(made hns.LoadBalancer) error {
		l.ID = made.ID
		err := n.same(ctx, l)
		if err == nil && n.features.ModifyLoadbalancer {
			l.HostComputeEndpoints = ids[last:]
			if _, err = n.HNS.ModifyLoadBalancer(ctx, l); err == nil {
				err = n.same(ctx, l)
			}
		}
		return err
	})
}

// same compares a load balancer with the one in HNS.
func (n *hnsNode) same(ctx context.Context, want hns.LoadBalancer) error {
	all, err := n.HNS.LoadBalancers(ctx)
	i := slices.IndexFunc(all, func(l hns.LoadBalancer) bool { return strings.EqualFold(l.ID, want.ID) })
	if err != nil || i < 0 {
		return errors.Join(err, errors.New("the list does not contain it"))
	}
	have := all[i]
	have.ID, have.SchemaVersion = want.ID, want.SchemaVersion
	if hns.SameIDs(have.HostComputeEndpoints, want.HostComputeEndpoints) {
		have.HostComputeEndpoints = want.HostComputeEndpoints
	}
	if !reflect.DeepEqual(have, want) {
		return fmt.Errorf("HNS shows %+v, want %+v", have, want)
	}
	return nil
}

// largeCluster is the number of objects in HNS on a node of a large cluster.
const largeCluster = 10_000

// measure is step 6.
func (n *hnsNode) measure(ctx context.Context) bool {
	e, err := n.endpoint(ctx, pod)
	var made []string
	var lists []time.Duration
	for _, size := range n.Sizes {
		begun, before := time.Now(), len(made)
		for k := before; k < size && err == nil; k++ {
			var l hns.LoadBalancer
			frontend := netip.AddrFrom4([4]byte{198, 51, 100, byte(k%200 + 1)})
			if l, err = n.HNS.CreateLoadBalancer(ctx, n.balancer(frontend, uint16(1024+k/200), e.ID)); err == nil {
				made = append(made, l.ID)
			}
		}
		create := time.Since(begun) / time.Duration(size-before)
		begun = time.Now()
		if err == nil {
			_, err = n.HNS.LoadBalancers(ctx)
		}
		if err != nil {
			break
		}
		lists = append(lists, time.Since(begun))
		n.answer(fmt.Sprintf("list-ms/%d", size), millis(lists[len(lists)-1]))
		n.answer("call-ms", millis(create))
	}
	if err == nil {
		object := max(0, lists[len(lists)-1]-lists[0]) / time.Duration(max(1, len(made)-n.Sizes[0]))
		n.answer("object-ms", millis(object))
		if whole := lists[0] + object*largeCluster; whole > hns.FirstList {
			err = fmt.Errorf("projected: %s", whole)
		}
	}
	n.check("list-time", fmt.Sprintf("a list of %d objects would end within %s, the timeout", largeCluster,
		hns.FirstList), err)
	err = nil
	for _, id := range made {
		err = errors.Join(err, n.remove(ctx, id, n.HNS.DeleteLoadBalancer))
	}
	return n.check("deleted", "the load balancers are deleted", err)
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// restart is step 8.
func (n *hnsNode) restart(ctx context.Context) bool {
	if n.Restart == nil {
		return n.skip("restart", "use --disruptive to restart HNS; for a reboot or a new network compare transcripts "+
			"from before and after")
	}
	e, err := n.endpoint(ctx, pod)
	l := n.balancer(vip, 80, e.ID)
	if err == nil {
		err = n.during(ctx, l, func(made hns.LoadBalancer) error {
			l.ID = made.ID
			if err := n.Restart(ctx); err != nil {
				return err
			}
			return n.await(ctx, func() error {
				all, err := n.HNS.Networks(ctx, n.Plane.Network)
				if err == nil && (len(all) != 1 || all[0].ID != n.net.ID) {
					err = fmt.Errorf("another network: %+v", all)
				}
				return errors.Join(err, n.same(ctx, l))
			})
		})
	}
	return n.check("restart", "after a restart of HNS its network and load balancers are unchanged, so a Reset "+
		"changes nothing", err)
}
