package selftest

import (
	"cmp"
	"context"
	"encoding/json"
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

// Addresses of the documentation ranges (RFC 5737), which no machine has.
var (
	pod     = netip.MustParseAddr("192.0.2.1")
	absent  = netip.MustParseAddr("192.0.2.250")
	vip     = netip.MustParseAddr("198.51.100.1")
	unknown = "00000000-0000-0000-0000-00000000fade"
)

// hnsNode is the HNS of this machine, and what the test has made in it.
type hnsNode struct {
	*run
	net       hns.Network
	features  hns.Features
	endpoints map[netip.Addr]hns.Endpoint
	// deletes were made, of which so many failed for no reason.
	deletes, spurious int
}

// onHNS returns the steps with HNS, and the function that deletes their endpoints.
func (r *run) onHNS() (steps []func(context.Context) bool, end func(context.Context)) {
	n := &hnsNode{run: r, endpoints: map[netip.Addr]hns.Endpoint{}}
	steps = []func(context.Context) bool{n.version, n.network, n.roundTrip, n.refusals, n.balancers, n.measure, n.dataPath, n.restart, r.service}
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
		err = errors.New("it has no calls of schema version 2: want Windows Server 2019 or later")
	}
	n.features = f
	n.answer("build", f.Build)
	n.answer("features", f)
	return n.check("hns", "HNS answers", err)
}

// network is step 2.
func (n *hnsNode) network(ctx context.Context) bool {
	all, err := n.HNS.Networks(ctx, n.Plane.Network)
	if err == nil && len(all) != 1 {
		err = fmt.Errorf("%d networks have the name %q: --network-name", len(all), n.Plane.Network)
	}
	if !n.check("network", "there is one HNS network of this name", err) {
		return false
	}
	n.net = all[0]
	n.answer("network-settings", n.net)
	if !n.is(hns.Overlay) && !n.is(hns.L2Bridge) && !n.is(hns.L2Tunnel) {
		err = fmt.Errorf("it is of type %s", n.net.Type)
	}
	served := n.check("network-type", "its type is L2Bridge, L2Tunnel or Overlay", err)
	_, err = netip.ParseAddr(n.net.ManagementIP)
	n.check("management-ip", "it has this node's address as ManagementIP", err)
	_, err = net.ParseMAC(n.net.HostMAC)
	n.check("host-mac", "the interface with that address has a hardware address", err)
	if n.is(hns.Overlay) {
		list, err := n.HNS.Endpoints(ctx, n.net.ID)
		if i := with(list, n.Plane.SourceVIP); err == nil && (i < 0 || list[i].Flags&hns.RemoteEndpoint != 0) {
			err = fmt.Errorf("%s has none: --source-vip names it, and the proxy makes it when it starts", n.Plane.SourceVIP)
		}
		n.check("source-vip", "the source VIP has a local endpoint", err)
	}
	return served
}

func (n *hnsNode) is(t hns.NetworkType) bool { return strings.EqualFold(string(n.net.Type), string(t)) }

// with is the index of the endpoint with an address, -1 for none.
func with(all []hns.Endpoint, a netip.Addr) int {
	return slices.IndexFunc(all, func(e hns.Endpoint) bool {
		return slices.ContainsFunc(e.IPConfigurations, func(c hns.IPConfig) bool { return c.IPAddress == a.String() })
	})
}

// asked is an endpoint as the plane asks for it, with a name that no proxy uses.
func (n *hnsNode) asked(a netip.Addr) (hns.Endpoint, error) {
	e, err := hns.EndpointOf(n.net, a)
	e.Name = "kube-proxy-selftest " + a.String()
	return e, err
}

// endpoint returns the endpoint of an address, which it makes once.
func (n *hnsNode) endpoint(ctx context.Context, a netip.Addr) (e hns.Endpoint, err error) {
	if e, ok := n.endpoints[a]; ok {
		return e, nil
	}
	if e, err = n.asked(a); err == nil {
		e, err = n.HNS.CreateEndpoint(ctx, e)
	}
	if err == nil {
		n.endpoints[a] = e
	}
	return e, err
}

// remove deletes an object, and tries three times.
func (n *hnsNode) remove(ctx context.Context, id string, by func(context.Context, string) error) (err error) {
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
	if !n.check("create", "HNS makes a remote endpoint", cmp.Or(err1, err2)) {
		return false
	}
	all, err := n.HNS.Endpoints(ctx, n.net.ID)
	i, added := with(all, pod), []string{}
	if err == nil && (i < 0 || all[i].Name != want.Name || all[i].Flags != want.Flags || !strings.EqualFold(all[i].MacAddress, want.MacAddress)) {
		err = fmt.Errorf("want %+v, it has %+v", want, all)
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

// balancer is a load balancer of TCP as the test asks for it; without a VIP it is one of NodePorts.
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

// during makes a load balancer, calls f and deletes it.
func (n *hnsNode) during(ctx context.Context, l hns.LoadBalancer, f func(made hns.LoadBalancer) error) error {
	made, err := n.HNS.CreateLoadBalancer(ctx, l)
	if err != nil {
		return err
	}
	return errors.Join(f(made), n.remove(ctx, made.ID, n.HNS.DeleteLoadBalancer))
}

// takes reports whether HNS accepts a load balancer.
func (n *hnsNode) takes(ctx context.Context, l hns.LoadBalancer) bool {
	return n.during(ctx, l, func(hns.LoadBalancer) error { return nil }) == nil
}

// refusals is step 4.
func (n *hnsNode) refusals(ctx context.Context) bool {
	e, err := n.endpoint(ctx, pod)
	l := n.balancer(vip, 80, e.ID)
	if err == nil {
		err = n.during(ctx, l, func(hns.LoadBalancer) error {
			_, again := n.HNS.CreateLoadBalancer(ctx, l)
			n.refused("same-key", hns.ErrExists, again)
			return nil
		})
	}
	if !n.check("load-balancer", "HNS makes a load balancer and deletes it", err) {
		return false
	}
	n.refused("unknown-load-balancer", hns.ErrNotFound, n.HNS.DeleteLoadBalancer(ctx, unknown))
	n.refused("unknown-endpoint", hns.ErrNotFound, n.HNS.DeleteEndpoint(ctx, unknown))
	if l.SourceVIP != "" {
		l.SourceVIP = absent.String()
		n.answer("source-vip-endpoint", !n.takes(ctx, l))
	}
	if s, err := net.Listen("tcp", ":0"); err == nil {
		n.answer("listener-conflict", !n.takes(ctx, n.balancer(vip, uint16(s.Addr().(*net.TCPAddr).Port), e.ID)))
		_ = s.Close() // nobody connected
	}
	var reserved [2]uint16
	for _, port := range []uint16{30000, 31000, 32000, 32700, 32767} {
		if !n.takes(ctx, n.balancer(netip.Addr{}, port, e.ID)) {
			reserved = [2]uint16{cmp.Or(reserved[0], port), port}
		}
	}
	n.answer("reserved-ports", reserved)
	return true
}

// refused checks that HNS has refused a call for that reason, and answers the code.
func (n *hnsNode) refused(name string, want, err error) {
	var e *hns.Error
	if errors.As(err, &e) {
		n.answer("code/"+name, fmt.Sprintf("0x%x", e.Code))
	}
	if errors.Is(err, want) {
		err = nil
	} else {
		err = fmt.Errorf("HNS answers %v", err)
	}
	n.check("refusal/"+name, "HNS refuses it: "+want.Error(), err)
}

// shapes are the load balancers that the plane writes: of every kind, protocol and policy.
func (n *hnsNode) shapes(dsr bool) (all []hns.LoadBalancer, err error) {
	var table lb.Table
	table.Node = lb.Node{NodePorts: []netip.Prefix{netip.MustParsePrefix("192.0.2.200/32")}, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/28")}}
	for i, proto := range []lb.Proto{lb.TCP, lb.UDP} {
		name := "selftest/" + proto.String()
		here := lb.Backend{Addr: netip.MustParseAddrPort("192.0.2.11:8080"), Local: true}
		sets := []*lb.BackendSet{
			{ID: lb.SetID{Service: name, Proto: proto, Scope: lb.Cluster}, Backends: lb.BackendsOf(here, lb.Backend{Addr: netip.MustParseAddrPort("192.0.2.12:8080")})},
			{ID: lb.SetID{Service: name, Proto: proto, Scope: lb.Local}, Backends: lb.BackendsOf(here)},
		}
		var rows []*lb.Frontend
		for k, kind := range []lb.Kind{lb.ClusterIP, lb.ExternalIP, lb.LoadBalancer, lb.NodePort} {
			for scope, set := range sets {
				row := lb.Frontend{Service: name, Kind: kind, Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, Masq: scope == 0, To: set}}}
				for variant := range 2 {
					row.Key = lb.Key{Addr: netip.AddrFrom4([4]byte{198, 51, 100, byte(4*k + 2*scope + variant)}), Port: 80, Proto: proto}
					if kind == lb.NodePort {
						row.Key = lb.Key{Port: uint16(30590 + 4*i + 2*scope + variant), Proto: proto}
					}
					if variant == 1 && kind != lb.LoadBalancer {
						row.Affinity = time.Hour
					}
					row.PreserveDestination = variant == 1 && kind == lb.LoadBalancer
					one := row
					rows = append(rows, &one)
				}
			}
		}
		table.Replace(lb.Owner{Name: name}, rows)
	}
	cfg := n.Plane
	cfg.Family, cfg.DSR = lb.IPv4, dsr
	text, err := hns.Render(cfg, &table)
	var requests []struct {
		Call     string
		Settings hns.LoadBalancer
	}
	if err = errors.Join(err, json.Unmarshal(text, &requests)); err != nil {
		return nil, err
	}
	for _, q := range requests {
		if q.Call == "HcnCreateLoadBalancer" {
			all = append(all, q.Settings)
		}
	}
	return all, nil
}

// balancers is step 5.
func (n *hnsNode) balancers(ctx context.Context) bool {
	for _, dsr := range []bool{false, true} {
		if dsr && !n.features.DSR {
			n.skip("dsr", "this HNS has no DSR")
			continue
		}
		all, err := n.shapes(dsr)
		n.check(fmt.Sprintf("shapes/dsr-%t", dsr), fmt.Sprintf("the plane writes %d load balancers", len(all)), err)
		for _, l := range all {
			m := &l.PortMappings[0]
			if !n.features.SessionAffinity {
				m.DistributionType = hns.PerConnection
			}
			name := fmt.Sprintf("shape/dsr-%t/%s:%d/%d", dsr, strings.Join(l.FrontendVIPs, "+"), m.ExternalPort, m.Protocol)
			err := n.shape(ctx, l)
			if m.Flags&hns.MappingVIPExternal != 0 && errors.Is(err, hns.ErrInvalid) { // the plane does without
				m.Flags &^= hns.MappingVIPExternal
				err = n.shape(ctx, l)
			}
			n.check(name, fmt.Sprintf("flags %d and %d: created, shown as requested, modified, deleted", l.Flags, m.Flags), err)
		}
	}
	n.mappingFlags(ctx)
	n.answer("deletes-fail", n.deletes/max(1, n.spurious)*min(1, n.spurious))
	return true
}

// mappingFlags answers which flags HNS accepts, each by itself.
func (n *hnsNode) mappingFlags(ctx context.Context) {
	var taken hns.PortMappingFlags
	e, err := n.endpoint(ctx, pod)
	for flag := hns.MappingILB; err == nil && flag <= hns.MappingVIPExternal; flag <<= 1 {
		l := n.balancer(vip, 80, e.ID)
		l.PortMappings[0].Flags = flag
		if n.features.DSR && (flag == hns.MappingUseMux || flag == hns.MappingPreserveDIP) {
			l.Flags = hns.FlagDSR
		}
		if n.takes(ctx, l) {
			taken |= flag
		}
	}
	n.answer("mapping-flags", taken)
}

// shape makes a load balancer, reads it, gives it other endpoints and deletes it.
func (n *hnsNode) shape(ctx context.Context, l hns.LoadBalancer) error {
	l.HostComputeEndpoints = slices.Clone(l.HostComputeEndpoints)
	for i, id := range l.HostComputeEndpoints { // "endpoint ADDRESS" or "pod ADDRESS"
		e, err := n.endpoint(ctx, netip.MustParseAddr(id[strings.LastIndex(id, " ")+1:]))
		if err != nil {
			return err
		}
		l.HostComputeEndpoints[i] = e.ID
	}
	return n.during(ctx, l, func(made hns.LoadBalancer) error {
		l.ID = made.ID
		err := n.same(ctx, l)
		if err == nil && n.features.ModifyLoadbalancer {
			l.HostComputeEndpoints = l.HostComputeEndpoints[:1]
			if _, err = n.HNS.ModifyLoadBalancer(ctx, l); err == nil {
				err = n.same(ctx, l)
			}
		}
		return err
	})
}

// same compares a load balancer with the one of HNS.
func (n *hnsNode) same(ctx context.Context, want hns.LoadBalancer) error {
	all, err := n.HNS.LoadBalancers(ctx)
	i := slices.IndexFunc(all, func(l hns.LoadBalancer) bool { return strings.EqualFold(l.ID, want.ID) })
	if err != nil || i < 0 {
		return errors.Join(err, errors.New("the list does not have it"))
	}
	have := all[i]
	have.ID, have.SchemaVersion = want.ID, want.SchemaVersion
	have.HostComputeEndpoints, want.HostComputeEndpoints = sorted(have.HostComputeEndpoints), sorted(want.HostComputeEndpoints)
	if !reflect.DeepEqual(have, want) {
		return fmt.Errorf("HNS shows %+v, want %+v", have, want)
	}
	return nil
}

// sorted returns ids in order and in lower case, since HNS ignores their case.
func sorted(ids []string) []string {
	return slices.Sorted(slices.Values(strings.Fields(strings.ToLower(strings.Join(ids, " ")))))
}

// A node of a large cluster has so many objects, and a list of them must end in that time.
const (
	largeCluster = 10_000
	listTimeout  = 5 * time.Minute
)

// measure is step 6.
func (n *hnsNode) measure(ctx context.Context) bool {
	e, err := n.endpoint(ctx, pod)
	var made []string
	var lists []time.Duration
	for _, size := range n.Sizes {
		begun, before := time.Now(), len(made)
		for k := before; k < size && err == nil; k++ {
			var l hns.LoadBalancer
			l, err = n.HNS.CreateLoadBalancer(ctx, n.balancer(netip.AddrFrom4([4]byte{198, 51, 100, byte(k%200 + 1)}), uint16(1024+k/200), e.ID))
			made = append(made, l.ID)
		}
		create := time.Since(begun) / time.Duration(size-before)
		begun = time.Now()
		if err == nil {
			_, err = n.HNS.LoadBalancers(ctx)
		}
		lists = append(lists, time.Since(begun))
		n.answer(fmt.Sprintf("list-ms/%d", size), millis(lists[len(lists)-1]))
		n.answer("call-ms", millis(create))
	}
	object := max(0, lists[len(lists)-1]-lists[0]) / time.Duration(max(1, len(made)-n.Sizes[0]))
	n.answer("object-ms", millis(object))
	if whole := lists[0] + object*largeCluster; err == nil && whole > listTimeout {
		err = fmt.Errorf("it would take %s", whole)
	}
	n.check("list-time", fmt.Sprintf("a list of %d objects ends within %s", largeCluster, listTimeout), err)
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
		return n.skip("restart", "--disruptive restarts HNS; for a reboot or a new network, compare the transcripts of before and after")
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
					err = fmt.Errorf("the network is another: %+v", all)
				}
				return errors.Join(err, n.same(ctx, l))
			})
		})
	}
	return n.check("restart", "after a restart of HNS network and load balancers are as before, so that a Reset changes nothing", err)
}
