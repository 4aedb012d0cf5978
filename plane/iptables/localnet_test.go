package iptables

import (
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/lb"
)

// Where route_localnet cannot be set back, the rule that protects 127.0.0.1 stays though NodePorts do not answer there any
// more (DP-10).
func TestMartianRuleStaysWhileRouted(t *testing.T) {
	needs(t, NFT)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread and its namespaces end with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
			t.Error(err)
			return
		}
		p, err := New(Config{Family: lb.IPv4, Backend: NFT})
		if err != nil {
			t.Error(err)
			return
		}
		defer p.Close()
		if err := p.Reset(t.Context(), shopTable()); err != nil {
			t.Error(err)
			return
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
				t.Errorf("mount %s: %v", on, err)
				return
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
	}()
	<-done
}
