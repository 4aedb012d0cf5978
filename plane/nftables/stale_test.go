//go:build linux

package nftables

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
)

// A client tried a service before its rules existed, and the kernel tracked that: connections from
// the same port are no longer translated. They are refused. Before, each refusal kept the entry for
// another two minutes and freed the port for the next attempt; now the entry ends soon, however
// often the client tries.
func TestConnectionFromBeforeTheService(t *testing.T) {
	if !resetCloses(t) {
		t.Skip("before Linux 6.3 a TCP reset does not close a tracked connection")
	}
	for from, service := range map[string]string{"pod3": "10.96.0.10", netlab.Node1: "fd00:10:96::10"} {
		t.Run(from, func(t *testing.T) {
			t.Parallel()
			to := netip.MustParseAddr(service)
			fromBefore(t, lb.FamilyOf(to), from, to)
		})
	}
}

func fromBefore(t *testing.T, fam lb.Family, from string, service netip.Addr) {
	lab := netlab.ForTest(t, netlab.Options{NoNode2: true, NoClient: true})
	lab.Serve(netlab.TCP, 8080, "pod1")
	// Foreign rules make the kernel track connections, and the test shortens the timeout of closed
	// ones.
	lab.On(netlab.Node1, func() {
		runNFT(t, "add table inet others; add chain inet others c { type filter hook output priority 0; }; add rule "+
			"inet others c ct state invalid drop")
		if err := os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close", []byte("2"), 0); err != nil {
			t.Fatal(err)
		}
	})
	to := netip.AddrPortFrom(service, 80)
	host, _ := netlab.HostByName(from)
	dial := func(timeout time.Duration) error {
		_, err := lab.Dial(from, netlab.TCP, to, netlab.DialOptions{Timeout: timeout,
			Local: netip.AddrPortFrom(host.Addr(fam == lb.IPv6), 40001)})
		return err
	}
	if err := dial(20 * time.Millisecond); !errors.Is(err, netlab.ErrTimeout) {
		t.Fatalf("without rules: %v, want no answer", err)
	}
	pod1, _ := netlab.HostByName("pod1")
	name := "shop/web:http"
	set := &lb.BackendSet{ID: lb.SetID{Service: name, Proto: lb.TCP, Scope: lb.Cluster},
		Backends: lb.BackendsOf(lb.Backend{Addr: netip.AddrPortFrom(pod1.Addr(fam == lb.IPv6), 8080), Local: true})}
	table := &lb.Table{}
	table.Replace(lb.Owner{Name: "shop/web"}, []*lb.Frontend{{Key: lb.Key{Addr: service, Port: 80, Proto: lb.TCP},
		Service: name, Kind: lb.ClusterIP, Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, To: set}}}})
	lab.On(netlab.Node1, func() { reset(t, newPlane(t, fam), table) })
	if err := dial(20 * time.Second); !errors.Is(err, netlab.ErrRefused) {
		t.Fatalf("with rules: %v, want a refusal", err)
	}
	for start := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		err := dial(3 * time.Second)
		if err == nil {
			t.Logf("served after %v", time.Since(start).Round(time.Millisecond))
			return
		}
		if time.Since(start) > time.Minute {
			t.Fatalf("%v after the rules came: %v", time.Since(start), err)
		}
	}
}

// resetCloses reports whether the kernel is 6.3 or newer.
func resetCloses(t *testing.T) bool {
	t.Helper()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	release := unix.ByteSliceToString(name.Release[:])
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		t.Fatalf("kernel release %q: %v", release, err)
	}
	return major > 6 || major == 6 && minor >= 3
}
