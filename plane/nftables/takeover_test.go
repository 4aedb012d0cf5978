//go:build linux

package nftables

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// upstreamTable has the objects that DP-21 names: one verdict map keyed by service, and a chain for
// each service port and endpoint. It has one service: 10.96.0.10:80, NodePort 30080.
const upstreamTable = `
table ip kube-proxy {
	comment "rules for kube-proxy"
	set cluster-ips { type ipv4_addr; comment "Active ClusterIPs"; elements = { 10.96.0.10 }; }
	set nodeport-ips { type ipv4_addr; elements = { 172.18.0.2 }; }
	set affinity-AAAA-shop/web/tcp/http__10.1.1.11/8080 { type ipv4_addr; flags dynamic,timeout; timeout 3h;; }
	set hairpin-connections { type ipv4_addr . ipv4_addr; elements = { 10.1.1.11 . 10.1.1.11 }; }
	map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; }
	map no-endpoint-nodeports { type inet_proto . inet_service : verdict; }
	map firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
	map service-ips { type ipv4_addr . inet_proto . inet_service : verdict
		elements = { 10.96.0.10 . tcp . 80 : goto service-AAAA-shop/web/tcp/http }; }
	map service-nodeports { type inet_proto . inet_service : verdict
		elements = { tcp . 30080 : goto external-AAAA-shop/web/tcp/http }; }
	chain reject-chain { reject; }
	chain mark-for-masquerade { meta mark set meta mark or 0x4000; }
	chain masquerading { meta mark & 0x4000 == 0 return; meta mark set meta mark ^ 0x4000; masquerade fully-random; }
	chain endpoint-BBBB-shop/web/tcp/http__10.1.1.11/8080 { meta l4proto tcp dnat to 10.1.1.11:8080; }
	chain endpoint-CCCC-shop/web/tcp/http__10.1.2.14/8080 { meta l4proto tcp dnat to 10.1.2.14:8080; }
	chain service-AAAA-shop/web/tcp/http {
		ip daddr 10.96.0.10 tcp dport 80 ip saddr != 10.1.0.0/16 jump mark-for-masquerade
		numgen random mod 2 vmap { 0 : goto endpoint-BBBB-shop/web/tcp/http__10.1.1.11/8080, 1 : goto endpoint-CCCC-shop/web/tcp/http__10.1.2.14/8080 }
	}
	chain external-AAAA-shop/web/tcp/http { jump mark-for-masquerade; goto service-AAAA-shop/web/tcp/http; }
	chain nodeport-endpoints-check { ip daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports; }
	chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
	chain firewall-check { ip daddr . meta l4proto . th dport vmap @firewall-ips; }
	chain cluster-ips-check { ip daddr @cluster-ips reject; ip daddr 10.96.0.0/12 drop; }
	chain services {
		ip daddr . meta l4proto . th dport vmap @service-ips
		ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
	}
	chain filter-prerouting-pre-dnat { type filter hook prerouting priority -110; ct state new jump firewall-check; }
	chain filter-output-pre-dnat { type filter hook output priority -110; ct state new jump firewall-check; }
	chain filter-input { type filter hook input priority 0; ct state new jump nodeport-endpoints-check; ct state new jump service-endpoints-check; }
	chain filter-forward { type filter hook forward priority 0; ct state new jump service-endpoints-check; ct state new jump cluster-ips-check; }
	chain filter-output { type filter hook output priority 0; ct state new jump service-endpoints-check; ct state new jump cluster-ips-check; }
	chain nat-prerouting { type nat hook prerouting priority -100; jump services; }
	chain nat-output { type nat hook output priority -100; jump services; }
	chain nat-postrouting { type nat hook postrouting priority 100; jump masquerading; ip saddr . ip daddr @hairpin-connections masquerade fully-random; }
}
`

// A node changes from upstream's nftables mode to ours: established connections live on, and a loop
// of new ones sees no failure (G4, DP-21).
func TestTakeOverUnderTraffic(t *testing.T) {
	lab := netlab.ForTest(t, netlab.Options{})
	lab.Serve(netlab.TCP, 8080, "pod1", "pod4")
	lab.On("node1", func() { runNFT(t, upstreamTable) })
	vip, nodePort := netip.MustParseAddrPort("10.96.0.10:80"), netip.MustParseAddrPort("172.18.0.2:30080")
	traffic := lab.Traffic(netlab.Way{From: "pod3", To: vip, Seen: "pod3"}, netlab.Way{From: "client", To: nodePort,
		Seen: "node1"})
	for range 2 { // so that each endpoint gets some connections
		traffic.Open()
	}
	traffic.More()
	var p *Plane
	lab.On("node1", func() {
		p = newPlane(t, lb.IPv4)
		reset(t, p, shopTable())
	})
	traffic.More()
	traffic.Stop()
	if s := p.Stats(); s.Batches != 3 {
		t.Errorf("%d transactions, want 3: a table stands in, one is replaced, and the first goes", s.Batches)
	}
}

// A packet that has read the list of upstream's chains when they are deleted, and has not met ours,
// is translated (ADR 0027). A stand-in that a killed process left is replaced, and deleted in the
// end.
func TestTakeOverPacketUnderWay(t *testing.T) {
	lab := netlab.ForTest(t, netlab.Options{})
	lab.Serve(netlab.TCP, 8080, "pod1", "pod4")
	lab.On("node1", func() {
		runNFT(t, upstreamTable+"table ip "+standInName+" { map services { type ipv4_addr : ipv4_addr; }; }")
	})
	next := planetest.PutOff(t, lab, lb.IPv4)
	answered := make(chan error)
	go func() {
		reply, err := lab.Dial("node1", netlab.TCP, netip.MustParseAddrPort("10.96.0.10:80"), netlab.DialOptions{})
		if err == nil && reply.Server == netlab.Sink {
			err = errors.New("the sink answered")
		}
		answered <- err
	}()
	next()
	lab.On("node1", func() {
		reset(t, newPlane(t, lb.IPv4), shopTable())
		if left := runNFT(t, "list", "tables"); strings.Contains(left, standInName) {
			t.Errorf("left: %s", left)
		}
	})
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

// shopTable is the table that upstreamTable implements.
func shopTable() *lb.Table {
	table, _, _ := planetest.Shop(lb.IPv4)
	return table
}
