// Package e2e starts a real etcd, a real kube-apiserver and the real kube-proxy binary in a lab of
// network namespaces, breaks one after the other, and checks which pods answer. It needs root,
// etcd, nft, iptables and conntrack.
//
// Run it by `go test -v ./...` in this folder; each test prints its observations. KUBE_PROXY names
// another binary to test.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/controlplane"
	"kube-proxy/test/e2e/testbed"
)

// patience is the time limit for events that normally take milliseconds.
const patience = 60 * time.Second

// brief is how long a test waits for an answer that must not arrive.
const brief = 100 * time.Millisecond

// bed is shared by all tests, because a control plane takes seconds to start. Each test begins with
// begin.
var bed *testbed.Bed

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	start := time.Now()
	logf := func(format string, args ...any) {
		fmt.Printf("%6.1fs %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
	var err error
	if bed, err = testbed.New(context.Background(), testbed.Options{Logf: logf}); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	defer func() {
		if err := bed.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			code = 1
		}
	}()
	return m.Run()
}

// begin gives a test a running cluster without services and a node without rules.
func begin(t *testing.T) {
	t.Helper()
	must(t, bed.API.Ensure(t.Context())) // the test before may have failed while it was down
	must(t, bed.API.DeleteAll(t.Context()))
	must(t, bed.CleanNode(t.Context()))
}

// startProxy starts a proxy in the mode of the bed.
func startProxy(t *testing.T, args ...string) *testbed.Proxy {
	t.Helper()
	p, err := bed.StartProxy(args...)
	return started(t, p, err)
}

// started has a proxy end with the test, which then shows the end of its log if it failed.
func started(t *testing.T, p *testbed.Proxy, err error) *testbed.Proxy {
	t.Helper()
	must(t, err)
	t.Cleanup(func() {
		select {
		case <-p.Done():
		default:
			if err := p.StopInOrder(); err != nil {
				t.Error(err)
			}
		}
		if t.Failed() {
			t.Logf("the end of the log of kube-proxy %d:\n%s", p.Pid(), p.LogTail(30))
		}
	})
	return p
}

// until calls missing until it returns "", but fails the test after the time limit.
func until(t *testing.T, missing func() string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		what := missing()
		if what == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v: %s", patience, what)
		}
	}
}

// web creates a TCP service on port 80 with the given pods and returns its first address.
func web(t *testing.T, name string, pods ...string) netip.AddrPort {
	t.Helper()
	service := controlplane.Service(name, 80)
	must(t, bed.API.Create(t.Context(), service, slice(name, pods...)))
	return address(service)
}

func address(service *corev1.Service) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(service.Spec.ClusterIP), 80)
}

// await fails the test unless one of want answers in time.
func await(t *testing.T, host string, to netip.AddrPort, want ...string) time.Duration {
	t.Helper()
	took, err := bed.Await(t.Context(), host, to, patience, want...)
	if err != nil {
		t.Fatal(err)
	}
	return took
}

// marker creates a service and waits until it answers: a proof that the proxy has the state of now.
func marker(t *testing.T, name string) time.Duration {
	t.Helper()
	return await(t, netlab.Node1, web(t, name, "pod1"), "pod1")
}

// move gives a service another set of pods.
func move(t *testing.T, name string, pods ...string) {
	t.Helper()
	must(t, bed.API.Update(t.Context(), slice(name, pods...)))
}

// traffic starts Traffic that ends, at the latest, with the test.
func traffic(t *testing.T, host string, to netip.AddrPort) (stop func()) {
	t.Helper()
	running, err := bed.StartTraffic(host, to)
	must(t, err)
	stopped := false
	stop = func() {
		t.Helper()
		if stopped {
			return
		}
		stopped = true
		if err := errors.Join(running.More(), running.Stop()); err != nil {
			t.Errorf("traffic from %s to %s: %v", host, to, err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// works fails the test unless an open connection still does.
func works(t *testing.T, c *netlab.Conn, when string) {
	t.Helper()
	if _, err := c.Exchange(); err != nil {
		t.Fatalf("%s: %v", when, err)
	}
}

func ruleset(t *testing.T) string {
	t.Helper()
	rules, err := bed.Ruleset(t.Context())
	must(t, err)
	return rules
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// sameRulesFor fails the test if the proxy's rules change in the given time. It first waits for
// pending changes.
func sameRulesFor(t *testing.T, period time.Duration) {
	t.Helper()
	before := settledRules(t)
	watch, err := bed.WatchRules(t.Context())
	must(t, err)
	time.Sleep(period)
	changes, err := watch.Stop()
	must(t, err)
	if len(changes) > 0 {
		t.Errorf("rules changed: %q", changes)
	}
	if after := ruleset(t); after != before {
		t.Errorf("rules were\n%s\nand are\n%s", before, after)
	}
	t.Logf("no rule changed in %v", period)
}

// settledRules returns the proxy's rules when they have not changed for a second: on a busy machine
// changes take long on their way.
func settledRules(t *testing.T) string {
	t.Helper()
	rules, deadline := ruleset(t), time.Now().Add(patience)
	for quiet := 0; quiet < 10; quiet++ {
		time.Sleep(100 * time.Millisecond)
		now := ruleset(t)
		if now != rules {
			rules, quiet = now, 0
		}
		if time.Now().After(deadline) {
			t.Fatalf("rules change for %v and more", patience)
		}
	}
	return rules
}

// awaitSilence waits until an address no longer answers.
func awaitSilence(t *testing.T, host string, to netip.AddrPort) {
	t.Helper()
	until(t, func() string {
		name, err := bed.Ask(host, to, brief)
		if err != nil {
			return ""
		}
		return fmt.Sprintf("%s still answers at %s", name, to)
	})
}
