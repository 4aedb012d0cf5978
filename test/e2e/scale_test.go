package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/controlplane"
	"kube-proxy/test/e2e/testbed"
)

// Hundreds of services are added, and some deleted, while the endpoints of others change: at the
// end each answers, and the kernel has what a new process computes. With so many, mode iptables has
// branches with more than a few dozen services.
func TestHundredsOfServices(t *testing.T) { inModes(t, bothModes, testHundredsOfServices) }

func testHundredsOfServices(t *testing.T) {
	begin(t)
	p := startProxy(t)
	marker(t, "marker-first")
	changes := startFlapping(t, "flapping", 20)
	addrs := createMany(t, 300)
	changes.stopAndCheck(t)
	checkMany(t, addrs)
	t.Logf("a service created last answers after %v", marker(t, "marker-last"))

	must(t, p.StopInOrder())
	checkNothingChanges(t)
}

// createMany creates services, and deletes every tenth again. It returns the addresses of the
// services by number, including those of the deleted ones.
func createMany(t *testing.T, services int) []netip.AddrPort {
	t.Helper()
	addrs := make([]netip.AddrPort, services)
	err := bed.API.Each(t.Context(), "services created", services, func(ctx context.Context, i int) error {
		service := controlplane.Service(fmt.Sprintf("many-%d", i), 80)
		if err := bed.API.Create(ctx, service, slice(service.Name, podOf(i))); err != nil {
			return err
		}
		addrs[i] = address(service)
		if !deleted(i) {
			return nil
		}
		if err := bed.API.DeleteService(ctx, service.Name); err != nil {
			return err
		}
		return bed.API.DeleteSlice(ctx, service.Name)
	})
	must(t, err)
	return addrs
}

func podOf(i int) string { return fmt.Sprintf("pod%d", 1+i%5) }
func deleted(i int) bool { return i%10 == 7 }

// checkMany connects to every service from a pod. An address of a deleted service may belong to
// another one by now.
func checkMany(t *testing.T, addrs []netip.AddrPort) {
	t.Helper()
	start := time.Now()
	owner := map[netip.AddrPort]bool{}
	for i, addr := range addrs {
		if !deleted(i) {
			await(t, "pod3", addr, podOf(i))
			owner[addr] = true
		}
	}
	var gone []netip.AddrPort
	for i, addr := range addrs {
		if deleted(i) && !owner[addr] {
			gone = append(gone, addr)
		}
	}
	must(t, bed.API.Each(t.Context(), "deleted services asked", len(gone), func(ctx context.Context, i int) error {
		if name, err := bed.Ask(netlab.Node1, gone[i], brief); err == nil {
			return fmt.Errorf("%s answers for a deleted service at %s", name, gone[i])
		}
		return nil
	}))
	t.Logf("%d services answer, %d deleted ones are silent; asked in %v", len(owner), len(gone),
		time.Since(start).Round(time.Millisecond))
}

// tidying is the removal of parts that services share, once none uses them any longer: a start does
// that, a change need not.
var tidying = regexp.MustCompile(`^delete (chain |rule |element ip6? kube-proxy ` +
	`(filter-classes|nat-classes|cluster-shapes|local-shapes) )`)

// checkNothingChanges restarts the proxy on the rules in the kernel: the new process computes
// exactly those, so it writes nothing except tidying.
func checkNothingChanges(t *testing.T) {
	t.Helper()
	watch, err := bed.WatchRules(t.Context())
	must(t, err)
	startProxy(t)
	time.Sleep(3 * time.Second)
	changes, err := watch.Stop()
	must(t, err)
	if bed.Mode == testbed.NFTables {
		changes = slices.DeleteFunc(changes, tidying.MatchString)
	}
	if len(changes) > 0 {
		t.Errorf("a restart changed the rules, %d lines:\n%q", len(changes), changes[:min(len(changes), 10)])
	} else {
		t.Logf("a restart on the same state changed no rule")
	}
	t.Logf("a service created after the restart answers after %v", marker(t, "marker-again"))
}
