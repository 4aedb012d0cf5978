package cleanup

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/plane/iptables"
	"kube-proxy/plane/nftables"
)

// PR-08: a node changes from the mode iptables to nftables and back, some times. Loops of requests notice nothing, each
// arrives with the source address that it should have, also while both sets of rules are in force; and connections that
// live on do so, as they are used all the time.
func TestSwitchUnderTraffic(t *testing.T) {
	needsRoot(t)
	needs(t, "iptables-nft", "ip6tables-nft", "nft")
	for _, b := range backends {
		t.Run(string(b), func(t *testing.T) {
			if b == iptables.Legacy && !legacyWorks() {
				t.Skip("this machine has no legacy iptables")
			}
			switchUnderTraffic(t, b)
		})
	}
}

func switchUnderTraffic(t *testing.T, b iptables.Backend) {
	lab, err := netlab.New(netlab.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	for _, pod := range []string{"pod1", "pod4"} {
		if _, err := lab.Listen(pod, netlab.TCP, 8080, netlab.ListenOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	onNode := func(f func()) {
		t.Helper()
		if err := lab.Do("node1", func() error { f(); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	families := []lb.Family{lb.IPv4, lb.IPv6}
	// Each mode is started as a new process would: with planes of its own.
	useIPTables := func() {
		for _, fam := range families {
			p, err := iptables.New(iptables.Config{Family: fam, Backend: b, CanaryPeriod: -1})
			if err != nil {
				t.Fatal(err)
			}
			tab, _, _ := plan(fam)
			if err := p.Reset(t.Context(), tab); err != nil {
				t.Error(err)
			}
			p.Close()
		}
	}
	useNFTables := func() {
		for _, fam := range families {
			p, err := nftables.New(nftables.Config{Family: fam})
			if err != nil {
				t.Fatal(err)
			}
			tab, _, _ := plan(fam)
			if err := p.Reset(t.Context(), tab); err != nil {
				t.Error(err)
			}
			p.Close()
		}
	}
	others := func(now Running) Report {
		t.Helper()
		now.Families = families
		r, err := Others(t.Context(), now)
		if err != nil {
			t.Error(err)
		}
		return r
	}
	onNode(useIPTables)

	var ways []*way
	for _, fam := range families {
		_, vip, nodePort := plan(fam)
		for from, to := range map[string]netip.AddrPort{"pod3": vip, "node1": vip, "client": nodePort} {
			ways = append(ways, &way{lab: lab, from: from, to: to})
		}
	}
	stop := make(chan struct{})
	var running sync.WaitGroup
	for _, w := range ways {
		w.open(t)
		running.Go(func() { w.request(stop) })
		running.Go(func() { w.exchange(stop) })
	}
	// more waits until each has made some more requests, and those that live some more exchanges.
	more := func() {
		t.Helper()
		for _, w := range ways {
			for _, n := range []*atomic.Int64{&w.requests, &w.exchanges} {
				for end, was := time.Now().Add(30*time.Second), n.Load(); n.Load() < was+3 && w.failed.Load() == nil; time.Sleep(time.Millisecond) {
					if time.Now().After(end) {
						t.Fatalf("%s: too slow: %d requests", w, n.Load())
					}
				}
			}
		}
	}
	rounds := 2
	if testing.Short() {
		rounds = 1
	}
	more()
	for range rounds {
		onNode(useNFTables)
		more() // both are in force
		onNode(func() {
			r := others(Running{Mode: "nftables"})
			if len(r.Left) > 0 || !strings.Contains(strings.Join(r.Removed, "\n"), "chains of iptables ("+string(b)+", IPv6)") {
				t.Errorf("%+v", r)
			}
			for _, program := range []string{"iptables-" + string(b), "ip6tables-" + string(b)} {
				for line := range strings.Lines(rules(t, program)) {
					if strings.Contains(line, "KUBE-") && !strings.Contains(line, "KUBE-FIREWALL") {
						t.Errorf("left by %s: %s", program, line)
					}
				}
			}
		})
		more()
		for _, w := range ways { // made by nftables
			w.open(t)
		}
		onNode(useIPTables)
		more()
		onNode(func() {
			r := others(Running{Mode: "iptables", Backend: b})
			want := []string{"the nftables table kube-proxy of IPv4", "the nftables table kube-proxy of IPv6"}
			if fmt.Sprint(r.Removed) != fmt.Sprint(want) || len(r.Left) > 0 {
				t.Errorf("%+v", r)
			}
			if again := others(Running{Mode: "iptables", Backend: b}); len(again.Removed)+len(again.Left) > 0 {
				t.Errorf("a second time: %+v", again)
			}
		})
		more()
		for _, w := range ways {
			w.open(t)
		}
	}
	close(stop)
	running.Wait()
	slowest := time.Duration(0)
	for _, w := range ways {
		if err := w.failed.Load(); err != nil {
			t.Errorf("%s: %v", w, *err)
		}
		slowest = max(slowest, w.slowest)
	}
	t.Logf("the slowest request took %v", slowest.Round(time.Millisecond))
}

// way is from where to where there is traffic.
type way struct {
	lab  *netlab.Lab
	from string
	to   netip.AddrPort

	requests, exchanges atomic.Int64
	failed              atomic.Pointer[error]
	slowest             time.Duration

	mu   sync.Mutex
	live []*netlab.Conn
}

func (w *way) String() string { return fmt.Sprintf("%s to %s", w.from, w.to) }

func (w *way) fail(err error) { w.failed.CompareAndSwap(nil, &err) }

// open makes a connection that lives on.
func (w *way) open(t *testing.T) {
	t.Helper()
	c, err := w.lab.Open(w.from, netlab.TCP, w.to, netlab.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.live = append(w.live, c)
}

// request makes connections until stop is closed.
func (w *way) request(stop chan struct{}) {
	for ; ; w.requests.Add(1) {
		select {
		case <-stop:
			return
		default:
		}
		began := time.Now()
		r, err := w.lab.Dial(w.from, netlab.TCP, w.to, netlab.DialOptions{})
		if err != nil {
			w.fail(fmt.Errorf("request %d: %w", w.requests.Load(), err))
			return
		}
		w.slowest = max(w.slowest, time.Since(began))
		// Pods keep their address; all others are masqueraded, which the node's own requests need not be told from.
		seen := netlab.Owner(r.Seen.Addr())
		if w.from == "pod3" && seen != "pod3" || w.from != "pod3" && seen != "node1" {
			w.fail(fmt.Errorf("request %d came from %s", w.requests.Load(), r.Seen))
			return
		}
	}
}

// exchange uses the connections that live.
func (w *way) exchange(stop chan struct{}) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		w.mu.Lock()
		live := w.live
		w.mu.Unlock()
		if _, err := live[i%len(live)].Exchange(); err != nil {
			w.fail(fmt.Errorf("connection %d, after %d exchanges: %w", i%len(live), w.exchanges.Load(), err))
			return
		}
		w.exchanges.Add(1)
	}
}
