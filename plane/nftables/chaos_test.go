//go:build linux

package nftables

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"kube-proxy/cluster"
	"kube-proxy/engine"
	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/planetest"
	"kube-proxy/test/seedtest"
)

// saboteur damages a table at random, as another program with the same rights could.
type saboteur struct {
	rnd *rand.Rand
	fam string
	w   planetest.World
}

// act does one thing; that the kernel may refuse it does not matter.
func (s saboteur) act() {
	do := ""
	element := func(verb, set, el string) {
		do = fmt.Sprintf("%s element %s kube-proxy %s { %s }", verb, s.fam, set, el)
	}
	addr := func(net byte) string { return s.w.Addr(net, 1+s.rnd.IntN(8)).String() }
	id, slot := 1+s.rnd.IntN(40), s.rnd.IntN(12)
	maps := []string{"services", "nodeports", "cluster-sets", "local-sets", "nodeport-cluster-sets", "set-shapes", "backends",
		"members", "member-backends", "affinity", "nat-classes", "cluster-shapes"}
	sets := []string{"source-ranges", "cluster-ips", "equal-bytes"}
	chains := []string{"nat-prerouting", "cluster", "local", "nat-frontends", "service-network", "nat-postrouting", "cluster-3"}
	switch s.rnd.IntN(16) {
	case 0:
		element("delete", "backends", fmt.Sprintf("%d . %d", id, slot))
	case 1:
		element("add", "backends", fmt.Sprintf("%d . %d : %s . 99", id, slot, addr(100)))
	case 2:
		element("delete", "set-shapes", fmt.Sprint(id))
	case 3:
		element("add", "set-shapes", fmt.Sprintf("%d : %d", id, 1+s.rnd.IntN(9)))
	case 4:
		element("delete", "services", addr(10)+" . tcp . 80")
	case 5:
		element("add", "services", addr(10)+" . tcp . 80 : 0x000000c4")
	case 6:
		element("add", "cluster-sets", fmt.Sprintf("%s . tcp . 80 : %d", addr(203), id))
	case 7:
		element("delete", "members", fmt.Sprintf("%d . %d", id, slot))
	case 8:
		element("delete", "member-backends", fmt.Sprint(1+s.rnd.IntN(60)))
	case 9:
		element("add", "equal-bytes", fmt.Sprintf("%d . %d", s.rnd.IntN(4), s.rnd.IntN(4)))
	case 10:
		do = fmt.Sprintf("flush map %s kube-proxy %s", s.fam, maps[s.rnd.IntN(len(maps))])
	case 11:
		do = fmt.Sprintf("flush set %s kube-proxy %s", s.fam, sets[s.rnd.IntN(len(sets))])
	case 12:
		do = fmt.Sprintf("flush chain %s kube-proxy %s", s.fam, chains[s.rnd.IntN(len(chains))])
	case 13:
		do = fmt.Sprintf("add chain %[1]s kube-proxy mine; add rule %[1]s kube-proxy mine goto cluster; add rule %[1]s kube-proxy %[2]s jump mine",
			s.fam, chains[s.rnd.IntN(len(chains))])
	case 14:
		do = fmt.Sprintf("add map %[1]s kube-proxy mymap { type mark : verdict; }; add element %[1]s kube-proxy mymap { 7 : goto local }", s.fam)
	default:
		do = []string{"delete table %s kube-proxy", "flush ruleset", "add table %s kube-proxy { flags dormant; }"}[s.rnd.IntN(3)]
		if strings.Contains(do, "%") {
			do = fmt.Sprintf(do, s.fam)
		}
	}
	exec.Command("nft", do).Run()
}

// While services change without pause, somebody damages the table without pause. When both rest, the table is
// soon what a fresh start makes: within two seconds, and some more for a busy machine.
func TestChaos(t *testing.T) {
	eachFamily(t, func(t *testing.T, w planetest.World) {
		inNetns(t)
		seed := seedtest.Of(t)
		p := newPlane(t, w.Family)
		fam := map[lb.Family]string{lb.IPv4: "ip", lb.IPv6: "ip6"}[w.Family]

		const services = 8
		// rows are those of service i in its nth state.
		rows := func(i int, n int64) []*lb.Frontend {
			rnd := rand.New(rand.NewPCG(seed, uint64(n)))
			k := rnd.IntN(10)
			if rnd.IntN(3) == 0 {
				_, f := w.ClusterIP(i, rnd.IntN(20), k)
				return f
			}
			_, f := w.Full(i, rnd.IntN(20), k, min(k, rnd.IntN(4)), time.Duration(rnd.IntN(3))*time.Hour)
			return f
		}
		name := func(i int) cluster.Name { return cluster.Name{Namespace: "ns", Name: fmt.Sprintf("svc-%d", i)} }
		number := map[cluster.Name]int{}
		for i := range services {
			number[name(i)] = i
		}
		store := cluster.NewStore("n1")
		e := engine.New(engine.Config{
			Family: w.Family, Plane: p, Store: store, AuditPeriod: 300 * time.Millisecond,
			Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
			Resolve: func(v cluster.View) []*lb.Frontend {
				if v.Service == nil {
					return nil
				}
				return rows(number[v.Service.Name], v.Service.Created)
			},
			ResolveNode: func(cluster.Facts) lb.Node { return w.Node() },
		})
		do := func(ev cluster.Event) { e.Mark(store.Fold(ev)) }
		do(cluster.ServicesListed{})
		do(cluster.SlicesListed{})

		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan struct{})
		go func() {
			defer close(ran)
			e.Run(ctx)
		}()
		defer func() {
			stop()
			<-ran
		}()

		rnd := rand.New(rand.NewPCG(seed, 1<<63))
		present := map[int]int64{}
		for round := range 2 {
			// For some time, and on a slow machine for some acts: they must do harm.
			done, end := make(chan struct{}), time.Now().Add(400*time.Millisecond)
			sabotage := onTheSameNamespace(t, func() {
				s := saboteur{rand.New(rand.NewPCG(seed, 1<<62+uint64(round))), fam, w}
				for acts := 0; acts < 20 || time.Now().Before(end); acts++ {
					s.act()
				}
			})
			go func() {
				defer close(done)
				sabotage()
			}()
			for n := int64(round*1_000_000 + 1); !closed(done); n++ {
				i := rnd.IntN(services)
				if rnd.IntN(6) == 0 {
					do(cluster.ServiceGone{Name: name(i)})
					delete(present, i)
				} else {
					do(cluster.ServiceSet{Service: &cluster.Service{Name: name(i), Created: n}})
					present[i] = n
				}
				time.Sleep(time.Duration(rnd.IntN(10)) * time.Millisecond)
			}

			want := &lb.Table{Node: w.Node()}
			for i, n := range present {
				want.Replace(lb.Owner{Name: name(i).String()}, rows(i, n))
			}
			wanted := fresh(t, w.Family, want)
			watcher := newPlane(t, w.Family)
			watcher.rules.node = w.Node()
			got, deadline := "", time.Now().Add(time.Minute)
			for {
				got, _ = watcher.Dump()
				if got == wanted || time.Now().After(deadline) {
					break
				}
				time.Sleep(20 * time.Millisecond)
			}
			if got != wanted {
				t.Fatalf("round %d: %+v\n%s", round, e.Stats(), difference(got, wanted))
			}
		}
		s := e.Stats()
		t.Logf("%d applies, %d failures, %d resets, %d audits, %d mended", s.Applies, s.Failures, s.Resets, s.Audits, s.Mended)
		if s.Panics != 0 || s.Resets == 0 || s.Mended+s.Failures == 0 {
			t.Errorf("%+v", s)
		}
	})
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// onTheSameNamespace makes f run, wherever it is called, on a thread in the namespace of the caller.
func onTheSameNamespace(t *testing.T, f func()) func() {
	t.Helper()
	here, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := errors.Join(netlab.In(here, func() error { f(); return nil }), here.Close()); err != nil {
			t.Error(err)
		}
	}
}

// difference lists the lines that only one of two dumps has.
func difference(got, want string) string {
	only := func(sign, a, b string) (text string) {
		has := map[string]bool{}
		for l := range strings.Lines(b) {
			has[l] = true
		}
		for l := range strings.Lines(a) {
			if !has[l] {
				text += sign + l
			}
		}
		return text
	}
	return only("+ ", got, want) + only("- ", want, got)
}
