package nodetrace

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/kerneltest"
	"kube-proxy/trace"
)

// denier returns a program that drops each packet: the verdict is what its type calls so.
func denier(t *testing.T, typ ebpf.ProgramType, attach ebpf.AttachType, verdict int32) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "denies", Type: typ, AttachType: attach, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, verdict), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// program is a BPF program on the way of packets from pod1 to pod2.
type program struct {
	name   string
	attach func(t *testing.T, lab *netlab.TestLab, device int) (link.Link, error)
	doubt  string // a part of what the answer names
}

// linked keeps a link until the test ends.
func linked(p program) func(t *testing.T, lab *netlab.TestLab, device int) {
	return func(t *testing.T, lab *netlab.TestLab, device int) {
		t.Helper()
		l, err := p.attach(t, lab, device)
		if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EOPNOTSUPP) {
			t.Skipf("this kernel has none; test/vm/suites runs the test on 6.12: %v", err)
		} else if err != nil {
			t.Fatal(err)
		}
		if l != nil {
			t.Cleanup(func() { l.Close() })
		}
	}
}

func tcx(attach ebpf.AttachType) func(*testing.T, *netlab.TestLab, int) (link.Link, error) {
	return func(t *testing.T, _ *netlab.TestLab, device int) (link.Link, error) {
		return link.AttachTCX(link.TCXOptions{Interface: device, Attach: attach,
			Program: denier(t, ebpf.SchedCLS, ebpf.AttachNone, 2)})
	}
}

func clsact(kind string, parent uint32) func(*testing.T, *netlab.TestLab, int) (link.Link, error) {
	return func(t *testing.T, _ *netlab.TestLab, device int) (link.Link, error) {
		at := netlink.QdiscAttrs{LinkIndex: device, Handle: netlink.MakeHandle(0xffff, 0),
			Parent: netlink.HANDLE_CLSACT}
		var qdisc netlink.Qdisc = &netlink.GenericQdisc{QdiscAttrs: at, QdiscType: kind}
		if kind == "htb" {
			at.Handle, at.Parent = parent, netlink.HANDLE_ROOT
			qdisc = netlink.NewHtb(at)
		}
		return nil, errors.Join(netlink.QdiscAdd(qdisc), netlink.FilterAdd(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: device, Parent: parent, Handle: 1, Protocol: unix.ETH_P_ALL},
			Fd:          denier(t, ebpf.SchedCLS, ebpf.AttachNone, 2).FD(), Name: "denies", DirectAction: true}))
	}
}

func inCgroup(attach ebpf.AttachType) func(*testing.T, *netlab.TestLab, int) (link.Link, error) {
	return func(t *testing.T, lab *netlab.TestLab, _ int) (link.Link, error) {
		return link.AttachCgroup(link.CgroupOptions{Path: lab.Cgroup(netlab.Node1), Attach: attach,
			Program: denier(t, ebpf.CGroupSKB, attach, 0)})
	}
}

// netkit connects pod1 by a device of that kind.
func netkit(attach ebpf.AttachType) func(*testing.T, *netlab.TestLab, int) (link.Link, error) {
	return func(t *testing.T, lab *netlab.TestLab, _ int) (link.Link, error) {
		pod, err := lab.Namespace("pod1")
		if err != nil {
			return nil, err
		}
		kit := &netlink.Netkit{LinkAttrs: netlink.LinkAttrs{Name: "kit1"}, Mode: netlink.NETKIT_MODE_L3}
		kit.SetPeerAttrs(&netlink.LinkAttrs{Name: "kit0", Namespace: netlink.NsFd(pod)})
		if err := netlink.LinkAdd(kit); err != nil {
			return nil, err
		}
		lab.On("pod1", func() { err = routedBy("kit0", "10.1.1.12", "src 10.1.1.11") })
		if err = errors.Join(err, routedBy("kit1", "10.1.1.11", "")); err != nil {
			return nil, err
		}
		l, err := netlink.LinkByName("kit1")
		if err != nil {
			return nil, err
		}
		return link.AttachNetkit(link.NetkitOptions{Interface: l.Attrs().Index, Attach: attach,
			Program: denier(t, ebpf.SchedCLS, attach, 2)})
	}
}

// routedBy routes a prefix to a device, which it sets up.
func routedBy(device, to, source string) error {
	return runs(fmt.Sprintf("ip link set %s up; ip route replace %s dev %s %s", device, to, device, source))()
}

var programs = []program{
	{"XDP", func(t *testing.T, _ *netlab.TestLab, device int) (link.Link, error) {
		return link.AttachXDP(link.XDPOptions{Interface: device, Flags: link.XDPGenericMode,
			Program: denier(t, ebpf.XDP, ebpf.AttachNone, 1)})
	}, "program of XDP on vethpod1"},
	{"clsact, ingress", clsact("clsact", netlink.HANDLE_MIN_INGRESS), "filter of tc on vethpod1, ingress: bpf denies"},
	{"clsact, egress", clsact("clsact", netlink.HANDLE_MIN_EGRESS), "filter of tc on vethpod1, egress: bpf denies"},
	{"qdisc ingress", clsact("ingress", netlink.MakeHandle(0xffff, 0)),
		"filter of tc on vethpod1, ingress: bpf denies"},
	{"qdisc htb", clsact("htb", netlink.MakeHandle(1, 0)), "filter of tc on vethpod1, qdisc htb: bpf denies"},
	{"sk_lookup", func(t *testing.T, lab *netlab.TestLab, _ int) (link.Link, error) {
		ns, err := lab.Namespace(netlab.Node1)
		if err != nil {
			return nil, err
		}
		return link.AttachNetNs(int(ns), denier(t, ebpf.SkLookup, ebpf.AttachSkLookup, 0))
	}, "BPF program of this network namespace, sk_lookup: denies"},
	{"VRF", func(*testing.T, *netlab.TestLab, int) (link.Link, error) {
		vrf := &netlink.Vrf{LinkAttrs: netlink.LinkAttrs{Name: "vrf0"}, Table: 77}
		if err := netlink.LinkAdd(vrf); err != nil {
			return nil, err
		}
		return nil, runs("ip link set vrf0 up; ip link set vethpod1 master vrf0; " +
			"nft 'table ip t { chain c { type filter hook forward priority 0; iifname vrf0 drop; }; }'")()
	}, "VRF of vethpod1"},
	{"tcx, ingress", tcx(ebpf.AttachTCXIngress), "BPF program of tcx on vethpod1, ingress: denies"},
	{"tcx, egress", tcx(ebpf.AttachTCXEgress), "BPF program of tcx on vethpod1, egress: denies"},
	{"cgroup, ingress", inCgroup(ebpf.AttachCGroupInetIngress), "ingress: denies"},
	{"cgroup, egress", inCgroup(ebpf.AttachCGroupInetEgress), "egress: denies"},
	{"netkit, of the pod", netkit(ebpf.AttachNetkitPeer), "BPF program of netkit on kit1, ingress: denies"},
	{"netkit, to the pod", netkit(ebpf.AttachNetkitPrimary), "BPF program of netkit on kit1, egress: denies"},
	{"netfilter", func(t *testing.T, _ *netlab.TestLab, _ int) (link.Link, error) {
		if err := features.HaveProgramType(ebpf.Netfilter); err != nil {
			return nil, err
		}
		return link.AttachNetfilter(link.NetfilterOptions{ProtocolFamily: unix.NFPROTO_IPV4,
			HookNumber: unix.NF_INET_FORWARD, Priority: 7, Program: denier(t, ebpf.Netfilter, ebpf.AttachNetfilter, 0)})
	}, "Not evaluated: BPF program of netfilter at forward, priority 7: denies"},
}

// TestPrograms attaches BPF programs that drop the packet or its reply: the answer names them as
// not evaluated (NT-06).
func TestPrograms(t *testing.T) {
	kerneltest.Every(t)
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			lab := netlab.ForTest(t, netlab.Options{Cgroup: strings.Contains(p.name, "cgroup")})
			server := map[bool]string{true: netlab.Node1, false: "pod2"}[p.name == "sk_lookup"]
			lab.Serve(netlab.TCP, 8080, server)
			from, _ := netlab.HostByName("pod1")
			to, _ := netlab.HostByName(server)
			q := Question{Packet: trace.Packet{From: netip.AddrPortFrom(from.V4, 0),
				To: netip.AddrPortFrom(to.V4, 8080), Proto: lb.TCP}, OnNode: onNode1}
			if path := lab.Cgroup(netlab.Node1); path != "" {
				q.Kernel = &trace.Kernel{Programs: &trace.Programs{Cgroup: path}}
			}
			outcomes(t, lab, q, trace.Delivered, "")
			lab.On(netlab.Node1, func() {
				device, err := netlink.LinkByName("vethpod1")
				if err != nil {
					t.Fatal(err)
				}
				linked(p)(t, lab, device.Attrs().Index)
			})
			want := trace.Undecided
			if p.name == "netfilter" { // the kernel does not report the namespace
				want = trace.Delivered
			}
			q.Packet.In = map[string]string{"netkit, of the pod": "kit1", "netkit, to the pod": "kit1",
				"VRF": "vethpod1"}[p.name]
			outcomes(t, lab, q, want, p.doubt)
		})
	}
}

// outcomes asks, and sends a real packet: with a doubt it is not delivered, without one it is.
func outcomes(t *testing.T, lab *netlab.TestLab, q Question, want trace.NodeVerdict, doubt string) {
	t.Helper()
	lab.On(netlab.Node1, func() {
		n, err := Follow(t.Context(), q, open{})
		if all := strings.Join(slices.Concat(n.NotEvaluated, n.Warnings), "\n"); err != nil || n.Verdict != want ||
			!strings.Contains(all, doubt) || doubt == "" && len(n.NotEvaluated) > 0 {
			t.Errorf("%s, not evaluated %q (%v); want %s, %q", n.Verdict, n.NotEvaluated, err, want, doubt)
		}
	})
	packet := trace.Delivered
	if doubt != "" {
		packet = trace.Dropped
	}
	if real, err := outcome(lab, "pod1", q.Packet.To, packet); (real == trace.Delivered) != (doubt == "") {
		t.Errorf("the real packet is %s (%v), not evaluated is %q", real, err, doubt)
	}
}
