package conntrack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/internal/ratelimit"
	"kube-proxy/lb"
)

// fakeKernel is a conntrack table in memory, with a clock for how long a pass takes.
type fakeKernel struct {
	cleaned []string // values passed to Config.Cleaned
	dumps   int      // their sum
	mu      sync.Mutex
	flows   []flow
	takes   time.Duration
	fail    error           // of a whole pass
	stuck   map[flow]error  // of single entries
	noAddrs error           // of locals
	passes  []time.Duration // since the start, when each began
	protos  []lb.Proto      // of each pass
	start   time.Time
}

func (k *fakeKernel) locals(context.Context) (map[netip.Addr]struct{}, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.noAddrs != nil {
		return nil, k.noAddrs
	}
	return map[netip.Addr]struct{}{netip.MustParseAddr("192.0.2.1"): {}}, nil
}

func (k *fakeKernel) forget(_ context.Context, proto lb.Proto, stale func(flow) (lb.Key, bool),
	failed func(lb.Key, error)) (tally, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.passes, k.protos = append(k.passes, time.Since(k.start)), append(k.protos, proto)
	time.Sleep(k.takes)
	if k.fail != nil {
		return tally{}, k.fail
	}
	var n tally
	k.flows = slices.DeleteFunc(k.flows, func(f flow) bool {
		if f.proto != proto {
			return false
		}
		n.seen++
		key, old := stale(f)
		if old && k.stuck[f] != nil {
			failed(key, k.stuck[f])
			return false
		}
		if old {
			n.deleted++
		}
		return old
	})
	return n, nil
}

func flowTo(key, from string) flow {
	k := row(key, "", 0).Key
	return flow{k.Proto, netip.AddrPortFrom(k.Addr, k.Port), netip.MustParseAddrPort(from), false}
}

// letPass advances the fake clock, and runs everything that is due.
func letPass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (k *fakeKernel) note(p Pass) {
	k.cleaned = append(k.cleaned, fmt.Sprintf("%d in %v", p.Deleted, p.Took))
	k.dumps += p.Dumps
}

// run runs f with a Cleaner that works, on a fake clock.
func run(t *testing.T, k *fakeKernel, f func(c *Cleaner, log *strings.Builder)) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		closed := false
		k.start = time.Now()
		c := newCleaner(Config{Family: lb.IPv4, Log: slog.New(slog.NewTextHandler(&log, nil)), Cleaned: k.note}, k,
			func() {
				closed = true
			})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { c.Run(ctx); close(done) }()
		f(c, &log)
		stop()
		<-done
		if !closed {
			t.Error("Run returned and left the table open")
		}
	})
}

// DP-52 PN-07: a burst of changes is one pass, and Applied does not wait for it.
func TestOnePassForABurst(t *testing.T) {
	k := &fakeKernel{takes: time.Second, flows: []flow{flowTo(vip, podA), flowTo(vip, podB), flowTo(vip, podC)}}
	run(t, k, func(c *Cleaner, log *strings.Builder) {
		c.Applied([]lb.Change{set(row(vip, service, lb.Cluster, podA, podB, podC))})
		c.Applied([]lb.Change{set(row(vip, service, lb.Cluster, podB, podC))})
		letPass(delay / 2)
		c.Applied([]lb.Change{set(row(vip, service, lb.Cluster, podC))})
		letPass(delay) // in the middle of the pass
		before := time.Now()
		c.Applied([]lb.Change{set(row(vip, service, lb.Cluster))})
		if d := time.Since(before); d > 0 {
			t.Errorf("Applied took %v while a pass ran", d)
		}
		letPass(time.Minute)
		// The second begins after a pause that follows the length of the first.
		if want := []time.Duration{delay, delay + 4*time.Second}; !slices.Equal(k.passes, want) {
			t.Errorf("passes began at %v, want %v", k.passes, want)
		}
		if len(k.flows) != 0 {
			t.Errorf("flows that stay: %v", k.flows)
		}
		if want := []string{"2 in 1s", "1 in 1s"}; !slices.Equal(k.cleaned, want) { // MT-18
			t.Errorf("reported passes that deleted %v, want %v", k.cleaned, want)
		}
		if !strings.Contains(log.String(), `msg="Deleted stale conntrack entries" deleted=2 of=3`) {
			t.Errorf("log:\n%s", log)
		}
	})
}

// No pass for changes without effect, and one for each affected protocol (DP-53, DP-54).
func TestPassesByProtocol(t *testing.T) {
	k := &fakeKernel{}
	run(t, k, func(c *Cleaner, _ *strings.Builder) {
		c.Applied([]lb.Change{set(row("10.96.0.10:53/tcp", service, lb.Cluster, podA)), remove("10.96.0.10:53/tcp")})
		letPass(time.Minute)
		if len(k.passes) > 0 || len(k.cleaned) > 0 {
			t.Errorf("passes for TCP that is gone: %v, %v", k.protos, k.cleaned)
		}
		one, two := row("10.96.0.10:53/tcp", service, lb.Cluster, podA), row("10.96.0.10:53/tcp", service, lb.Cluster,
			podB)
		c.Applied([]lb.Change{set(one)})
		letPass(time.Minute)
		c.Applied([]lb.Change{{Key: one.Key, Old: one, New: two}}) // starts no pass
		letPass(time.Minute)
		if !slices.Equal(k.protos, []lb.Proto{lb.TCP}) {
			t.Errorf("passes for a new TCP frontend: %v", k.protos)
		}
		k.protos = nil
		c.Applied([]lb.Change{set(row("10.96.0.10:53/sctp", service, lb.Cluster, podA))})
		letPass(time.Minute)
		c.Applied([]lb.Change{set(row(vip, service, lb.Cluster, podA)), remove("10.96.0.10:53/sctp")})
		letPass(time.Minute)
		if want := []lb.Proto{lb.SCTP, lb.UDP, lb.SCTP}; !slices.Equal(k.protos, want) {
			t.Errorf("passes for %v, want %v", k.protos, want)
		}
	})
}

// A failed pass is repeated after a growing delay, which is short again after a success. Changes
// that need no pass do not shorten the delay.
func TestRetry(t *testing.T) {
	k := &fakeKernel{fail: errors.New("no buffer space"), flows: []flow{flowTo(vip, podA)}}
	run(t, k, func(c *Cleaner, log *strings.Builder) {
		c.Applied([]lb.Change{set(row(vip, service, lb.Cluster, podB))})
		letPass(2 * time.Second)
		c.Applied([]lb.Change{set(row("10.96.0.10:53/tcp", service, lb.Cluster))})
		letPass(time.Second)
		k.mu.Lock()
		k.fail = nil
		k.mu.Unlock()
		letPass(time.Hour)
		want := []time.Duration{delay, delay + time.Second, delay + 3*time.Second}
		if !slices.Equal(k.passes, want) || len(k.flows) > 0 {
			t.Errorf("passes at %v, want %v; flows that stay: %v", k.passes, want, k.flows)
		}
		if deleted := strings.Join(k.cleaned, ", "); deleted != "0 in 0s, 0 in 0s, 1 in 0s" {
			t.Errorf("passes that deleted %s", deleted)
		}
		if !strings.Contains(log.String(), `err="udp flows: no buffer space"`) {
			t.Errorf("log:\n%s", log)
		}
		k.mu.Lock()
		k.fail, k.passes, k.start = errors.New("no buffer space"), nil, time.Now()
		k.mu.Unlock()
		c.Applied([]lb.Change{set(row(vip, service, lb.Cluster, podC))})
		letPass(2 * time.Second)
		want = want[:2]
		if !slices.Equal(k.passes, want) {
			t.Errorf("after an hour without a failure, passes at %v, want %v", k.passes, want)
		}
	})
}

// An entry that could not be deleted is retried with its key alone; the others are not inspected
// again.
func TestRetryOneKey(t *testing.T) {
	other := "10.96.0.11:53/udp"
	k := &fakeKernel{flows: []flow{flowTo(vip, podA), flowTo(other, podA)}}
	k.stuck = map[flow]error{k.flows[0]: errors.New("device busy")}
	run(t, k, func(c *Cleaner, log *strings.Builder) {
		c.Applied([]lb.Change{set(row(vip, service, lb.Cluster, podB)), set(row(other, "b/b:b", lb.Cluster, podB))})
		letPass(time.Second / 2)
		k.mu.Lock()
		k.stuck = nil
		k.flows = append(k.flows, flowTo(other, podC)) // not suspect any more: a pass leaves it
		k.mu.Unlock()
		letPass(time.Minute)
		if want := []flow{flowTo(other, podC)}; !slices.Equal(k.flows, want) {
			t.Errorf("flows that stay: %v, want %v", k.flows, want)
		}
		if !strings.Contains(log.String(), `err="10.96.0.10:53/udp: device busy"`) {
			t.Errorf("log:\n%s", log)
		}
	})
}

// Without the machine's addresses NodePorts wait; the other keys do not.
func TestRetryNodePorts(t *testing.T) {
	k := &fakeKernel{noAddrs: errors.New("interrupted"),
		flows: []flow{flowTo(vip, podA), flowTo("192.0.2.1:30053/udp", podA)}}
	run(t, k, func(c *Cleaner, log *strings.Builder) {
		c.Applied([]lb.Change{set(row(vip, service, lb.Cluster, podB)),
			set(row("nodeport:30053/udp", service, lb.Cluster, podB))})
		letPass(time.Second / 2)
		if want := []flow{flowTo("192.0.2.1:30053/udp", podA)}; !slices.Equal(k.flows, want) {
			t.Errorf("flows that stay: %v, want %v", k.flows, want)
		}
		k.mu.Lock()
		k.noAddrs = nil
		k.mu.Unlock()
		letPass(time.Minute)
		if len(k.flows) > 0 {
			t.Errorf("flows that stay: %v\n%s", k.flows, log)
		}
	})
}

// TN-96: what a change costs in dumps of the conntrack table, which tenants' connections fill: the
// first change is handled at once, and all others of the next second, or of the next three over
// TCP, share one dump for each protocol.
func TestDumpsOfAChange(t *testing.T) {
	many := func(proto string) (changes []lb.Change) {
		for i := range 100 {
			changes = append(changes, set(row(fmt.Sprintf("10.97.0.%d:80/%s", i, proto), service, lb.Cluster, podA)))
		}
		return changes
	}
	tcp, udp := row("10.96.0.10:80/tcp", service, lb.Cluster, podA), row(vip, service, lb.Cluster, podA)
	otherTCP := row("10.96.0.10:80/tcp", service, lb.Cluster, podB)
	moreUDP := row(vip, service, lb.Cluster, podA, podB)
	for _, c := range []struct {
		name    string
		before  []lb.Change
		changes []lb.Change // one after the other
		begin   []time.Duration
	}{
		{"a new Service over TCP", nil, []lb.Change{set(tcp)}, []time.Duration{0}},
		{"a new Service over UDP", nil, []lb.Change{set(udp)}, []time.Duration{0}},
		{"100 new Services over TCP", nil, many("tcp"), []time.Duration{0, 3 * time.Second}},
		{"100 new Services over UDP", nil, many("udp"), []time.Duration{0, time.Second}},
		{"a changed endpoint over TCP", []lb.Change{set(tcp)}, []lb.Change{{Key: tcp.Key, Old: tcp, New: otherTCP}},
			nil},
		{"an added endpoint over UDP", []lb.Change{set(udp)}, []lb.Change{{Key: udp.Key, Old: udp, New: moreUDP}}, nil},
		{"a removed endpoint over UDP", []lb.Change{set(moreUDP)}, []lb.Change{{Key: udp.Key, Old: moreUDP, New: udp}},
			[]time.Duration{0}},
		{"20 removed endpoints over UDP", []lb.Change{set(moreUDP)}, slices.Repeat([]lb.Change{set(udp), set(moreUDP)},
			20), []time.Duration{0, time.Second}},
		{"20 deleted Services over TCP", many("tcp"), many("tcp"), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if strings.Contains(c.name, "deleted") {
				for i := range c.changes {
					c.changes[i] = lb.Change{Key: c.changes[i].Key, Old: c.changes[i].New}
				}
			}
			k := &fakeKernel{}
			run(t, k, func(cleaner *Cleaner, _ *strings.Builder) {
				cleaner.Applied(c.before)
				letPass(time.Minute)
				k.passes, k.dumps, k.start = nil, 0, time.Now()
				for _, change := range c.changes {
					cleaner.Applied([]lb.Change{change})
					letPass(5 * time.Millisecond)
				}
				letPass(time.Minute)
				want := c.begin[:len(c.begin):len(c.begin)]
				for i := range want {
					want[i] += delay
				}
				if !slices.Equal(k.passes, want) || k.dumps != len(want) {
					t.Errorf("dumps at %v, want %v; the metric counts %d", k.passes, want, k.dumps)
				}
			})
		})
	}
}

// A pass of one kind does not put off the other: a removed endpoint over UDP is handled at once
// while new Services over TCP wait for their next dump.
func TestKindsOfPassesAreIndependent(t *testing.T) {
	k := &fakeKernel{}
	run(t, k, func(c *Cleaner, _ *strings.Builder) {
		c.Applied([]lb.Change{set(row("10.96.0.10:80/tcp", service, lb.Cluster, podA))})
		letPass(time.Second)
		c.Applied([]lb.Change{set(row("10.96.0.11:80/tcp", service, lb.Cluster, podA))})
		c.Applied([]lb.Change{set(row(vip, service, lb.Cluster, podA))})
		letPass(time.Minute)
		want := []time.Duration{delay, time.Second + delay, 3*time.Second + delay}
		if !slices.Equal(k.passes, want) || !slices.Equal(k.protos, []lb.Proto{lb.TCP, lb.UDP, lb.TCP}) {
			t.Errorf("passes at %v for %v, want %v for TCP, UDP, TCP", k.passes, k.protos, want)
		}
	})
}

// TN-07: a tenant who changes one UDP Service repeatedly causes a pass a second, and few lines.
func TestFloodOfPasses(t *testing.T) {
	for what, broken := range map[string]error{"Deleted stale conntrack entries": nil,
		"Failed to delete stale conntrack entries, retrying": errors.New("no memory")} {
		k := &fakeKernel{}
		run(t, k, func(c *Cleaner, log *strings.Builder) {
			const seconds = 1000
			stale := flowTo(vip, podA)
			for i := range 10 * seconds {
				if i%10 == 0 {
					k.mu.Lock()
					k.flows, k.stuck = []flow{stale}, map[flow]error{stale: broken}
					k.mu.Unlock()
				}
				c.Applied([]lb.Change{set(row(vip, service, lb.Cluster, podA))})
				c.Applied([]lb.Change{set(row(vip, service, lb.Cluster, podB))})
				letPass(time.Second / 10)
			}
			k.mu.Lock()
			k.stuck = nil // so that no pass is repeated
			k.mu.Unlock()
			letPass(2 * ratelimit.ReportGap)
			if n := len(k.passes); n < seconds-10 || n > seconds+10 {
				t.Errorf("%d passes, want one for each of %d seconds", n, seconds)
			}
			regained := int(seconds*time.Second/ratelimit.Gap) + int(seconds*time.Second/ratelimit.ReportGap)
			if n := strings.Count(log.String(), what); n < ratelimit.Burst || n > ratelimit.Burst+regained+6 {
				t.Errorf("%d lines say %q, of %d passes", n, what, seconds)
			}
			if !strings.Contains(log.String(), "Suppressed messages") {
				t.Error("the log does not count what it suppressed")
			}
		})
	}
}

// silentKernel never answers.
type silentKernel struct{ fakeKernel }

func (k *silentKernel) forget(ctx context.Context, _ lb.Proto, _ func(flow) (lb.Key, bool),
	_ func(lb.Key, error)) (tally, error) {
	<-ctx.Done()
	return tally{}, ctx.Err()
}

// The end of the process waits for the current pass, but no longer than grace.
func TestEndsDuringAPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCleaner(Config{Family: lb.IPv4, Log: slog.New(slog.DiscardHandler)}, &silentKernel{}, func() {})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan time.Time, 1)
		go func() { c.Run(ctx); ended <- time.Now() }()
		c.Applied([]lb.Change{set(row(vip, service, lb.Cluster, podA))})
		letPass(time.Minute)
		begin := time.Now()
		stop()
		if took := (<-ended).Sub(begin); took != grace {
			t.Errorf("it ended after %v, want %v", took, grace)
		}
	})
}
