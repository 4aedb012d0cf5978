//go:build linux

package iptables

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/kernel"
	"kube-proxy/internal/netlab"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
)

// upstreamRules returns the chains that DP-01 to DP-09 name, for one service: 10.96.0.10:80,
// NodePort 30080. The service's chains have upstream's names, so they are ours as well.
func upstreamRules() string {
	u := portID{"shop/web:http", lb.TCP}
	svc, ext := u.chain(xtables.ClusterChain), u.chain(xtables.ExternalChain)
	sep1, sep2 := u.chain(xtables.EndpointChain, "10.1.1.11:8080"), u.chain(xtables.EndpointChain, "10.1.2.14:8080")
	return strings.NewReplacer("$SVC", svc, "$EXT", ext, "$SEP1", sep1, "$SEP2", sep2).Replace(`*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*filter
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A INPUT -j KUBE-FIREWALL
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL -m comment --comment "of the kubelet" -m mark --mark 0x8000/0x8000 -j DROP
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
:$SVC - [0:0]
:$EXT - [0:0]
:$SEP1 - [0:0]
:$SEP2 - [0:0]
:KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
-A KUBE-SERVICES -m comment --comment "shop/web:http cluster IP" -m tcp -p tcp -d 10.96.0.10 --dport 80 -j $SVC
-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-NODEPORTS -m comment --comment shop/web:http -m tcp -p tcp --dport 30080 -j $EXT
-A $EXT -m comment --comment "masquerade traffic for shop/web:http external destinations" -j KUBE-MARK-MASQ
-A $EXT -j $SVC
-A $SVC -m comment --comment "shop/web:http cluster IP" -m tcp -p tcp -d 10.96.0.10 --dport 80 ! -s 10.1.0.0/16 -j KUBE-MARK-MASQ
-A $SVC -m comment --comment "shop/web:http -> 10.1.1.11:8080" -m statistic --mode random --probability 0.5000000000 -j $SEP1
-A $SVC -m comment --comment "shop/web:http -> 10.1.2.14:8080" -j $SEP2
-A $SEP1 -m comment --comment shop/web:http -s 10.1.1.11 -j KUBE-MARK-MASQ
-A $SEP1 -m comment --comment shop/web:http -m tcp -p tcp -j DNAT --to-destination 10.1.1.11:8080
-A $SEP2 -m comment --comment shop/web:http -s 10.1.2.14 -j KUBE-MARK-MASQ
-A $SEP2 -m comment --comment shop/web:http -m tcp -p tcp -j DNAT --to-destination 10.1.2.14:8080
COMMIT
`)
}

// A node changes from upstream's iptables mode to ours. A loop of new connections sees no failure,
// nor do established ones that send all the time (G4). Then it changes back: upstream writes its
// rules over ours. Then it changes to ours again.
func TestTakeOverUnderTraffic(t *testing.T) {
	kerneltest.Later(t)
	eachBackend(t, takeOver)
}

func takeOver(t *testing.T, b xtables.Backend) {
	lab := netlab.ForTest(t, netlab.Options{})
	lab.Serve(netlab.TCP, 8080, "pod1", "pod4")
	restore := "iptables-" + string(b) + "-restore"
	lab.On("node1", func() { run(t, upstreamRules(), restore, "--noflush") })
	vip, nodePort := netip.MustParseAddrPort("10.96.0.10:80"), netip.MustParseAddrPort("172.18.0.2:30080")
	traffic := lab.Traffic(netlab.Way{From: "pod3", To: vip, Seen: "pod3"}, netlab.Way{From: "client", To: nodePort,
		Seen: "node1"})
	ours := func() {
		p := newPlane(t, Config{Family: lb.IPv4}) // the kubelet's hint says which back end
		if p.Backend != b {
			t.Errorf("back end %s was chosen, the kubelet uses %s (DP-14)", p.Backend, b)
		}
		reset(t, p, shopTable())
		if got := dump(t, p); strings.Contains(got, "KUBE-SEP-AAAA") {
			t.Errorf("a stale chain of upstream's stays:\n%s", got)
		}
		rules := run(t, "", p.Tool.Program+"-save")
		for _, theirs := range []string{":KUBE-IPTABLES-HINT ",
			`-A KUBE-FIREWALL -m comment --comment "of the kubelet"`} {
			if !strings.Contains(rules, theirs) {
				t.Errorf("what is the kubelet's is gone: %s", theirs)
			}
		}
	}
	for range 2 {
		traffic.More()
		lab.On("node1", ours)
		traffic.Open()
		traffic.More()
		lab.On("node1", func() { run(t, upstreamAgain(), restore, "--noflush") })
		traffic.Open()
	}
	traffic.More()
	traffic.Stop()
}

// upstreamAgain returns upstreamRules for a node that has the foreign chains' rules.
func upstreamAgain() string {
	var again []string
	for line := range strings.Lines(upstreamRules()) {
		f := strings.Fields(line)
		ofOthers := len(f) > 1 && f[0] == "-A" && !strings.HasPrefix(f[1], "KUBE-") ||
			strings.HasPrefix(line, ":KUBE-FIREWALL ") || strings.HasPrefix(line, "-A KUBE-FIREWALL ")
		if !ofOthers {
			again = append(again, line)
		}
	}
	return strings.Join(again, "")
}

// shopTable is the table that upstreamRules implements: NodePorts are on all addresses.
func shopTable() *lb.Table {
	table, _, _ := planetest.Shop(lb.IPv4)
	table.Node.NodePorts = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	return table
}

// NodePorts answer on 127.0.0.1 by default, and other hosts on the link cannot use that to reach
// the node's own services (DP-10). With LocalhostNodePorts false they do not answer there (SV-64,
// CF-22).
func TestLocalhostNodePortSV64(t *testing.T) {
	needs(t, xtables.NFT)
	lab := netlab.ForTest(t, netlab.Options{})
	lab.Serve(netlab.TCP, 8080, "pod1", "pod4")
	to := netip.MustParseAddrPort("127.0.0.1:30080")
	for _, on := range []bool{true, false, true} {
		lab.On("node1", func() {
			p := newPlane(t, Config{Family: lb.IPv4, Backend: xtables.NFT, LocalhostNodePorts: &on})
			reset(t, p, shopTable())
			rules := run(t, "", "iptables-nft-save", "-t", "filter")
			if has := strings.Contains(rules, "block incoming localnet connections"); has != on {
				t.Errorf("localhost NodePorts %t: the rule that blocks localnet is there: %t", on, has)
			}
			routesLocalnet(t, on)
		})
		_, err := lab.Dial("node1", netlab.TCP, to, netlab.DialOptions{})
		if (err == nil) != on {
			t.Errorf("localhost NodePorts %t: %v", on, err)
		}
		if _, err := lab.Dial("client", netlab.TCP, netip.MustParseAddrPort("172.18.0.2:30080"),
			netlab.DialOptions{}); err != nil {
			t.Error(err)
		}
	}
}

// elsewhere is shopTable's node with NodePorts on another address than 127.0.0.1.
func elsewhere() lb.Node {
	node := shopTable().Node
	node.NodePorts = []netip.Prefix{netip.MustParsePrefix("172.18.0.2/32")}
	return node
}

// routesLocalnet checks whether packets to 127.0.0.0/8 are routed.
func routesLocalnet(t *testing.T, want bool) {
	t.Helper()
	got, err := kernel.Sysctl("net.ipv4.conf.all.route_localnet")
	if err != nil || (got == "1") != want {
		t.Errorf("route_localnet is %q, %v; want it set: %t", got, err, want)
	}
}

// Other hosts on the link do not reach listeners on 127.0.0.1, although that is routed, nor after
// the node's NodePorts no longer cover 127.0.0.1 (CVE-2020-8558, DP-10).
func TestMartiansAreDroppedDP10(t *testing.T) {
	eachBackend(t, func(t *testing.T, b xtables.Backend) {
		lab := netlab.ForTest(t, netlab.Options{})
		lab.Serve(netlab.TCP, 8080, "node1")
		// The client routes packets to 127.0.0.1 to the node.
		lab.On("client", func() {
			run(t, "", "sysctl", "-qw", "net.ipv4.conf.all.route_localnet=1")
			run(t, "", "ip", "rule", "add", "pref", "1", "lookup", "local")
			run(t, "", "ip", "rule", "del", "pref", "0")
			run(t, "", "ip", "rule", "add", "pref", "0", "to", "127.0.0.2", "lookup", "7")
			run(t, "", "ip", "route", "add", "127.0.0.2", "via", "172.18.0.2", "src", "172.18.0.100", "table", "7")
		})
		reaches := func() bool {
			_, err := lab.Dial("client", netlab.TCP, netip.MustParseAddrPort("127.0.0.2:8080"),
				netlab.DialOptions{Timeout: 500 * time.Millisecond})
			return err == nil
		}
		lab.On("node1", func() { run(t, "", "sysctl", "-qw", "net.ipv4.conf.all.route_localnet=1") })
		if !reaches() {
			t.Fatal("with route_localnet, and without the rule, the client does not reach 127.0.0.2")
		}
		var p *Plane
		lab.On("node1", func() {
			p = newPlane(t, Config{Family: lb.IPv4, Backend: b})
			reset(t, p, shopTable())
			routesLocalnet(t, true)
		})
		if reaches() {
			t.Error("the client reaches what listens on 127.0.0.0/8 of the node")
		}
		lab.On("node1", func() {
			run(t, "", "sysctl", "-qw", "net.ipv4.conf.all.route_localnet=0")
			if repaired, err := p.Audit(t.Context(), true); repaired != 1 || err != nil {
				t.Errorf("another program has set route_localnet to 0: repaired %d, %v", repaired, err)
			}
			routesLocalnet(t, true)
		})
		lab.On("node1", func() {
			if err := p.SetNode(t.Context(), elsewhere()); err != nil {
				t.Fatal(err)
			}
			routesLocalnet(t, false)
		})
		if reaches() {
			t.Error("without NodePorts on 127.0.0.1 the client reaches what listens there")
		}
	})
}
