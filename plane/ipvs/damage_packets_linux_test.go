package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
)

// packets is a node with a plane; the test sends it packets while another program damages the
// plane's objects.
type packets struct {
	*netlab.TestLab
	t     *testing.T
	f     lb.Family
	p     *whole
	table *lb.Table
	vip   netip.AddrPort
	node  netip.AddrPort
}

func newPackets(t *testing.T, f lb.Family) *packets {
	k := &packets{TestLab: netlab.ForTest(t, netlab.Options{}), t: t, f: f}
	k.table, k.vip, k.node = planetest.Shop(f)
	k.Serve(netlab.TCP, 8080, "pod1", "pod4")
	k.On(netlab.Node1, func() {
		k.p = wholeForTest(t, xtables.NFT, f)
		k.reset()
	})
	return k
}

func (k *packets) reset() {
	k.t.Helper()
	if res, err := k.p.Reset(context.Background(), k.table); err != nil || len(res.Later) > 0 {
		k.t.Fatal(res, err)
	}
}

// run runs a command on the node.
func (k *packets) run(args ...string) {
	k.t.Helper()
	k.On(netlab.Node1, func() { mustRun(k.t, "", args[0], args[1:]...) })
}

// repair acts as the engine: it makes the plane repair the changes that it noticed.
func (k *packets) repair() {
	k.t.Helper()
	for again := true; again; {
		select {
		case <-k.p.Drift():
		case <-time.After(20 * time.Second):
			k.t.Fatal("nothing was noticed")
		}
		k.On(netlab.Node1, func() { must(k.t, only(k.p.Audit(context.Background(), false))) })
		select { // notifications that arrived in the meantime
		case <-k.p.Drift():
			k.p.signal()
		case <-time.After(200 * time.Millisecond):
			again = false
		}
	}
}

// bound reports whether kube-ipvs0 has the service address.
func (k *packets) bound() bool {
	k.t.Helper()
	has := false
	k.On(netlab.Node1, func() {
		all, err := k.p.cfg.Device.Addresses(context.Background())
		must(k.t, err)
		for _, a := range all {
			has = has || a == k.vip.Addr()
		}
	})
	return has
}

// Packets to a service address never stop while another interface gets the address, a second one
// gets it too, and both lose it (DP-31).
func TestDamageAndPackets(t *testing.T) {
	kerneltest.Every(t)
	inVM(t)
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		t.Run(f.String(), func(t *testing.T) {
			k := newPackets(t, f)
			bits := fmt.Sprintf("%s/%d", k.vip.Addr(), k.vip.Addr().BitLen())
			traffic := k.Traffic(netlab.Way{From: netlab.Client, To: k.vip}, netlab.Way{From: "pod2", To: k.vip},
				netlab.Way{From: netlab.Node1, To: k.vip}, netlab.Way{From: netlab.Node2, To: k.node})
			traffic.More()
			add := []string{"ip", "addr", "add", bits, "dev", netlab.Uplink}
			// Otherwise the kernel would use it as the source of masqueraded packets. Duplicate
			// address detection must finish first.
			if f == lb.IPv6 {
				add = append(add, "preferred_lft", "0")
			}
			k.run(add...)
			k.repair()
			if k.bound() {
				t.Error("kube-ipvs0 has an address that another interface has")
			}
			traffic.More()
			k.run("ip", "link", "add", "late", "type", "dummy")
			k.run("ip", "addr", "add", bits, "dev", "late")
			k.run("ip", "addr", "del", bits, "dev", netlab.Uplink)
			traffic.More()
			traffic.Stop()

			open, err := k.Open(netlab.Client, netlab.TCP, k.vip, netlab.DialOptions{Timeout: 10 * time.Second})
			must(k.t, err)
			k.run("ip", "link", "del", "late")
			k.repair()
			if !k.bound() {
				t.Error("kube-ipvs0 lacks an address that no other interface has")
			}
			if _, err := open.Exchange(); err != nil {
				t.Errorf("a connection from before: %v", err)
			}
		})
	}
}
