package iptables

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
)

// Where route_localnet cannot be set back, the rule that protects 127.0.0.1 stays though NodePorts do not answer there any
// more (DP-10).
func TestMartianRuleStaysWhileRouted(t *testing.T) {
	needs(t, NFT)
	err := netlab.Isolated(unix.CLONE_NEWNS, func() error {
		p, err := New(Config{Family: lb.IPv4, Backend: NFT})
		if err != nil {
			return err
		}
		defer p.Close()
		if err := p.Reset(t.Context(), shopTable()); err != nil {
			return err
		}
		for _, m := range []struct {
			from  string
			flags uintptr
		}{{"", unix.MS_REC | unix.MS_PRIVATE}, {"/proc/sys", unix.MS_BIND}, {"", unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY}} {
			on := "/proc/sys"
			if m.flags&unix.MS_PRIVATE != 0 {
				on = "/"
			}
			if err := unix.Mount(m.from, on, "", m.flags, ""); err != nil {
				return fmt.Errorf("mount %s: %w", on, err)
			}
		}
		elsewhere := shopTable().Node
		elsewhere.NodePorts = []netip.Prefix{netip.MustParsePrefix("172.18.0.2/32")}
		if err := p.SetNode(t.Context(), elsewhere); err != nil {
			t.Error(err)
		}
		routesLocalnet(t, true)
		out, err := p.tool.run.Run(t.Context(), nil, "iptables-nft", "-S", nodeFirewall)
		if err != nil || !strings.Contains(string(out), martian) {
			t.Errorf("route_localnet is 1, and KUBE-FIREWALL has %q, %v", out, err)
		}
		if mended, err := auditAll(p); mended != 0 || err != nil {
			t.Errorf("an audit mended %d, %v", mended, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
