package ipvs

import (
	"net/netip"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/kerneltest"
)

// The kernel treats a persistent virtual server with port 21 as FTP, and redirects all ports from
// 1024 on without their own virtual server to it. So a Service with that port and affinity at a
// node's address would capture the ports of the node's programs.
func TestServicesOfTheHostBesideFTP(t *testing.T) {
	kerneltest.Every(t)
	inVM(t)
	k := newPackets(t, lb.IPv4)
	const program = 30999
	k.Serve(netlab.TCP, program, netlab.Node1, "pod1", "pod4")
	rows := k.table.Sorted()
	var to *lb.BackendSet
	for _, row := range rows {
		if row.Key.Addr == k.vip.Addr() {
			to = row.Routes[len(row.Routes)-1].To
		}
	}
	if to == nil {
		t.Fatal("the shop has no backends")
	}
	set := &lb.BackendSet{ID: lb.SetID{Service: "tenant/ftp:ftp", Proto: lb.TCP, Scope: lb.Cluster},
		Backends: to.Backends}
	row := func(kind lb.Kind, a netip.Addr) *lb.Frontend {
		return &lb.Frontend{Key: lb.Key{Addr: a, Port: 21, Proto: lb.TCP}, Service: "tenant/ftp:ftp", Kind: kind,
			Affinity: time.Hour, Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, Masq: true, To: set}}}
	}
	k.table.Replace(lb.Owner{Name: "tenant/ftp"}, []*lb.Frontend{row(lb.ExternalIP, k.node.Addr())})
	k.On(netlab.Node1, k.reset)
	for _, from := range []string{netlab.Client, "pod2", netlab.Node1, netlab.Node2} {
		var first string
		for i := range 3 {
			r, err := k.Dial(from, netlab.TCP, netip.AddrPortFrom(k.node.Addr(), 21),
				netlab.DialOptions{Timeout: 10 * time.Second})
			if err != nil {
				t.Fatalf("%s to port 21: %v", from, err)
			}
			if i == 0 {
				first = r.Server
			} else if r.Server != first {
				t.Errorf("%s to port 21: it was at %s, and is at %s: want it to stay", from, first, r.Server)
			}
		}
		r, err := k.Dial(from, netlab.TCP, netip.AddrPortFrom(k.node.Addr(), program),
			netlab.DialOptions{Timeout: 10 * time.Second})
		if err != nil || r.Server != netlab.Node1 {
			t.Errorf("%s to a program of the node: %s answers, %v", from, r.Server, err)
		}
	}
}
