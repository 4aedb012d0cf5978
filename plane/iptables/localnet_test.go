//go:build linux

package iptables

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/test/planetest"
)

// If route_localnet cannot be reset, the rule that protects 127.0.0.1 stays although NodePorts no
// longer answer there (DP-10).
func TestMartianRuleStaysWhileRouted(t *testing.T) {
	needs(t, xtables.NFT)
	err := netlab.Isolated(unix.CLONE_NEWNS, func() error {
		p, err := New(Config{Family: lb.IPv4, Backend: xtables.NFT})
		if err != nil {
			return err
		}
		defer p.Close()
		if _, err := p.Reset(t.Context(), shopTable()); err != nil {
			return err
		}
		if err := sysctlsReadOnly(); err != nil {
			return err
		}
		if err := p.SetNode(t.Context(), elsewhere()); err != nil {
			t.Error(err)
		}
		routesLocalnet(t, true)
		out, err := xtables.Output(t.Context(), p.Tool.Run, "iptables-nft", "-S", xtables.NodeFirewall)
		if err != nil || !strings.Contains(string(out), xtables.BlockLocalnet) {
			t.Errorf("route_localnet is 1, and KUBE-FIREWALL has %q, %v", out, err)
		}
		repairs(t, p, 0, "unchanged")
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// sysctlsReadOnly makes /proc/sys read-only in the mount namespace of the calling thread.
func sysctlsReadOnly() error {
	for _, m := range []struct {
		from  string
		flags uintptr
	}{{"", unix.MS_REC | unix.MS_PRIVATE}, {"/proc/sys", unix.MS_BIND},
		{"", unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY}} {
		on := "/proc/sys"
		if m.flags&unix.MS_PRIVATE != 0 {
			on = "/"
		}
		if err := unix.Mount(m.from, on, "", m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", on, err)
		}
	}
	return nil
}

// If route_localnet cannot be set, NodePorts do not answer on 127.0.0.1, each audit reports it, and
// everything else works.
func TestLocalnetCannotBeSet(t *testing.T) {
	needs(t, xtables.NFT)
	err := netlab.Isolated(unix.CLONE_NEWNS, func() error {
		if err := sysctlsReadOnly(); err != nil {
			return err
		}
		p, err := New(Config{Family: lb.IPv4, Backend: xtables.NFT})
		if err != nil {
			return err
		}
		defer p.Close()
		table := shopTable()
		if _, err := p.Reset(t.Context(), table); err != nil {
			t.Errorf("reset: %v", err)
		}
		changes, _ := table.Replace(planetest.World{Family: lb.IPv4}.ClusterIP(1, 10, 1))
		if _, err := p.Apply(t.Context(), changes); err != nil {
			t.Errorf("apply: %v", err)
		}
		for range 2 {
			if repaired, err := p.Audit(t.Context(), true); repaired != 0 || err == nil ||
				!strings.Contains(err.Error(), "--iptables-localhost-nodeports") || errors.Is(err, plane.ErrStateLost) {
				t.Errorf("audit: repaired %d, %v", repaired, err)
			}
		}
		routesLocalnet(t, false)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// kubeletFirewall are the rules that a kubelet writes at its start, and not again while its
// canaries exist.
const kubeletFirewall = `*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
-A INPUT -j KUBE-FIREWALL
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL -m comment --comment "block incoming localnet connections" --dst 127.0.0.0/8 ! --src 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
COMMIT
`

// The kubelet writes the same rule that blocks localnet, and other programs that set route_localnet
// for an interface rely on it. So one copy always stays (G3, CVE-2020-8558).
func TestMartianRuleOfKubelet(t *testing.T) {
	eachBackend(t, func(t *testing.T, b xtables.Backend) {
		for _, unlistable := range []bool{false, true} {
			if unlistable && b == xtables.Legacy {
				continue
			}
			t.Run(fmt.Sprintf("unlistable %t", unlistable), func(t *testing.T) {
				inNetns(t)
				program := backend(b).program(lb.IPv4)
				count := func(when string) {
					t.Helper()
					if n := strings.Count(run(t, "", program, "-S", xtables.NodeFirewall),
						xtables.BlockLocalnet); n != 1 {
						t.Errorf("%s: %d rules that block localnet, want that of the kubelet", when, n)
					}
				}
				run(t, kubeletFirewall, program+"-restore", "--noflush")
				if unlistable {
					run(t, "", "nft", "add", "rule", "ip", "mangle", "KUBE-IPTABLES-HINT", "ct", "state", "new",
						"counter", "accept")
				}
				off := false
				p := newPlane(t, Config{Family: lb.IPv4, Backend: b, LocalhostNodePorts: &off})
				reset(t, p, shopTable())
				count("NodePorts do not answer on 127.0.0.1")
				p = newPlane(t, Config{Family: lb.IPv4, Backend: b})
				reset(t, p, shopTable())
				count("they do")
				for _, n := range []lb.Node{elsewhere(), shopTable().Node, elsewhere()} {
					if err := p.SetNode(t.Context(), n); err != nil {
						t.Error(err)
					}
					count(fmt.Sprintf("NodePorts are on %v", n.NodePorts))
				}
				routesLocalnet(t, false)
				repairs(t, p, 0, "unchanged")
				if unlistable {
					return
				}
				reset(t, p, shopTable())
				for range 2 {
					removes(t, xtables.RemoveConfig{Family: lb.IPv4, Backend: b})
					count("our rules are removed")
				}
				routesLocalnet(t, false)
			})
		}
	})
}

// With a kubelet, the rule does not show who set route_localnet. Other programs may need it, for
// example to translate connections to their server on 127.0.0.1. The plane resets it only if this
// process set it.
func TestLocalnetOfOthers(t *testing.T) {
	needs(t, xtables.NFT)
	inNetns(t)
	run(t, kubeletFirewall, "iptables-nft-restore", "--noflush")
	run(t, "", "sysctl", "-qw", xtables.RouteLocalnet+"=1")
	moved := shopTable()
	moved.Node = elsewhere()
	p := newPlane(t, Config{Family: lb.IPv4, Backend: xtables.NFT})
	reset(t, p, moved)
	routesLocalnet(t, true)
	run(t, "", "sysctl", "-qw", xtables.RouteLocalnet+"=0")
	reset(t, p, shopTable())
	routesLocalnet(t, true)
	reset(t, p, moved)
	routesLocalnet(t, false)
}

// A kubelet may start after us, and finds its rule written.
func TestMartianRuleOfLaterKubelet(t *testing.T) {
	needs(t, xtables.NFT)
	inNetns(t)
	p := newPlane(t, Config{Family: lb.IPv4, Backend: xtables.NFT})
	reset(t, p, shopTable())
	run(t, "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n", "iptables-nft-restore", "--noflush")
	if repaired, err := p.Audit(t.Context(), false); repaired != 0 || err != nil {
		t.Errorf("an audit repaired %d, %v", repaired, err)
	}
	node := shopTable().Node
	node.NodePorts = nil
	if err := p.SetNode(t.Context(), node); err != nil {
		t.Error(err)
	}
	if rules := run(t, "", "iptables-nft", "-S", xtables.NodeFirewall); !strings.Contains(rules,
		xtables.BlockLocalnet) {
		t.Errorf("the rule that the kubelet relies on is gone:\n%s", rules)
	}
}
