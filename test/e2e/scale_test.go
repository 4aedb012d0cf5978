package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/controlplane"
	"kube-proxy/test/e2e/testbed"
	"kube-proxy/test/golden"
)

// 1,000 services are added, and some deleted, while the endpoints of others change: at the end each
// answers, and the kernel has the state of a fresh start.
func TestThousandServices(t *testing.T) { testManyServices(t, 1000) }

// The same in iptables mode, where there are branches with more than a few dozen services.
func TestHundredsOfServices(t *testing.T) {
	inMode(t, testbed.IPTables)
	testManyServices(t, 300)
}

func testManyServices(t *testing.T, services int) {
	begin(t)
	p := startProxy(t)
	marker(t, "marker-first")
	changes := startFlapping(t, "flapping", 20)
	addrs := createMany(t, services)
	changes.stopAndCheck(t)
	checkMany(t, addrs)
	t.Logf("a service created last answers after %v", marker(t, "marker-last"))

	settled := meaning(t)
	must(t, p.StopInOrder())
	checkNothingChanges(t)
	must(t, bed.API.DeleteService(t.Context(), "marker-again"))
	must(t, bed.API.DeleteSlice(t.Context(), "marker-again"))
	checkFreshStart(t, settled, addrs)
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
	p := startProxy(t)
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
	must(t, p.StopInOrder())
}

// checkFreshStart compares the rules of a proxy that starts on an empty node with the final rules
// of the first one.
func checkFreshStart(t *testing.T, settled string, addrs []netip.AddrPort) {
	t.Helper()
	must(t, bed.CleanNode(t.Context()))
	start := time.Now()
	startProxy(t)
	last := len(addrs) - 1
	await(t, "pod3", addrs[last], podOf(last))
	t.Logf("a fresh start serves after %v", time.Since(start).Round(time.Millisecond))
	checkMany(t, addrs)
	fresh := meaning(t)
	if fresh != settled {
		t.Errorf("after all changes and after a fresh start the rules differ:\n%s", golden.Diff(settled, fresh))
		return
	}
	lines := strings.Split(fresh, "\n")
	t.Logf("the kernel held after all changes what it holds after a fresh start, %d elements, such as\n%s", len(lines),
		lines[len(lines)/3])
}

// meaning is testbed's Meaning of rules that must not be empty.
func meaning(t *testing.T) string {
	t.Helper()
	text, err := bed.Meaning(t.Context())
	must(t, err)
	if !strings.Contains(text, "→ ") && !strings.Contains(text, "KUBE-SEP-") {
		t.Fatalf("the proxy's tables hold no endpoint:\n%s", text)
	}
	return text
}
