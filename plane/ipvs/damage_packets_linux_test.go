package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/plane"
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
func (k *packets) run(stdin string, args ...string) error {
	var out []byte
	err := k.Do(netlab.Node1, func() (err error) {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// repair acts as the engine: it makes the plane repair the changes that it noticed, or with full
// those that it finds.
func (k *packets) repair(full bool) {
	k.t.Helper()
	for again := true; again; {
		if !full {
			select {
			case <-k.p.Drift():
			case <-time.After(20 * time.Second):
				k.t.Fatal("nothing was noticed")
			}
		}
		k.On(netlab.Node1, func() {
			_, err := k.p.Audit(context.Background(), full)
			if errors.Is(err, plane.ErrStateLost) {
				k.reset()
			} else {
				must(k.t, err)
			}
		})
		select { // notifications that arrived in the meantime
		case <-k.p.Drift():
			k.p.signal()
		case <-time.After(200 * time.Millisecond):
			again = false
		}
	}
}

// serves sends several requests over each path.
func (k *packets) serves(what string) {
	k.t.Helper()
	for _, w := range []struct {
		from string
		to   netip.AddrPort
	}{{netlab.Client, k.vip}, {netlab.Client, k.node}, {"pod2", k.vip}, {"pod1", k.vip}, {netlab.Node1, k.vip},
		{netlab.Node2, k.node}} {
		for range 3 {
			if _, err := k.Dial(w.from, netlab.TCP, w.to, netlab.DialOptions{Timeout: 10 * time.Second}); err != nil {
				k.t.Errorf("%s: %s to %s: %v", what, w.from, w.to, err)
			}
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

// After any foreign change of ipsets and addresses is repaired, packets reach their backends, and
// open connections go on. If another interface gets a service address, packets never stop (DP-31).
func TestDamageAndPackets(t *testing.T) {
	inVM(t)
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		t.Run(f.String(), func(t *testing.T) {
			k := newPackets(t, f)
			k.serves("before")
			bits := fmt.Sprintf("%s/%d", k.vip.Addr(), k.vip.Addr().BitLen())

			ways := []netlab.Way{{From: netlab.Client, To: k.vip}, {From: "pod2", To: k.vip},
				{From: netlab.Node1, To: k.vip}, {From: netlab.Node2, To: k.node}}
			traffic := k.Traffic(ways...)
			traffic.More()
			add := []string{"ip", "addr", "add", bits, "dev", netlab.Uplink}
			// Otherwise the kernel would use it as the source of masqueraded packets. Duplicate
			// address detection must finish first.
			if f == lb.IPv6 {
				add = append(add, "preferred_lft", "0")
			}
			must(k.t, k.run("", add...))
			k.repair(false)
			if k.bound() {
				t.Error("kube-ipvs0 has an address that another interface has")
			}
			traffic.More()
			// A second one, while the first has it.
			must(k.t, k.run("", "ip", "link", "add", "late", "type", "dummy"))
			must(k.t, k.run("", "ip", "addr", "add", bits, "dev", "late"))
			must(k.t, k.run("", "ip", "addr", "del", bits, "dev", netlab.Uplink))
			traffic.More()
			traffic.Stop()

			open, err := k.Open(netlab.Client, netlab.TCP, k.vip, netlab.DialOptions{Timeout: 10 * time.Second})
			must(k.t, err)
			must(k.t, k.run("", "ip", "link", "del", "late"))
			k.repair(false)
			if !k.bound() {
				t.Error("kube-ipvs0 lacks an address that no other interface has")
			}
			k.serves("the other interface is gone")

			name := func(s set) string { return s.name(f) }
			if err := k.run("", "ipset", "destroy", name(setMarksAnywhere)); err == nil {
				t.Error("a set that rules use was destroyed")
			}
			family := ipset.Family(wireFamily(f))
			for _, damage := range []struct {
				what, restore string
				full          bool
			}{
				{"all sets flushed", fmt.Sprintf("flush %s\nflush %s\nflush %s\nflush %s\n", name(setMarksAnywhere),
					name(setIPs), name(setLoopBack), name(setMarksPods)), true},
				{"a set that forgets its members",
					fmt.Sprintf("create x hash:ip,port family %s timeout 1 skbinfo\nswap x %s\ndestroy x\n", family,
						name(setMarksAnywhere)), true},
				{"a set without room and marks",
					fmt.Sprintf("create x hash:ip,port family %s maxelem 1\nswap x %s\ndestroy x\n", family,
						name(setMarksPods)), true},
			} {
				must(k.t, k.run(damage.restore, "ipset", "restore"))
				k.repair(true)
				k.serves(damage.what)
			}
			must(k.t, k.run("", "ip", "addr", "flush", "dev", Device))
			k.repair(false)
			k.serves("all addresses flushed")
			must(k.t, k.run("", "ip", "link", "del", Device))
			k.repair(false)
			k.serves("device deleted")
			must(k.t, k.run("", "ip", "link", "set", Device, "up"))
			must(k.t, k.run("", "ip", "link", "set", Device, "down"))
			if f == lb.IPv6 { // it loses only the IPv6 addresses
				k.repair(false)
			}
			k.serves("device set up and down")
			if _, err := open.Exchange(); err != nil {
				t.Errorf("a connection from before all this: %v", err)
			}
		})
	}
}
