package hns_test

import (
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"kube-proxy/lb"
	"kube-proxy/plane/hns"
	"kube-proxy/test/hnsfake"
	"kube-proxy/test/planetest"
)

// backendsEach is the number of backends of a Service in cost tests: one on this node, two
// elsewhere.
const backendsEach = 3

// large returns a plane with that many Services, and its HNS.
func large(t *testing.T, f lb.Family, kind hns.NetworkType, services int) (*hnsfake.Fake, *hns.Plane, *lb.Table) {
	t.Helper()
	w := planetest.World{Family: f}
	fake := hnsfake.New(hnsfake.Everything)
	network := hns.Network{Name: labNetwork, Type: kind, ManagementIP: planetest.World{Family: lb.IPv4}.Addr(192, 1).
		String(), HostMAC: hostMAC}
	if kind == hns.Overlay {
		network.Policies = []hns.Policy{policy(hns.PolicyRemoteSubnetRoute, hns.RemoteSubnet{
			DestinationPrefix: w.Node().Pods.Prefixes[0].String(), ProviderAddress: w.Addr(192, 2).String()})}
	}
	id := fake.AddNetwork(network)
	for i := range services + 1 {
		fake.AddPod(id, fmt.Sprintf("pod-%d", i), w.Addr(100, i*backendsEach))
	}
	cfg := hns.Config{Family: f, HNS: fake, Network: labNetwork}
	if kind == hns.Overlay {
		cfg.SourceVIP = w.Addr(100, 1<<23)
	}
	p, err := hns.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	table := w.Table(services, backendsEach)
	fake.Counts()
	if _, err := planetest.ResetAll(t.Context(), p, table); err != nil {
		t.Fatal(err)
	}
	return fake, p, table
}

// A change costs the same calls and bytes among 100 and 10,000 Services (DP-47).
func TestCostFollowsTheChange(t *testing.T) {
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		for _, kind := range []hns.NetworkType{hns.L2Bridge, hns.Overlay} {
			t.Run(fmt.Sprintf("%s/%s", f, kind), func(t *testing.T) {
				few, many := costs(t, f, kind, 100), costs(t, f, kind, 10000)
				for what, cost := range few {
					if !reflect.DeepEqual(cost, many[what]) {
						t.Errorf("%s: %v among 100 Services, %v among 10,000", what, cost, many[what])
					}
					if calls(cost) == 0 {
						t.Errorf("%s: no calls at all", what)
					}
					if n := cost["Endpoints"].Calls + cost["LoadBalancers"].Calls + cost["Networks"].Calls; n > 0 {
						t.Errorf("%s: HNS was listed %d times", what, n)
					}
					t.Logf("%s: %v", what, cost)
				}
			})
		}
	}
}

func calls(cost map[string]hnsfake.Count) (n int) {
	for _, c := range cost {
		n += c.Calls
	}
	return n
}

// costs returns the cost of each change among n Services.
func costs(t *testing.T, f lb.Family, kind hns.NetworkType, services int) map[string]map[string]hnsfake.Count {
	t.Helper()
	fake, p, table := large(t, f, kind, services)
	w := planetest.World{Family: f}
	all := map[string]map[string]hnsfake.Count{}
	for _, c := range []struct {
		what              string
		service, first, n int // n backends from pod first on; -1 removes the Service
	}{
		{"an endpoint more", 7, 7 * backendsEach, 4},
		{"an endpoint less", 7, 7 * backendsEach, 2},
		{"other endpoints", 7, 7 * backendsEach, 3},
		{"no endpoints", 7, 0, 0},
		{"endpoints again", 7, 7 * backendsEach, 3},
		{"a Service more", 50000, 7 * backendsEach, 3},
		{"a Service less", 50000, 0, -1},
	} {
		owner, fronts := w.ClusterIP(c.service, c.first, max(0, c.n))
		if c.n < 0 {
			fronts = nil
		}
		changes, _ := table.Replace(owner, fronts)
		fake.Counts()
		if _, err := p.Apply(t.Context(), changes); err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		all[c.what] = fake.Counts()
	}
	return all
}

// services is the number of Services in tests of a whole table.
const services = 10000

// The first sync of 10,000 Services makes one call for each load balancer and each remote endpoint,
// and one list of each kind. A restart finds everything and writes nothing.
func TestFirstSync(t *testing.T) {
	start := time.Now()
	fake, _, table := large(t, lb.IPv4, hns.L2Bridge, services)
	took := time.Since(start)
	cost := fake.Counts()
	t.Logf("%d Services: %s, %.2f calls for each, %v", services, took, float64(calls(cost))/services, cost)
	for call, want := range map[string]int{"CreateLoadBalancer": services,
		"CreateEndpoint": (backendsEach - 1) * services,
		"Endpoints":      1, "LoadBalancers": 1, "Networks": 1} {
		if got := cost[call].Calls; got != want {
			t.Errorf("%d calls of %s, want %d", got, call, want)
		}
	}
	again, err := hns.New(hns.Config{Family: lb.IPv4, HNS: fake, Network: labNetwork})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := planetest.ResetAll(t.Context(), again, table); err != nil {
		t.Fatal(err)
	}
	cost = fake.Counts()
	t.Logf("a restart: %v", cost)
	for call, c := range cost {
		if c.Calls > 1 {
			t.Errorf("a restart makes %d calls of %s", c.Calls, call)
		}
	}
}

// With 10,000 Services the plane, the table and the fake take at most 200 MiB. The test runs in its
// own process, because memory of other tests stays allocated.
func TestMemory(t *testing.T) {
	const child = "HNS_TEST_MEMORY"
	if os.Getenv(child) != "" {
		fake, p, table := large(t, lb.IPv4, hns.L2Bridge, services)
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		fmt.Printf("\n%s%d\n", child, m.Sys)
		runtime.KeepAlive(fake)
		runtime.KeepAlive(p)
		runtime.KeepAlive(table)
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMemory$")
	cmd.Env = append(os.Environ(), child+"=1")
	out, err := cmd.CombinedOutput()
	_, rest, reported := strings.Cut(string(out), "\n"+child)
	var taken int
	if _, scanErr := fmt.Sscan(rest, &taken); err != nil || !reported || scanErr != nil {
		t.Fatalf("%v, %v:\n%s", err, scanErr, out)
	}
	t.Logf("%d Services: %d MiB", services, taken>>20)
	if taken > 200<<20 {
		t.Errorf("%d MiB, want 200 at most", taken>>20)
	}
}
