//go:build linux

package nftables

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/test/planetest"
)

// A probe is a transaction that the kernel commits, and that changes nothing visible: neither this
// nor another process finds anything to repair (HT-04).
func TestProbeHT04(t *testing.T) {
	eachFamily(t, func(t *testing.T, w planetest.World) {
		inNetns(t)
		p := newPlane(t, w.Family)
		if err := p.Probe(t.Context()); !errors.Is(err, plane.ErrStateLost) {
			t.Errorf("before a Reset: error %v", err)
		}
		for _, tab := range []*lb.Table{{}, w.Table(5, 3)} {
			if tab.Len() > 0 {
				tab.Replace(w.Full(10, 500, 5, 2, 0))
				tab.Replace(w.Full(11, 600, 5, 0, 3*time.Hour))
			}
			reset(t, p, tab)
			before, listed, sent := dump(t, p), runNFT(t, "-s", "list", "ruleset"), p.Stats()
			generation := generationOf(t, p)
			for range 3 {
				if err := p.Probe(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if n := generationOf(t, p) - generation; n != 3 {
				t.Errorf("3 proofs were %d transactions to the kernel", n)
			}
			if s := p.Stats().minus(sent); s.Batches != 3 || s.Failures != 0 {
				t.Errorf("counted %+v", s)
			}
			isDump(t, p, before)
			if after := runNFT(t, "-s", "list", "ruleset"); after != listed {
				t.Errorf("listed before:\n%s\nafter:\n%s", listed, after)
			}
			if !p.mon.silent() {
				t.Error("the plane took its own proof for drift")
			}
			for _, full := range []bool{false, true} {
				if n, err := p.Audit(t.Context(), full); err != nil || n != 0 {
					t.Errorf("an audit (full: %t) then repaired %d, error %v", full, n, err)
				}
			}
			q := newPlane(t, w.Family)
			reset(t, q, tab)
			if n := q.Stats().Batches; n != 0 {
				t.Errorf("another process then sent %d batches", n)
			}
		}
	})
}

func generationOf(t *testing.T, p *Plane) uint32 {
	t.Helper()
	g, err := p.sock.Generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// If the kernel refuses all our writes, a probe fails with the reason.
func TestProbeRefused(t *testing.T) {
	w := planetest.World{Family: lb.IPv4}
	p := started(t, w, w.Table(5, 3))
	before := dump(t, p)
	header := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	caps := make([]unix.CapUserData, 2)
	if err := unix.Capget(header, &caps[0]); err != nil {
		t.Fatal(err)
	}
	had := caps[0].Effective
	caps[0].Effective = had &^ (1 << unix.CAP_NET_ADMIN)
	if err := unix.Capset(header, &caps[0]); err != nil {
		t.Fatal(err)
	}
	err := p.Probe(t.Context())
	caps[0].Effective = had
	if err := unix.Capset(header, &caps[0]); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, fs.ErrPermission) || errors.Is(err, plane.ErrStateLost) ||
		!strings.Contains(err.Error(), "CAP_NET_ADMIN") {
		t.Errorf("without the capability: error %v", err)
	}
	if s := p.Stats(); s.Failures != 1 {
		t.Errorf("counted %+v", s)
	}
	isDump(t, p, before)
	if err := p.Probe(t.Context()); err != nil {
		t.Errorf("with the capability again: %v", err)
	}
}
