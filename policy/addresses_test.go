package policy_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

// SV-26, SV-13: which address is served for which use, and how the others are reported.
func TestAddressesSV26(t *testing.T) {
	const all, none = "cluster IP, load balancer, external, endpoint", ""
	for addr, want := range map[string]string{
		"192.0.2.1": all, "100.64.0.1": all, "172.18.0.2": all, "223.255.255.255": all, "1.0.0.0": all,
		"0.0.0.0": none, "0.1.2.3": none, "127.0.0.1": none, "127.255.0.9": none, "224.0.0.1": none, "239.1.1.1": none,
		"255.255.255.255": none,
		"169.254.169.254": "cluster IP", "240.0.0.1": "cluster IP, endpoint", "255.255.255.254": "cluster IP, endpoint",
		"2001:db8::1": all, "fd00::1": all, "64:ff9b::192.0.2.1": all, "64:ff9b::127.0.0.1": all, "fec0::1": all,
		"::": none, "::1": none, "::192.0.2.1": none, "::ffff:192.0.2.1": none, "fe80::1": none, "fe80::1%eth0": none,
		"ff02::1": none, "ff0e::1": none,
	} {
		a := netip.MustParseAddr(addr)
		s := policy.Settings{Family: lb.FamilyOf(a)}
		service, slice, usual := uses(a)
		var served []string
		for _, use := range []struct {
			name, field string
			set         func(*cluster.Service, *cluster.Slice)
		}{
			{"cluster IP", "spec.clusterIPs", func(svc *cluster.Service, _ *cluster.Slice) {
				svc.ClusterIPs = []netip.Addr{a}
			}},
			{"load balancer", "status.loadBalancer.ingress", func(svc *cluster.Service, _ *cluster.Slice) {
				svc.LoadBalancerIPs = []netip.Addr{a}
			}},
			{"external", "spec.externalIPs", func(svc *cluster.Service, _ *cluster.Slice) {
				svc.ExternalIPs = []netip.Addr{a}
			}},
			{"endpoint", "endpoints", func(_ *cluster.Service, sl *cluster.Slice) {
				sl.Endpoints = cluster.EndpointsOf(cluster.Endpoint{Addr: a, Ready: true})
			}},
		} {
			svc, sl := service, slice
			use.set(&svc, &sl)
			view := cluster.View{Name: svc.Name, Service: &svc, Slices: []*cluster.Slice{&sl}}
			found := false
			for _, row := range policy.Resolve(view, s) {
				found = found || row.Key.Addr == a
				if set := row.Set(lb.Cluster); set != nil {
					found = found || set.Backends.At(0).Addr.Addr() == a
				}
			}
			refusals := policy.Refused(view, s)
			if found {
				served = append(served, use.name)
			}
			if found != (len(refusals) == 0) {
				t.Errorf("%s as %s: served %v, and reported %v", a, use.name, found, refusals)
			}
			reported := a
			if use.field == "endpoints" {
				reported = a.WithZone("") // lists of endpoints have no zones, and no source has an address with one
			}
			if len(refusals) > 0 && (refusals[0].Field != use.field || refusals[0].Addr != reported ||
				refusals[0].More != 0) {
				t.Errorf("%s as %s: reported %v", a, use.name, refusals[0])
			}
		}
		if got := strings.Join(served, ", "); got != want {
			t.Errorf("%s is served as %q, want %q (beside %s)", a, got, want, usual)
		}
	}
}

// uses returns a Service and a slice of a's family without a special address.
func uses(a netip.Addr) (cluster.Service, cluster.Slice, netip.Addr) {
	vip, pod := netip.MustParseAddr("10.96.0.7"), netip.MustParseAddr("10.1.0.7")
	if a.Is6() {
		vip, pod = netip.MustParseAddr("fd00:96::7"), netip.MustParseAddr("fd00:1::7")
	}
	name := cluster.Name{Namespace: "shop", Name: "web"}
	svc := cluster.Service{Name: name, Type: cluster.TypeLoadBalancer, ClusterIPs: []netip.Addr{vip},
		Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80}}}
	sl := cluster.Slice{Name: name, Service: name, IPv6: a.Is6(),
		Ports:     []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8080}},
		Endpoints: cluster.EndpointsOf(cluster.Endpoint{Addr: pod, Ready: true})}
	return svc, sl, vip
}

// --external-ip-cidrs concerns spec.externalIPs alone, and has no message where the gate disables
// them.
func TestExternalIPCIDRs(t *testing.T) {
	svc, sl, _ := uses(netip.IPv4Unspecified())
	svc.ExternalIPs = addrs("198.51.100.7", "198.51.100.8", "203.0.113.7", "2001:db8::7")
	svc.LoadBalancerIPs = addrs("203.0.113.9")
	view := cluster.View{Name: svc.Name, Service: &svc, Slices: []*cluster.Slice{&sl}}
	for _, c := range []struct {
		what, cidrs string
		off         bool
		want        string
	}{
		{"no list", "", false, "10.96.0.7 203.0.113.9 198.51.100.7 198.51.100.8 203.0.113.7; []"},
		{"one network", "198.51.100.0/24", false, "10.96.0.7 203.0.113.9 198.51.100.7 198.51.100.8; " +
			"[spec.externalIPs 203.0.113.7 is in none of the external networks that are served]"},
		{"one address", "198.51.100.7/32 fd00::/8", false, "10.96.0.7 203.0.113.9 198.51.100.7; " +
			"[spec.externalIPs 198.51.100.8 is in none of the external networks that are served, and 1 other]"},
		{"the other family's alone", "2001:db8::/64", false, "10.96.0.7 203.0.113.9; " +
			"[spec.externalIPs 198.51.100.7 is in none of the external networks that are served, and 2 others]"},
		{"a list of everything", "0.0.0.0/0", false, "10.96.0.7 203.0.113.9 198.51.100.7 198.51.100.8 203.0.113.7; []"},
		{"the gate is off", "198.51.100.7/32", true, "10.96.0.7 203.0.113.9; []"},
	} {
		s := policy.Settings{Family: lb.IPv4, ExternalIPCIDRs: prefixes(strings.Fields(c.cidrs)...),
			NoExternalIPs: c.off}
		var words []string
		for _, row := range policy.Resolve(view, s) {
			words = append(words, row.Key.Addr.String())
		}
		if got := fmt.Sprint(strings.Join(words, " "), "; ", policy.Refused(view, s)); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.what, got, c.want)
		}
	}
}
