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
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
)

// sabotage does one random thing that another program with the same rights could; the kernel may
// refuse it.
func sabotage(rnd *rand.Rand) {
	w := planetest.World{Family: []lb.Family{lb.IPv4, lb.IPv6}[rnd.IntN(2)]}
	if rnd.IntN(3) == 0 {
		_ = damage(w.Family, rnd)
		return
	}
	all := []string{
		"delete element T backends { ID . SLOT }",
		"add element T backends { ID . SLOT : POD . 99 }",
		"delete element T set-shapes { ID }",
		"add element T set-shapes { ID : SLOT }",
		"delete element T services { VIP . tcp . 80 }",
		"add element T services { VIP . tcp . 80 : 0x000000c4 }",
		"add element T cluster-sets { VIP . tcp . 81 : ID }",
		"delete element T members { ID . SLOT }",
		"delete element T member-backends { SLOT . ID }",
		"add element T equal-bytes { ID . SLOT }",
		"add chain T mine; add rule T mine goto cluster; add rule T nat-frontends jump mine",
		"add map T mymap { type mark : verdict; }; add element T mymap { 7 : goto local }",
		"add table T { flags dormant; }",
	}
	do := strings.NewReplacer(" T ", " "+nftFamily(w.Family)+" "+TableName+" ", "ID", fmt.Sprint(1+rnd.IntN(40)),
		"SLOT", fmt.Sprint(1+rnd.IntN(9)), "POD", w.Addr(100, 1+rnd.IntN(8)).String(),
		"VIP", w.Addr(10, 1+rnd.IntN(8)).String()).Replace(all[rnd.IntN(len(all))])
	exec.Command("nft", do).Run()
}

// While planes write, another program damages their tables without pause. When it stops, they soon
// hold the result of a fresh start, also with Services of more backends than MaxBatchWeight
// (TN-30).
func TestWalk(t *testing.T) {
	kerneltest.Later(t)
	planetest.Walks(t, 4, 50, func(t testing.TB) planetest.Kernel {
		k := realKernel(t)
		var stop, done chan struct{}
		k.Faults = planetest.Faults{
			Begin: func(rnd *rand.Rand) {
				stop, done = make(chan struct{}), make(chan struct{})
				rnd = rand.New(rand.NewPCG(rnd.Uint64(), 2))
				damage := onTheSameNamespace(t, func() {
					for acts := 0; acts < 3 || !closed(stop); acts++ {
						sabotage(rnd)
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
