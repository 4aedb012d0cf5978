//go:build linux

package cleanup

import (
	"context"
	"errors"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/all"
	"kube-proxy/plane/ipvs"
)

// guard is the chain of mode ipvs that keeps clients away from programs of the node at service
// addresses.
const guard = `*filter
:KUBE-IPVS-FILTER - [0:0]
-A INPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER
-A KUBE-IPVS-FILTER -m set --match-set KUBE-CLUSTER-IP dst,dst -j RETURN
-A KUBE-IPVS-FILTER ! -p icmp -m conntrack --ctstate NEW -m set --match-set KUBE-IPVS-IPS dst -j REJECT --reject-with icmp-port-unreachable
COMMIT
`

// guarded makes the test's network namespace a node that mode ipvs has left. A program of the node
// listens at port 10250 of all addresses.
func guarded(t *testing.T, program string) {
	t.Helper()
	inNetns(t)
	run(t, "", "ip", "link", "set", "lo", "up")
	oursIPVS(t)
	run(t, "", "ipset", "add", "KUBE-IPVS-IPS", "10.96.0.10")
	run(t, guard, program+"-restore", "--noflush")
	l, err := net.Listen("tcp4", ":10250")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			c.Close()
		}
	}()
	if !reached("10.96.0.1") || reached("10.96.0.10") {
		t.Fatal("want the program to be reached at the address that is not guarded alone")
	}
}

// trying connects to the program repeatedly, in the network namespace of the calling thread. The
// function that it returns stops that, and reports the number of attempts and of connections.
func trying(t *testing.T) (stop func() (tries, through int)) {
	t.Helper()
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	ended, stopped := make(chan struct{}), make(chan struct{})
	tries, through := 0, 0
	go func() {
		defer close(ended)
		runtime.LockOSThread() // not unlocked: the thread ends with the goroutine
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		for {
			select {
			case <-stopped:
				return
			default:
			}
			tries++
			if reached("10.96.0.10") {
				through++
			}
		}
	}()
	return func() (int, int) {
		close(stopped)
		<-ended
		ns.Close()
		return tries, through
	}
}

// reached connects to the program at an address, by a packet that filter INPUT sees.
func reached(addr string) bool {
	c, err := net.DialTimeout("tcp4", addr+":10250", time.Second)
	if err == nil {
		c.Close()
	}
	return err == nil
}

// While the addresses of mode ipvs are removed, no connection reaches a program of the node at one
// of them, whichever mode takes over, and with --cleanup (TN-67). A client tries all the time.
func TestAddressesAreGuardedUntilTheyGo(t *testing.T) {
	needsAll(t)
	for name, c := range map[string]struct {
		program string
		// The mode that runs then, if its chains have the same names.
		start func(lb.Family) (opened, error)
		do    func(context.Context) (mode.Report, error)
	}{
		"to nftables":         {"iptables-nft", nil, now{mode: "nftables"}.others},
		"to nftables, legacy": {"iptables-legacy", nil, now{mode: "nftables"}.others},
		"to iptables": {"iptables-nft", openIPTables("nft"),
			now{mode: "iptables", backends: same("nft")}.others},
		"to userspace": {"iptables-nft", nil, now{mode: "userspace"}.others},
		"--cleanup": {"iptables-nft", nil, func(ctx context.Context) (mode.Report, error) {
			return Run(ctx, all.Modes(), mode.Removal{})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.Contains(c.program, "legacy") && !legacyWorks() {
				t.Skip("this machine has no legacy iptables")
			}
			guarded(t, c.program)
			if c.start != nil {
				start(t, bothFamilies, c.start)
			}
			stop := trying(t)
			_, err := c.do(t.Context())
			if tries, through := stop(); err != nil || tries == 0 || through > 0 {
				t.Errorf("%d of %d connections reached the program; %v", through, tries, err)
			}
			if s := state(t); strings.Contains(s, "KUBE-IPVS-") || strings.Contains(s, ipvs.Device) {
				t.Errorf("left:\n%s", s)
			}
		})
	}
}

// If addresses stay, so does the chain that guards them, with its sets (TN-67): with
// --cleanup-ipvs=false, and if the removal ends early.
func TestGuardStaysWithAddresses(t *testing.T) {
	needsAll(t)
	guarded(t, "iptables-nft")
	clean(t, only("iptables", "nftables"))
	if s := state(t); strings.Contains(s, "KUBE-POSTROUTING") || !strings.Contains(s, ipvs.Device) ||
		reached("10.96.0.10") {
		t.Errorf("after --cleanup-ipvs=false the program is reached, or there is\n%s", s)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, all.Modes(), mode.Removal{}); !errors.Is(err, context.Canceled) ||
		!strings.Contains(state(t), ipvs.Device) || reached("10.96.0.10") {
		t.Errorf("the removal was canceled: %v, and the program is reached, or there is\n%s", err, state(t))
	}
	clean(t, only("ipvs"))
	if s := state(t); strings.Contains(s, "KUBE-IPVS-") || strings.Contains(s, ipvs.Device) {
		t.Errorf("left:\n%s", s)
	}
}
