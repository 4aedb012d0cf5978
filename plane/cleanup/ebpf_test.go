//go:build linux

package cleanup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/config/option"
	"kube-proxy/internal/netlab"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/all"
	"kube-proxy/plane/ebpf"
	"kube-proxy/plane/userspace/redirect"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
)

// TestTakeOverEBPF (PR-08): a node changes between mode ebpf and each other mode, both ways. Loops
// of requests see no failure; the first write of the next mode removes the programs and their
// tables.
func TestTakeOverEBPF(t *testing.T) {
	needsRoot(t)
	needs(t, "iptables-nft", "ip6tables-nft", "nft")
	modes := []otherMode{
		{now{mode: "nftables"}, func() { start(t, bothFamilies, openNFTables) }},
		{now{mode: "iptables", backends: same(xtables.NFT)},
			func() { start(t, bothFamilies, openIPTables(xtables.NFT)) }},
		{now{mode: "userspace"}, func() {
			for _, f := range bothFamilies {
				p := startUserspace(t, f, func(c redirect.Config) (redirect.Redirector, error) {
					return redirect.NewNFTables(c)
				})
				t.Cleanup(func() { p.Close() })
			}
		}},
	}
	if legacyWorks() {
		modes = append(modes, otherMode{now{mode: "iptables", backends: same(xtables.Legacy)},
			func() { start(t, bothFamilies, openIPTables(xtables.Legacy)) }})
	}
	takeOverEBPF(t, modes)
}

// The same with mode ipvs, which remembers connections until its servers are removed (EB-27).
func TestIPVSTakeOverEBPF(t *testing.T) {
	kerneltest.Later(t)
	needsIPVS(t)
	backends := map[lb.Family]xtables.Backend{}
	takeOverEBPF(t, []otherMode{{now{mode: "ipvs", backends: backends, drain: time.Minute}, func() {
		setSysctls(t)
		start(t, bothFamilies, func(f lb.Family) (opened, error) { return openMode(t, backends, f), nil })
	}}})
}

// otherMode is a mode that a node changes to from mode ebpf, and back.
type otherMode struct {
	now   now
	start func()
}

func takeOverEBPF(t *testing.T, modes []otherMode) {
	t.Helper()
	lab := netlab.ForTest(t, netlab.Options{Cgroup: true})
	lab.Serve(netlab.TCP, 8080, "pod1", "pod4")
	opts := &ebpf.Options{}
	opts.EBPF.SocketLB, opts.EBPF.StaleSockets = "all", "none"
	opts.EBPF.Cgroup, opts.EBPF.BPFFS = lab.Cgroup(netlab.Node1), t.TempDir()
	t.Cleanup(func() { unix.Unmount(opts.EBPF.BPFFS, 0) })
	blocks := option.Blocks{opts}
	var planes []opened
	openEBPF := func(f lb.Family) (opened, error) {
		modes := all.Modes()
		m, _ := modes.Find("ebpf")
		p, err := m.New(mode.Settings{Family: f, Blocks: blocks})
		planes = append(planes, p)
		return p, err
	}
	var ways []netlab.Way
	for _, f := range bothFamilies {
		_, vip, nodePort := planetest.Shop(f)
		for _, w := range []netlab.Way{{From: "pod3", To: vip}, {From: "node1", To: vip}, {From: "node1", To: nodePort},
			{From: "client", To: nodePort}} {
			w.Requests = true
			if w.From == "node1" {
				// The node's ports must not rest in TIME_WAIT. With IPv6 the kernel looks for the
				// socket of a packet before NAT, and may find that of a direct connection.
				w.Port = uint16(10_000 + 2_000*len(ways))
			}
			ways = append(ways, w)
		}
	}
	others := func(now now) (removed string) {
		t.Helper()
		now.blocks = blocks
		lab.On("node1", func() { removed = now.clean(t) })
		return removed
	}
	lab.On("node1", func() { start(t, bothFamilies, openNFTables) })
	traffic := lab.Traffic(ways...)
	defer traffic.Stop()
	toEBPF := func() {
		t.Helper()
		lab.On("node1", func() { start(t, bothFamilies, openEBPF) })
		traffic.More() // both are in force
		others(now{mode: "ebpf", drain: 5 * time.Second})
		for _, p := range planes {
			if err := p.(mode.Successor).OthersGone(); err != nil {
				t.Fatal(err)
			}
		}
		planes = nil
		traffic.More()
		if pins, _ := filepath.Glob(opts.EBPF.BPFFS + "/kube-proxy/*/*/*/link_connect6"); len(pins) != 2 {
			t.Fatalf("pinned links of connect6: %v", pins)
		}
	}
	for _, other := range modes {
		toEBPF()
		lab.On("node1", other.start)
		traffic.More()
		if r := others(other.now); !strings.Contains(r, "eBPF programs of IPv4") {
			t.Errorf("%s removed: %s", other.now.mode, r)
		}
		traffic.More()
		if left, err := os.ReadDir(opts.EBPF.BPFFS + "/kube-proxy/v1"); err == nil && len(left) > 0 {
			t.Errorf("%s left %v", other.now.mode, left)
		}
	}
	toEBPF()
}
