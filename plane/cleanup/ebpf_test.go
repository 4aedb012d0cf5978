//go:build linux

package cleanup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/config/option"
	"kube-proxy/internal/netlab"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/all"
	"kube-proxy/plane/ebpf"
	"kube-proxy/plane/userspace/redirect"
	"kube-proxy/test/planetest"
)

// TestTakeOverEBPF (PR-08): a node changes between mode ebpf and each other mode, both ways. Loops
// of requests see no failure; the first write of the next mode removes the programs and their
// tables.
func TestTakeOverEBPF(t *testing.T) {
	needsRoot(t)
	needs(t, "iptables-nft", "ip6tables-nft", "nft")
	lab := netlab.ForTest(t, netlab.Options{Cgroup: true})
	lab.Serve(netlab.TCP, 8080, "pod1", "pod4")
	families := []lb.Family{lb.IPv4, lb.IPv6}
	opts := &ebpf.Options{}
	opts.EBPF.SocketLB, opts.EBPF.StaleSockets = "all", "none"
	opts.EBPF.Cgroup, opts.EBPF.BPFFS = lab.Cgroup(netlab.Node1), t.TempDir()
	t.Cleanup(func() { unix.Unmount(opts.EBPF.BPFFS, 0) })
	blocks := option.Blocks{opts}
	openEBPF := func(f lb.Family) (opened, error) {
		modes := all.Modes()
		m, _ := modes.Find("ebpf")
		return m.New(mode.Settings{Family: f, Blocks: blocks})
	}
	openUserspace := func(f lb.Family) {
		p := startUserspace(t, f, func(c redirect.Config) (redirect.Redirector, error) {
			return redirect.NewNFTables(c)
		})
		t.Cleanup(func() { p.Close() })
	}
	var ways []netlab.Way
	for _, f := range families {
		_, vip, nodePort := planetest.Shop(f)
		for _, w := range []netlab.Way{{From: "pod3", To: vip}, {From: "node1", To: vip}, {From: "node1", To: nodePort},
			{From: "client", To: nodePort}} {
			w.Requests = true
			ways = append(ways, w)
		}
	}
	others := func(now now) string {
		t.Helper()
		var removed string
		lab.On("node1", func() {
			now.families, now.blocks = families, blocks
			r, err := now.others(t.Context())
			if err != nil || len(r.Left) > 0 {
				t.Errorf("%s: %+v, %v", now.mode, r, err)
			}
			removed = strings.Join(r.Removed, "\n")
		})
		return removed
	}
	lab.On("node1", func() { start(t, families, openNFTables) })
	traffic := lab.Traffic(ways...)
	defer traffic.Stop()
	for _, other := range []struct {
		now   now
		start func()
	}{
		{now{mode: "nftables"}, func() { start(t, families, openNFTables) }},
		{now{mode: "iptables", backends: same(xtables.NFT)}, func() { start(t, families, openIPTables(xtables.NFT)) }},
		{now{mode: "userspace"}, func() {
			for _, f := range families {
				openUserspace(f)
			}
		}},
	} {
		lab.On("node1", func() { start(t, families, openEBPF) })
		traffic.More() // both are in force
		others(now{mode: "ebpf"})
		traffic.More()
		if pins, _ := filepath.Glob(opts.EBPF.BPFFS + "/kube-proxy/*/*/*/link_connect6"); len(pins) != 2 {
			t.Fatalf("pinned links of connect6: %v", pins)
		}
		lab.On("node1", other.start)
		traffic.More()
		if r := others(other.now); !strings.Contains(r, "eBPF programs and tables of IPv4") {
			t.Errorf("%s removed: %s", other.now.mode, r)
		}
		traffic.More()
		if left, err := os.ReadDir(opts.EBPF.BPFFS + "/kube-proxy/v1"); err == nil && len(left) > 0 {
			t.Errorf("%s left %v", other.now.mode, left)
		}
	}
}
