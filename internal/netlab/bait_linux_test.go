package netlab

import (
	"errors"
	"net/netip"
	"testing"
	"time"
)

// With its bait the sink answers all packets of a node's pods to service ranges; without, nothing
// answers.
func TestBaitSink(t *testing.T) {
	forBoth(t, func(t *testing.T, opts Options) {
		l := newLab(t, opts)
		for range 2 { // a second call has no effect
			if err := l.BaitSink(); err != nil {
				t.Fatal(err)
			}
			if err := l.BaitPort(TCP, 80); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range ServiceRanges() {
			to := netip.AddrPortFrom(p.Addr().Next(), 80)
			for _, pod := range []string{"pod1", "pod4"} {
				reply, err := l.Dial(pod, TCP, to, DialOptions{})
				if err != nil || reply.Server != Sink {
					t.Errorf("%s to %s: %q answers, %v; want the sink", pod, to, reply.Server, err)
				}
				if from := Owner(reply.Seen.Addr()); from != pod {
					t.Errorf("%s to %s: the sink sees %s", pod, to, reply.Seen)
				}
			}
		}
	})
	l := newLab(t, Options{})
	listen(t, l, Sink, TCP, 80)
	if reply, err := l.Dial("pod1", TCP, netip.AddrPortFrom(Service4.Addr().Next(), 80),
		DialOptions{Timeout: quick}); err == nil {
		t.Errorf("without bait %s answers", reply.Server)
	}
}

// A quiet machine waits for the shortest time. A lab without responders is an error.
func TestSilence(t *testing.T) {
	l := newLab(t, Options{})
	if d, err := l.Silence(8080); !errors.Is(err, ErrRefused) {
		t.Errorf("without responders: %v, %v", d, err)
	}
	listen(t, l, "pod1", TCP, 8080)
	listen(t, l, "pod4", TCP, 8080)
	if d, err := l.Silence(8080); err != nil || d < 300*time.Millisecond || d > 2*time.Second {
		t.Errorf("%v, %v", d, err)
	}
}
