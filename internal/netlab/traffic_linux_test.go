package netlab

import (
	"net/netip"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Traffic notices a host that stops answering for a moment, a closed connection, and a wrong
// source; and reports nothing without a fault.
func TestTraffic(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("the rules of this test need the nft program: ", err)
	}
	nft := func(t *testing.T, l *Lab, rules string) {
		t.Helper()
		if out, err := l.Command(Node1, "nft", rules).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	to := netip.MustParseAddrPort("172.18.0.2:8080")
	for _, c := range []struct {
		name, seen string
		disturb    func(t *testing.T, l *Lab)
		want       string
	}{
		{"nothing", "client", nil, ""},
		{"other source", "node2", nil, "came from 172.18.0.100"},
		{"hole", "client", func(t *testing.T, l *Lab) {
			nft(t, l, "add table ip t; add chain ip t c { type filter hook input priority 0; }; add rule ip t c ct "+
				"state new drop")
			time.Sleep(300 * time.Millisecond)
			nft(t, l, "delete table ip t")
		}, "had to be repeated"},
		{"cut", "client", func(t *testing.T, l *Lab) {
			nft(t, l, "add table ip t; add chain ip t c { type filter hook input priority 0; }; add rule ip t c ct "+
				"state established reject with tcp reset")
			time.Sleep(300 * time.Millisecond)
			nft(t, l, "delete table ip t")
		}, "client to 172.18.0.2:8080"},
	} {
		// once returns the result of Stop, and whether the machine was fast enough for a repeated
		// SYN to count.
		once := func(t *testing.T) (error, bool) {
			lab := newLab(t, Options{})
			listen(t, lab, Node1, TCP, 8080)
			traffic, err := lab.StartTraffic(Way{From: "client", To: to, Seen: c.seen})
			if err != nil {
				t.Fatal(err)
			}
			if err := traffic.More(); err != nil {
				t.Error(err)
			}
			if c.disturb != nil {
				c.disturb(t, lab)
			}
			if err := traffic.More(); err != nil {
				t.Error(err)
			}
			err = traffic.Stop()
			return err, traffic.streams[0].slowest < slow
		}
		t.Run(c.name, func(t *testing.T) {
			err, fast := once(t)
			// A machine that is busy with other tests can be too slow for an attempt, not for all
			// of them.
			for attempts := 1; err == nil && c.want != "" && !fast && attempts < 20; attempts++ {
				err, fast = once(t)
			}
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// A resting loop leaves the processors to others for a multiple of its own time, however slow the
// machine is.
func TestTrafficRests(t *testing.T) {
	for _, took := range []time.Duration{time.Millisecond, 100 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			s := &stream{Way: Way{Rest: 9}}
			stop, began := make(chan struct{}), time.Now()
			var count atomic.Int64
			s.loop(stop, &count, func(n int) error {
				time.Sleep(took)
				if n == 9 {
					close(stop)
				}
				return nil
			})
			if all := time.Since(began); count.Load() != 10 || all != 100*took {
				t.Errorf("%d requests of %v each took %v with their rests, want 10 and %v", count.Load(), took, all,
					100*took)
			}
		})
	}
}
