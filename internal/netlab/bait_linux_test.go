package netlab

import (
	"net/netip"
	"testing"
)

// With its bait the sink answers whatever goes to a service range from a node's pods, and nobody does without.
func TestBaitSink(t *testing.T) {
	forBoth(t, func(t *testing.T, opts Options) {
		l := newLab(t, opts)
		listen(t, l, Sink, TCP, 80)
		for range 2 { // a second time harms nothing
			if err := l.BaitSink(); err != nil {
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
	if reply, err := l.Dial("pod1", TCP, netip.AddrPortFrom(Service4.Addr().Next(), 80), DialOptions{Timeout: quick}); err == nil {
		t.Errorf("without bait %s answers", reply.Server)
	}
}
