package ipvs

import (
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"kube-proxy/internal/kernel"
	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/nodetrace"
	"kube-proxy/test/ipvsfake"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
	"kube-proxy/trace"
)

// newLookBench returns a plane with the kernel's rules too, and with its IPVS if it has it.
func newLookBench(t *testing.T, b xtables.Backend, f lb.Family) *kernelBench {
	return newKernelBench(t, f, func() Config {
		connect := ipvs.Open
		if loadOnce() != nil || !kernel.HasIPVS() {
			fake := ipvsfake.New(ipvsfake.Config{})
			connect = func() (*ipvs.Conn, error) { return ipvs.New(t.Context(), fake.Connect()) }
		}
		conn, err := connect()
		must(t, err)
		t.Cleanup(func() { conn.Close() })
		chains, err := newChains(nodeFacts{family: f, masq: 1 << 14}, b, nil)
		must(t, err)
		t.Cleanup(func() { chains.Close() })
		view := func() (*View, error) { return openView(f, connect, chains.Held) }
		return Config{IPVS: conn, Chains: chains, View: view}
	})
}

// The kernel's own sets, addresses and rules, with both variants of iptables, treat packets as the
// table says. Differences names foreign changes, and after the plane repairs them nothing differs.
func TestLookAtKernel(t *testing.T) {
	kerneltest.Every(t)
	for _, b := range backends {
		for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
			t.Run(string(b)+" "+f.String(), func(t *testing.T) {
				k := newLookBench(t, b, f)
				packets := k.Packets(k.table, true)
				n := 0
				// With the legacy back end each runs iptables-save.
				for i := 0; i < len(packets); i += 11 {
					packets[n] = packets[i]
					n++
				}
				if found, _ := follow(t, k.p, k.table, packets[:n], ""); len(found) > 0 {
					t.Error(found)
				}
				for _, d := range planetest.Differences(t, k.p, k.table) {
					t.Errorf("differs: %+v", d)
				}
				for _, c := range sabotages {
					// The rest is the same.
					if c.spares != "" || b == xtables.Legacy && !strings.HasPrefix(c.object, "chain ") {
						continue
					}
					k.sabotage(t, b, c.do) // on this thread, the only one in the namespace
					all := planetest.Differences(t, k.p, k.table)
					if !c.named(k.World, all) {
						t.Errorf("%s: differences: %+v; want one of %q, and hardly more", c.name, all, c.object)
					}
					if _, err := k.p.Audit(t.Context(), true); err != nil {
						t.Error(err)
					}
					for _, d := range planetest.Differences(t, k.p, k.table) {
						t.Errorf("%s: after it was repaired: %+v", c.name, d)
					}
				}
			})
		}
	}
}

// sabotage changes the kernel's state.
func (k *kernelBench) sabotage(t *testing.T, b xtables.Backend, do func(*spoiler)) {
	t.Helper()
	do(&spoiler{T: t, World: k.World, ipvs: k.p.cfg.IPVS, member: func(name string, m ipset.Member, there bool) {
		t.Helper()
		i := slices.IndexFunc(k.p.sets[:], func(s ipset.Set) bool {
			return strings.HasSuffix(s.Name, "-"+name) && !strings.Contains(s.Name, "NODE-PORT")
		})
		must(k.t, k.sets.Do(t.Context(), []ipset.Op{{Set: &k.p.sets[i], Member: m, Delete: !there}}, nil))
	},
		addr: func(a netip.Addr) {
			t.Helper()
			link, err := netlink.LinkByName(Device)
			must(k.t, err)
			addr, err := netlink.ParseAddr(netip.PrefixFrom(a, a.BitLen()).String())
			must(k.t, err)
			must(k.t, netlink.AddrDel(link, addr))
		},
		rules: func(spoil func(xtables.ChainRule) bool) {
			t.Helper()
			view, err := k.p.cfg.View()
			must(k.t, err)
			defer view.Close()
			jumps, rules, err := view.Held(t.Context())
			must(k.t, err)
			for _, r := range slices.Concat(jumps, rules) {
				if spoil(r) {
					mustRun(t, "", programOf(k.Family, b), append([]string{"-w", "-t", r.Table, "-D", r.Chain},
						unquoted(xtables.Words(r.Rule))...)...)
				}
			}
		},
	})
}

func unquoted(words []string) []string {
	for i, w := range words {
		words[i] = strings.Trim(w, `"`)
	}
	return words
}

// The list of connections shows the persistent real server of a client by the template, whose
// client has no port.
func TestStaysIn(t *testing.T) {
	const list = `Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
TCP C0A80002 9C40 0A600001 0050 0A010001 1F90 ESTABLISHED     897
TCP C0A80001 9C40 0A600001 0050 0A010001 1F90 ESTABLISHED     897
UDP C0A80001 0000 0A600001 0050 0A010009 1F90 NONE            10
TCP C0A80001 0000 0A600002 0050 0A010008 1F90 NONE            10
TCP C0A80001 0000 0A600001 0050 0A010002 1F90 NONE            10797
TCP 20010db8000000000000000000000007 0000 nonsense
TCP fd00:0000:0000:0000:0000:0000:0000:0001 0000 fd00:0010:0096:0000:0000:0000:0000:0001 0050 fd00:0001:0000:0000:0000:0000:0000:0002 1F90 NONE            10797
`
	for _, c := range []struct{ vip, client, want string }{
		{"10.96.0.1:80", "192.168.0.1", "10.1.0.2:8080"},
		{"10.96.0.1:80", "192.168.0.2", "invalid AddrPort"},
		{"[fd00:10:96::1]:80", "fd00::1", "[fd00:1::2]:8080"},
	} {
		got, err := staysIn(strings.NewReader(list), ipvs.ByAddr(netip.MustParseAddrPort(c.vip), uint8(lb.TCP)),
			netip.MustParseAddr(c.client))
		if got.String() != c.want || err != nil {
			t.Errorf("%s at %s stays with %s, %v; want %s", c.client, c.vip, got, err, c.want)
		}
	}
	long := strings.Repeat("TCP C0A80002 9C40 0A600001 0050 0A010001 1F90 ESTABLISHED     897\n", maxConnections/60)
	if _, err := staysIn(strings.NewReader(long[:maxConnections]), ipvs.ByAddr(netip.MustParseAddrPort("10.96.0.1:80"),
		6), netip.MustParseAddr("192.168.0.1")); err != errTooMany {
		t.Errorf("of too many: %v", err)
	}
}

// A query during changes of frontends uses its own connections: neither fails, and in the end
// nothing differs.
func TestLookWhileRowsChange(t *testing.T) {
	k := newLookBench(t, xtables.NFT, lb.IPv4)
	here, err := netns.Get()
	must(k.t, err)
	defer here.Close()
	stop, done := make(chan struct{}), make(chan error, 1)
	packets := k.Packets(k.table, true)
	own := inspectTable(k.World) // the table for the comparison
	go func() {
		done <- func() error {
			// The thread ends with the goroutine, so that no other goroutine runs in this
			// namespace.
			runtime.LockOSThread()
			if err := netns.Set(here); err != nil {
				return err
			}
			for i := 0; ; i++ {
				select {
				case <-stop:
					return nil
				default:
				}
				if _, err := k.p.TracePacket(t.Context(), packets[i*7%len(packets)], nodetrace.Kernel); err != nil {
					return err
				}
				if err := k.p.Differences(t.Context(), own, func(trace.Difference) bool { return true }); err != nil {
					return err
				}
			}
		}()
	}()
	for i := range 60 {
		for _, n := range []int{2 + i%3, 3} {
			changes, _ := k.table.Replace(k.ClusterIP(i%10, i%10*3, n))
			_, err := k.p.Apply(t.Context(), changes)
			must(k.t, err)
		}
	}
	close(stop)
	must(k.t, <-done)
	for _, d := range planetest.Differences(t, k.p, k.table) {
		t.Errorf("differs: %+v", d)
	}
}
