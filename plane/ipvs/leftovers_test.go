//go:build linux

package ipvs

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/internal/netlink/route"
	"kube-proxy/lb"
	"kube-proxy/mode"
)

// Real ipsets show which virtual servers are a kube-proxy's (DP-31, DP-32, DP-35), for sets of any
// size.
func TestKnown(t *testing.T) {
	inNamespace(t)
	if _, err := exec.LookPath("ipset"); err != nil {
		t.Skip(err)
	}
	var many strings.Builder
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		for s := range setCount {
			fmt.Fprintln(&many, "create", s.made(f))
		}
		for _, old := range SetNames(f)[setCount:] {
			fmt.Fprintln(&many, "create", old, "bitmap:port range 0-65535")
		}
	}
	many.WriteString(`create KUBE-SRC-AAAA hash:ip
add KUBE-SRC-AAAA 10.96.0.99
add KUBE-LOOP-BACK 10.1.0.1,tcp:8080,10.1.0.1
add KUBE-LOAD-BALANCER-SOURCE-IP 10.1.0.2,tcp:8080,10.1.0.9
add KUBE-CLUSTER-IP 10.96.0.2,tcp:80
add KUBE-6-EXTERNAL-IP-LOCAL 2001:db8::7,udp:53
add KUBE-NODE-PORT-LOCAL-UDP 30053
add KUBE-6-NODE-PORT-LOCAL-SCTP-HAS 2001:db8::1,sctp:30090
add KUBE-HEALTH-CHECK-NODE-PORT 32000
add KUBE-IPVS-IPS 10.96.0.3
add KUBE-MARK-POD 10.96.0.2,tcp:80 skbmark 0x1234/0xffffffff
add KUBE-MARK-ANY 10.96.0.2,tcp:80 skbmark 0x4000/0x4000
add KUBE-MARK-ANY 192.0.2.1,tcp:30010
`)
	for i := range 3000 { // needs more than one message
		fmt.Fprintf(&many, "add KUBE-EXTERNAL-IP 10.5.%d.%d,udp:53\n", i/250, i%250)
	}
	restore := exec.Command("ipset", "restore")
	restore.Stdin = strings.NewReader(many.String())
	if out, err := restore.CombinedOutput(); err != nil {
		t.Fatalf("ipset restore: %v\n%s", err, out)
	}
	a := netip.MustParseAddr
	c := cleaner{Removal: mode.Removal{Families: []lb.Family{lb.IPv4, lb.IPv6}, MasqueradeBit: 14},
		link: route.Link{Index: 7},
		addrs: []route.Address{{Addr: a("10.96.0.1"), Index: 7}, {Addr: a("192.0.2.1"), Index: 2},
			{Addr: a("2001:db8::9"), Index: 2}}}
	must(t, c.open())
	defer c.close()
	ledgers := map[ipvs.Family]*ledger{}
	for _, f := range c.Families {
		l, err := c.read(t.Context(), f)
		must(t, err)
		ledgers[wireFamily(f)] = l
	}
	by := func(proto lb.Proto, at string) ipvs.ServiceID {
		return ipvs.ByAddr(netip.MustParseAddrPort(at), uint8(proto))
	}
	for id, want := range map[ipvs.ServiceID]bool{
		by(lb.TCP, "10.96.0.1:1"):          true,
		by(lb.TCP, "10.96.0.2:80"):         true,
		by(lb.TCP, "10.96.0.2:81"):         false,
		by(lb.UDP, "10.96.0.3:5"):          true,
		by(lb.TCP, "10.96.0.99:5"):         false,
		by(lb.TCP, "10.1.0.1:8080"):        false,
		by(lb.TCP, "10.1.0.2:8080"):        false,
		by(lb.UDP, "10.5.11.249:53"):       true,
		by(lb.UDP, "10.5.12.0:53"):         false,
		by(lb.UDP, "[2001:db8::7]:53"):     true,
		by(lb.UDP, "192.0.2.1:30053"):      true,
		by(lb.TCP, "192.0.2.1:30053"):      false,
		by(lb.SCTP, "[2001:db8::9]:30090"): true,
		by(lb.SCTP, "192.0.2.1:30090"):     false,
		by(lb.TCP, "192.0.2.1:32000"):      false,
		// Of a removed NodePort, while its connections continue.
		by(lb.TCP, "192.0.2.1:30010"):                       true,
		by(lb.TCP, "192.0.2.1:30011"):                       false,
		by(lb.UDP, "192.0.2.2:30053"):                       false,
		by(lb.TCP, "198.51.100.0:20000"):                    true,
		by(lb.TCP, "198.51.100.0:20001"):                    false,
		probeID(lb.IPv6):                                    true,
		ipvs.ByMark(ipvs.IPv4, marks{1 << 14}.of(7, true)):  true,
		ipvs.ByMark(ipvs.IPv6, marks{1 << 14}.of(0, false)): true,
		ipvs.ByMark(ipvs.IPv4, 0x1234):                      true,
		ipvs.ByMark(ipvs.IPv4, 0x4000):                      false,
		ipvs.ByMark(ipvs.IPv4, 7):                           false,
	} {
		l := ledgers[id.Family]
		if got := l.owns(l.known(), id); got != want {
			t.Errorf("%s: %t", id, got)
		}
	}
	if err := c.ipsets(); err != nil || len(c.report.Removed) != 1 || !strings.Contains(c.report.Removed[0],
		fmt.Sprint(2*len(SetNames(lb.IPv4)))) {
		t.Errorf("the sets: %v, %q", err, c.report.Removed)
	}
}
