//go:build linux

package nftables

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/test/planetest"
)

// inNetns runs the rest of the test in a new network namespace.
func inNetns(t testing.TB) {
	t.Helper()
	netlab.EnterForTest(t)
}

func newPlane(t testing.TB, f lb.Family) *Plane {
	t.Helper()
	return planeOf(t, Config{Family: f})
}

func planeOf(t testing.TB, cfg Config) *Plane {
	t.Helper()
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// started returns a plane with a table, in a new network namespace.
func started(t testing.TB, w planetest.World, want *lb.Table) *Plane {
	t.Helper()
	inNetns(t)
	p := newPlane(t, w.Family)
	reset(t, p, want)
	return p
}

func reset(t testing.TB, p *Plane, want *lb.Table) plane.ResetResult {
	t.Helper()
	res, err := planetest.ResetAll(context.Background(), p, want)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func apply(t testing.TB, p *Plane, changes []lb.Change) {
	t.Helper()
	if _, err := p.Apply(context.Background(), changes); err != nil {
		t.Fatal(err)
	}
}

func dump(t testing.TB, p *Plane) string {
	t.Helper()
	return dumpUntil(t, p, func(s string) bool { return !strings.Contains(s, "FAULT") }, "one that is consistent")
}

// dumpUntil reads the table repeatedly, for a limited time, until good accepts it. The kernel grows
// the hash table of a newly filled set in the background, and a listing meanwhile misses elements
// or has them twice.
func dumpUntil(t testing.TB, p *Plane, good func(string) bool, want string) string {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		s, err := p.Dump()
		if err != nil {
			t.Fatal(err)
		}
		if good(s) {
			return s
		}
		if time.Now().After(end) {
			t.Errorf("got:\n%s\nwant:\n%s", s, want)
			return s
		}
	}
}

// fresh returns the dump of a newly written table.
func fresh(t *testing.T, f lb.Family, want *lb.Table) string {
	t.Helper()
	var s string
	done := make(chan struct{})
	go func() { // in a new thread and namespace
		defer close(done)
		p := started(t, planetest.World{Family: f}, want)
		last := ""
		s = dumpUntil(t, p, func(s string) bool {
			still := s == last || len(s) < 10_000 // so few elements fit in one message
			last = s
			return still && !strings.Contains(s, "FAULT")
		}, "one that does not change")
	}()
	<-done
	return s
}

// isFresh checks that the table equals the result of a fresh start.
func isFresh(t *testing.T, p *Plane, want *lb.Table, about ...any) {
	t.Helper()
	isDump(t, p, fresh(t, p.ip.Family, want), about...)
}

// isDump checks that the table has that dump.
func isDump(t *testing.T, p *Plane, want string, about ...any) {
	t.Helper()
	if got := dump(t, p); got != want {
		t.Fatalf("%v got:\n%s\nwant:\n%s", about, got, want)
	}
}

// runNFT runs the nft program, which only tests may use.
func runNFT(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command("nft", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("nft %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func eachFamily(t *testing.T, f func(t *testing.T, w planetest.World)) {
	for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
		t.Run(fam.String(), func(t *testing.T) { f(t, planetest.World{Family: fam}) })
	}
}
