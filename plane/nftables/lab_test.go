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

// inNetns runs the rest of the test in a network namespace of its own.
func inNetns(t testing.TB) {
	t.Helper()
	netlab.EnterForTest(t)
}

func newPlane(t testing.TB, f lb.Family) *Plane {
	t.Helper()
	p, err := New(Config{Family: f})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
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

func apply(t testing.TB, p *Plane, changes []lb.Change, _ []lb.Contest) {
	t.Helper()
	if _, err := p.Apply(context.Background(), changes); err != nil {
		t.Fatal(err)
	}
}

func dump(t testing.TB, p *Plane) string {
	t.Helper()
	return dumpUntil(t, p, func(s string) bool { return !strings.Contains(s, "FAULT") }, "one that is consistent")
}

// dumpUntil reads the table until it is as wanted, for a while: of a set that was filled just now the kernel makes the hash
// table larger behind the scenes, and who lists it meanwhile misses elements and sees others twice.
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

// fresh is the dump of a table that was never anything else.
func fresh(t *testing.T, f lb.Family, want *lb.Table) string {
	t.Helper()
	var s string
	done := make(chan struct{})
	go func() { // a thread and a namespace of its own
		defer close(done)
		inNetns(t)
		p := newPlane(t, f)
		reset(t, p, want)
		last := ""
		s = dumpUntil(t, p, func(s string) bool {
			still := s == last || len(s) < 10_000 // so few elements come in one message
			last = s
			return still && !strings.Contains(s, "FAULT")
		}, "one that does not change")
	}()
	<-done
	return s
}

// isFresh expects what a fresh start makes of the table.
func isFresh(t *testing.T, p *Plane, want *lb.Table, about ...any) {
	t.Helper()
	isDump(t, p, fresh(t, p.ip.Family, want), about...)
}

// isDump expects that dump.
func isDump(t *testing.T, p *Plane, want string, about ...any) {
	t.Helper()
	if got := dump(t, p); got != want {
		t.Fatalf("%v got:\n%s\nwant:\n%s", about, got, want)
	}
}

// runNFT runs the nft program, which tests may use.
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
