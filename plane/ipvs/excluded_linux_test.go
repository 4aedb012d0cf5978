package ipvs

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/test/kerneltest"
)

// Foreign virtual servers in --ipvs-exclude-cidrs go on serving, whatever Services claim at their
// addresses: the key of a Service; another port of its address, which kube-ipvs0 then has; the key
// of a load balancer whose source ranges admit no client; a NodePort; and one that is added later.
// The Service serves when they are removed, and its source ranges hold (CF-27, DP-35).
func TestIPVSServersOfOthersGoOn(t *testing.T) {
	kerneltest.Every(t)
	inVM(t)
	lab := netlab.ForTest(t, netlab.Options{})
	lab.Serve(netlab.TCP, 8080, "pod1", "pod4")
	lab.Serve(netlab.TCP, 9000, "pod3") // behind the foreign servers
	silence, err := lab.Silence(8080)
	must(t, err)
	at := netip.MustParseAddrPort
	vip, more, late, balancer, node := at("10.96.0.10:80"), at("10.96.0.10:81"), at("10.96.0.10:82"),
		at("192.0.2.10:80"), at("172.18.0.2:30080")
	owner, fronts := shopRows(twoPods)
	fronts[2].Sources = []netip.Prefix{netip.MustParsePrefix("10.1.1.13/32")}
	table := &lb.Table{Node: lb.Node{NodePorts: []netip.Prefix{netip.PrefixFrom(node.Addr(), 32)},
		Pods: lb.Detector{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}}}
	table.Replace(owner, fronts)

	foreign := func(to netip.AddrPort) {
		t.Helper()
		mustRun(t, "", "ipvsadm", "-A", "-t", to.String(), "-s", "rr")
		mustRun(t, "", "ipvsadm", "-a", "-t", to.String(), "-r", "10.1.1.13:9000", "-m")
	}
	theirs := func(when string, ways ...netip.AddrPort) {
		t.Helper()
		for _, to := range ways {
			// A pod's replies would not pass through IPVS.
			for _, from := range []string{"client", "node1"} {
				if r, err := lab.Dial(from, netlab.TCP, to,
					netlab.DialOptions{Timeout: 5 * netlab.DefaultTimeout}); err != nil || r.Server != "pod3" {
					t.Errorf("%s: %s → %s, a virtual server of others: %v, %v", when, from, to, r, err)
				}
			}
		}
	}
	lab.On("node1", func() {
		p := wholeForTest(t, xtables.NFT, lb.IPv4, netip.MustParsePrefix("10.96.0.10/32"),
			netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("172.18.0.0/16"))
		// So that the node accepts the packets, and no interface has the address.
		for _, to := range []netip.AddrPort{vip, balancer} {
			mustRun(t, "", "ip", "route", "add", "local", to.Addr().String(), "dev", "lo")
		}
		for _, to := range []netip.AddrPort{vip, more, balancer, node} {
			foreign(to)
		}
		theirs("before", vip, more, balancer, node)
		res, err := p.Reset(t.Context(), table)
		if err != nil || len(res.Later) != 3 {
			t.Fatalf("left for later: %v, %v; want all that others have", res.Later, err)
		}
		again := func() (failed []string) {
			for _, key := range res.Later {
				if _, err := p.Apply(t.Context(), []lb.Change{{Key: key, New: table.Get(key)}}); err != nil {
					failed = append(failed, err.Error())
				}
			}
			return failed
		}
		if failed := again(); len(failed) != 3 ||
			slices.ContainsFunc(failed, func(s string) bool { return !strings.Contains(s, "--ipvs-exclude-cidrs") }) {
			t.Errorf("what others have: %q", failed)
		}
		foreign(late)
		theirs("after the first write", vip, more, late, balancer, node)
		if _, err := p.Audit(t.Context(), true); err != nil {
			t.Error(err)
		}
		theirs("after an audit", vip, more, late, balancer, node)

		for _, to := range []netip.AddrPort{vip, balancer, node} {
			mustRun(t, "", "ipvsadm", "-D", "-t", to.String())
		}
		if failed := again(); len(failed) > 0 {
			t.Errorf("no foreign server is left: %q", failed)
		}
		for _, c := range []struct {
			from string
			to   netip.AddrPort
			in   bool
		}{{"client", vip, true}, {"client", node, true}, {"client", balancer, false}, {"pod3", balancer, true}} {
			timeout := 5 * netlab.DefaultTimeout
			if !c.in {
				timeout = silence
			}
			r, err := lab.Dial(c.from, netlab.TCP, c.to, netlab.DialOptions{Timeout: timeout})
			if (err == nil) != c.in || err == nil && r.Server != "pod1" && r.Server != "pod4" {
				t.Errorf("now ours: %s → %s: %v, %v; want it served: %t", c.from, c.to, r, err, c.in)
			}
		}
		theirs("beside ours", more, late)
		if got := fmt.Sprint(p.Notices()); !strings.Contains(got, "Virtual servers of others have") {
			t.Errorf("reported: %s", got)
		}
	})
}
