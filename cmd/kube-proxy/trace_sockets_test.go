//go:build linux

package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/trace"
)

// TestTraceSockets traces connections that eBPF programs of the proxy make: the answer says what
// the programs do, follows the packet from the chosen backend, and agrees with real sockets (NT-01,
// NT-06).
func TestTraceSockets(t *testing.T) {
	n := newTraceLab(t, "ebpf")
	bpffs := t.TempDir()
	do(t, unix.Mount("bpf", bpffs, "bpf", 0, ""))
	t.Cleanup(func() { do(t, unix.Unmount(bpffs, 0)) })
	p := n.serve("--ebpf-cgroup="+n.Cgroup(netlab.Node1), "--ebpf-bpffs="+bpffs)
	defer p.stop()
	for _, f := range []nodeFault{
		{name: "nothing"},
		{name: "nothing, IPv6", six: true},
		{name: "nothing, UDP", udp: true},
		{name: "nothing, of the node", from: "node1", to: two},
		{name: "the Service's address is not on the way", by: "ip daddr 10.96.0.10 drop",
			modes: "prerouting priority -300"},
		{name: "forward", expect: trace.Dropped, by: "tcp dport 8080 drop", modes: "forward priority 0"},
		{name: "before any translation", expect: trace.Dropped, by: "ip daddr 10.1.1.12 drop",
			modes: "prerouting priority -300"},
		{name: "one backend", expect: trace.Dropped, to: two, by: "ip daddr 10.1.2.14 drop",
			modes: "forward priority 0"},
		{name: "the reply", expect: trace.Dropped, by: "ip saddr 10.1.1.12 drop", modes: "postrouting priority 0"},
		{name: "output", from: "node1", expect: trace.Dropped, by: "ip daddr 10.1.1.12 drop",
			modes: "output priority -300"},
	} {
		t.Run(f.name, func(t *testing.T) {
			f.do, f.undo = "true", "true"
			if f.by != "" {
				f.do, f.undo = nft("inet", f.modes, f.by)
			}
			if f.expect == "" {
				f.expect, f.by = trace.Delivered, ""
			}
			n.fault(t, f, "nftables")
		})
	}
	t.Run("connected", func(t *testing.T) {
		a, text := n.traced(t, nodeFault{from: "pod1", to: two})
		socket := func(s trace.Step) bool { return s.Stage == "socket" && strings.Contains(s.Text, "eBPF program") }
		if a.Kernel == nil || len(a.Kernel.Backends) != 2 || !slices.ContainsFunc(a.Rest.Steps, socket) ||
			len(a.Rest.NotEvaluated) > 0 || !strings.Contains(text(), "an eBPF program connects it") {
			t.Errorf("%+v\n%s", a.Kernel, text())
		}
	})
	t.Run("status", func(t *testing.T) {
		code, out := n.query("status")
		out = unfolded(out)
		for _, family := range []string{"IPv4", "IPv6"} {
			if want := family + " served by eBPF programs (heartbeat "; !strings.Contains(out, want) {
				t.Errorf("exit code %d, want %q in\n%s", code, want, out)
			}
		}
		metrics, err := p.get("/metrics")
		do(t, err)
		if !strings.Contains(metrics, `kubeproxy_ebpf_heartbeat_age_seconds{ip_family="IPv6"}`) {
			t.Error("no metric of the heartbeat")
		}
	})
	t.Run("from outside", func(t *testing.T) {
		a, text := n.traced(t, nodeFault{from: "client"})
		if a.Rest.Verdict != trace.Delivered || slices.ContainsFunc(a.Rest.Steps, func(s trace.Step) bool {
			return s.Stage == "socket"
		}) {
			t.Error(text())
		}
	})
	t.Run("programs of others", func(t *testing.T) {
		theirs, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "theirs", Type: ebpf.CGroupSockAddr,
			AttachType: ebpf.AttachCGroupInet4Connect, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}})
		do(t, err)
		defer theirs.Close()
		attached, err := link.AttachCgroup(link.CgroupOptions{Path: n.Cgroup(netlab.Node1),
			Attach: ebpf.AttachCGroupInet4Connect, Program: theirs})
		do(t, err)
		defer attached.Close()
		until(t, func() string {
			a, text := n.traced(t, nodeFault{from: "pod1"})
			if r := a.Rest; r.Verdict == trace.Undecided && slices.ContainsFunc(r.NotEvaluated, func(s string) bool {
				return strings.Contains(s, "cgroup /run/cgroup") && strings.HasSuffix(s, "connect: theirs")
			}) {
				return ""
			}
			return text()
		})
	})
}
