//go:build linux

package ebpf

import (
	"errors"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
)

// silence makes the last heartbeat older than the timeout, as if the proxy had ended long ago.
func (b *bench) silence() {
	b.t.Helper()
	s, err := settingsIn(b.plane.kernel.obj.Config)
	b.must(err)
	s.Timeout = 1
	b.must(b.plane.kernel.obj.Config.Put(uint32(0), s))
}

// TestHeartbeat: programs whose proxy gives no sign of life pass new sockets and bind() to the
// packet path. Open sockets keep their endpoints and peers, and a new process takes over (EB-30).
func TestHeartbeat(t *testing.T) {
	with := func(c *Config) { c.Heartbeat, c.Guard = time.Hour, true }
	eachFamilyWith(t, with, func(b *bench) {
		udp, tcp := b.socket("pod3", unix.SOCK_DGRAM, false), b.socket("pod3", unix.SOCK_STREAM, false)
		b.asks("at first", udp, b.to("VIP:53"), "pod1")
		b.must(unix.Connect(tcp, sockaddr(b.to("VIP:80"))))
		if s := b.plane.Sockets(); !s.Serving || s.Timeout != time.Hour || s.Heartbeat > time.Hour {
			b.t.Errorf("at first: %+v", s)
		}
		any := netip.AddrPortFrom(b.f.Everywhere().Addr(), 30080)
		if err := b.bind(netlab.Node1, unix.SOCK_STREAM, any); !errors.Is(err, busy()) {
			b.t.Errorf("at first: bind() to a NodePort: %v", err)
		}
		b.silence()
		for _, from := range []string{"pod3", netlab.Node1} {
			r, err := b.Dial(from, netlab.TCP, b.to("VIP:80"), netlab.DialOptions{})
			if err != nil || r.Server != "pod1" {
				b.t.Errorf("without heartbeat: %s: %q answered, error %v", from, r.Server, err)
			}
		}
		if b.direct("pod3") {
			b.t.Error("without heartbeat: a connection is direct")
		}
		if err := b.bind(netlab.Node1, unix.SOCK_STREAM, any); err != nil {
			b.t.Errorf("without heartbeat: bind() to a NodePort: %v", err)
		}
		if s := b.plane.Sockets(); s.Serving || !strings.Contains(s.Off, "no heartbeat for") {
			b.t.Errorf("without heartbeat: %+v", s)
		}
		b.noRules()
		b.asks("an open UDP socket", udp, b.to("VIP:53"), "pod1")
		b.hasPeer("an open TCP socket", tcp, b.to("VIP:80"))
		b.restart(with)
		if !b.direct("pod3") {
			b.t.Error("after a restart: a connection is not direct")
		}
		b.asks("after a restart", udp, b.to("VIP:53"), "pod1")
	})
}

// TestBeats: a plane writes heartbeats by itself, and none while a call does not end. With 0
// the programs serve for ever (EB-30).
func TestBeats(t *testing.T) {
	b := newBench(t, lb.IPv4, func(c *Config) { c.Heartbeat = 10 * time.Millisecond })
	b.table = b.parse(shop)
	b.On(netlab.Node1, func() { b.plane = b.newPlane(); b.reset(b.table) })
	last := func() uint64 {
		s, err := settingsIn(b.plane.kernel.obj.Config)
		b.must(err)
		return s.Heartbeat
	}
	for first := last(); last() == first; {
		runtime.Gosched()
	}
	b.plane.calls.Lock()
	stuck := last()
	time.Sleep(20 * time.Millisecond) // one that is late can only pass
	if now := last(); now != stuck {
		t.Error("a heartbeat during a call that does not end")
	}
	b.plane.calls.Unlock()
	for last() == stuck {
		runtime.Gosched()
	}
	b.restart(nil)
	if s, err := settingsIn(b.plane.kernel.obj.Config); err != nil || s.Timeout != 0 {
		t.Errorf("without a timeout: %+v, error %v", s, err)
	}
	b.must(b.plane.Close())
}
