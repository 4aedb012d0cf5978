package userspace

import (
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/nodetrace"
	"kube-proxy/plane/internal/relay"
	"kube-proxy/test/planetest"
	"kube-proxy/trace"
)

var _ mode.Tracer = (*Plane)(nil)

// If a redirect or a listener is missing, TracePacket returns what happens to packets, and
// Differences names the object, with each redirector.
func TestLookSabotage(t *testing.T) {
	for _, k := range kinds {
		for _, c := range []struct {
			kind, do string // "" for each
			becomes  trace.Verdict
			object   string // prefix of a difference's object
		}{
			{"", "", trace.Balance, ""},
			{"nftables", "nft flush chain ip kube-proxy-userspace lead-anywhere", trace.Reject,
				"rule 1 of chain lead-anywhere"},
			{"nftables", "nft flush map ip kube-proxy-userspace services-anywhere", trace.Reject,
				"element { 10.96.0.10 . tcp . 80 } of map services-anywhere"},
			{"nftables", "nft delete element ip kube-proxy-userspace listeners { tcp . @PORT }", trace.Balance,
				"element { tcp . @PORT } of set listeners"},
			{"nftables", "nft add element ip kube-proxy-userspace refused-services-pods { 10.96.0.10 . tcp . 80 : 3 }",
				trace.Drop, "element { 10.96.0.10 . tcp . 80 } of map refused-services-pods"},
			{"nftables", "nft delete table ip kube-proxy-userspace", trace.Pass, "table ip kube-proxy-userspace"},
			{"iptables", "iptables -t nat -F KUBE-PORTALS-CONTAINER", trace.Pass,
				"rule of chain KUBE-PORTALS-CONTAINER of table nat"},
			{"iptables", "iptables -t nat -F PREROUTING", trace.Pass, "rule of chain PREROUTING of table nat"},
		} {
			if c.kind != "" && c.kind != k.name {
				continue
			}
			netlab.EnterForTest(t)
			made, err := k.plane(lb.IPv4)
			if err != nil {
				t.Fatal(err)
			}
			p := made.(*Plane)
			table, to, _ := planetest.Shop(lb.IPv4)
			if _, err := planetest.ResetAll(t.Context(), p, table); err != nil {
				t.Fatal(err)
			}
			port := func(s string) string {
				d, _ := p.doorOf(lb.SetID{Service: "shop/web:http", Proto: lb.TCP, Scope: lb.Cluster})
				return strings.ReplaceAll(s, "@PORT", strconv.Itoa(int(d.port().number)))
			}
			if c.do != "" {
				if out, err := exec.Command("sh", "-c", strings.NewReplacer("{", `\{`, "}", `\}`).Replace(port(c.do))).
					CombinedOutput(); err != nil {
					t.Fatalf("%s: %v\n%s", port(c.do), err, out)
				}
			}
			packet := trace.Packet{From: netip.MustParseAddrPort("10.1.1.12:0"), In: "vethpod2", To: to, Proto: lb.TCP}
			got, err := p.TracePacket(t.Context(), packet, nodetrace.Kernel)
			if err != nil || got.Verdict != c.becomes || c.becomes == trace.Balance &&
				(len(got.Backends) != 2 || got.Backends[0].Share != 0.5) {
				t.Errorf("%s, %q: %+v, %v\n%s", k.name, c.do, got.Verdict, err, strings.Join(got.Way, "\n"))
			}
			named, all := false, ""
			if err := p.Differences(t.Context(), table, func(d trace.Difference) bool {
				named, all = named || strings.HasPrefix(d.Object, port(c.object)), all+d.Object+"\n"
				return true
			}); err != nil || named != (c.object != "") || c.object == "" && all != "" {
				t.Errorf("%s, %q: differences: %v\n%s", k.name, c.do, err, all)
			}
			if c.do == "" {
				inspectAtBackends(t, p, packet)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// inspectAtBackends makes a backend fail: TracePacket reports that it is tried last. Then it closes
// the listener, which both methods report.
func inspectAtBackends(t *testing.T, p *Plane, packet trace.Packet) {
	t.Helper()
	table, _, _ := planetest.Shop(lb.IPv4)
	for _, s := range p.services {
		for _, set := range s.sets {
			dead := set.turns.Pick(relay.Client{Addr: packet.From}, nil)
			set.turns.Dialled(relay.Client{Addr: packet.From}, dead, syscall.ECONNREFUSED)
			k, err := p.TracePacket(t.Context(), packet, nodetrace.Kernel)
			if err != nil || len(k.Backends) != 2 || !strings.Contains(strings.Join(k.Way, "\n"), "backend "+
				dead.String()+" could not be reached") {
				t.Errorf("%s fails: %+v, %v", dead, k, err)
			}
		}
	}
	for _, s := range p.services {
		for _, set := range s.sets {
			set.door = nil
		}
	}
	k, err := p.TracePacket(t.Context(), packet, nodetrace.Kernel)
	if err != nil || k.Verdict == trace.Balance || !strings.Contains(strings.Join(k.Way, "\n"),
		"no listener of this process") {
		t.Errorf("without listeners: %+v, %v", k, err)
	}
	all := ""
	err = p.Differences(t.Context(), table, func(d trace.Difference) bool { all += d.Object + "\n"; return true })
	if err != nil || !strings.Contains(all, "listener") {
		t.Errorf("without listeners: %v\n%s", err, all)
	}
}
