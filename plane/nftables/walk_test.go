//go:build linux

package nftables

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netns"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// saboteur damages the tables of both families at random, as another program with the same rights
// could.
type saboteur struct{ rnd *rand.Rand }

// act does one random thing; the kernel may refuse it.
func (s saboteur) act() {
	do, w := "", planetest.World{Family: []lb.Family{lb.IPv4, lb.IPv6}[s.rnd.IntN(2)]}
	fam := nftFamily(w.Family)
	element := func(verb, set, el string) {
		do = fmt.Sprintf("%s element %s kube-proxy %s { %s }", verb, fam, set, el)
	}
	addr := func(net byte) string { return w.Addr(net, 1+s.rnd.IntN(8)).String() }
	id, slot := 1+s.rnd.IntN(40), s.rnd.IntN(12)
	maps := []string{"services", "nodeports", "cluster-sets", "local-sets", "nodeport-cluster-sets", "set-shapes",
		"backends", "members", "member-backends", "affinity", "nat-classes", "cluster-shapes"}
	sets := []string{"source-ranges", "cluster-ips", "equal-bytes"}
	chains := []string{"nat-prerouting", "cluster", "local", "nat-frontends", "service-network", "nat-postrouting",
		"cluster-3"}
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
		do = fmt.Sprintf("flush map %s kube-proxy %s", fam, maps[s.rnd.IntN(len(maps))])
	case 11:
		do = fmt.Sprintf("flush set %s kube-proxy %s", fam, sets[s.rnd.IntN(len(sets))])
	case 12:
		do = fmt.Sprintf("flush chain %s kube-proxy %s", fam, chains[s.rnd.IntN(len(chains))])
	case 13:
		do = fmt.Sprintf("add chain %[1]s kube-proxy mine; add rule %[1]s kube-proxy mine goto cluster; add rule "+
			"%[1]s kube-proxy %[2]s jump mine", fam, chains[s.rnd.IntN(len(chains))])
	case 14:
		do = fmt.Sprintf("add map %[1]s kube-proxy mymap { type mark : verdict; }; add element %[1]s kube-proxy "+
			"mymap { 7 : goto local }", fam)
	default:
		do = []string{"delete table %s kube-proxy", "flush ruleset",
			"add table %s kube-proxy { flags dormant; }"}[s.rnd.IntN(3)]
		if strings.Contains(do, "%") {
			do = fmt.Sprintf(do, fam)
		}
	}
	exec.Command("nft", do).Run()
}

// While planes write, another program damages their tables without pause. When it stops, they soon
// hold the result of a fresh start, also with Services of more backends than MaxBatchWeight
// (TN-30).
func TestWalk(t *testing.T) {
	planetest.Walks(t, 4, 50, func(t testing.TB) planetest.Kernel {
		k := realKernel(t)
		var stop, done chan struct{}
		k.Faults = planetest.Faults{
			Begin: func(rnd *rand.Rand) {
				stop, done = make(chan struct{}), make(chan struct{})
				all := saboteur{rand.New(rand.NewPCG(rnd.Uint64(), 2))}
				damage := onTheSameNamespace(t, func() {
					for acts := 0; acts < 3 || !closed(stop); acts++ {
						all.act()
					}
				})
				go func() { defer close(done); damage() }()
			},
			End: func() { close(stop); <-done },
		}
		return k
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

// onTheSameNamespace returns a function that runs f on a thread in the namespace of its caller.
func onTheSameNamespace(t testing.TB, f func()) func() {
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
