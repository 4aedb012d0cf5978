//go:build linux

package nftables

import (
	"context"
	"errors"
	"testing"
	"time"

	"kube-proxy/internal/netlink"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/test/nlconntest"
	"kube-proxy/test/planetest"
)

// A kernel that does not answer blocks no reading of the table for ever, nor beyond the end of the
// context.
func TestSilentKernel(t *testing.T) {
	w := planetest.World{Family: lb.IPv4}
	tab := w.Table(5, 3)
	p := started(t, w, tab)
	want := dump(t, p)
	nothing := func() {}
	nlconntest.Check(t, p.sock.Conn, nothing, func(ctx context.Context) error {
		_, err := p.Reset(ctx, tab)
		return err
	})
	nlconntest.Check(t, p.sock.Conn, nothing, func(ctx context.Context) error {
		_, err := p.Audit(ctx, true)
		return err
	})
	isDump(t, p, want)
}

// A write without a reply fails at once with lost state. No timeout is needed, because the kernel
// answers a batch before it has done it, or not at all. The next Reset uses another socket, which
// the monitor knows.
func TestSilentKernelWhenWriting(t *testing.T) {
	w := planetest.World{Family: lb.IPv4}
	tab := w.Table(3, 2)
	p := started(t, w, tab)
	p.sock.Timeout = time.Hour
	changes, _ := tab.Replace(w.ClusterIP(3, 50, 3))
	for _, write := range []struct {
		what string
		do   func() error
	}{
		{"Apply", func() error { _, err := p.Apply(t.Context(), changes); return err }},
		{"Probe", func() error { return p.Probe(t.Context()) }},
	} {
		before := p.sock.Number()
		nlconntest.Silence(t, p.sock.Conn)
		if err := write.do(); !errors.Is(err, plane.ErrStateLost) || !errors.Is(err, netlink.ErrNoAnswer) {
			t.Errorf("%s: %v", write.what, err)
		}
		reset(t, p, tab)
		isFresh(t, p, tab, "after %s", write.what)
		changes, _ := tab.Replace(w.ClusterIP(4, 50, 3))
		if _, err := p.Apply(t.Context(), changes); err != nil || p.sock.Number() == before {
			t.Errorf("after %s: %v, port %d, before %d", write.what, err, p.sock.Number(), before)
		}
		p.mon.take()
		changes, _ = tab.Replace(w.ClusterIP(4, 50, 2))
		if _, err := p.Apply(t.Context(), changes); err != nil {
			t.Error(err)
		}
		runNFT(t, "add chain ip kube-proxy strange")
		noticed(t, p)
		if n := p.mon.take(); !n.structure || len(n.elements) > 0 || n.everything {
			t.Errorf("after %s the monitor noticed %+v, want the strange chain alone", write.what, n)
		}
		runNFT(t, "delete chain ip kube-proxy strange")
	}
}
