package e2e

import (
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/testbed"
)

// A restart of a proxy, in order or after it was killed in the middle of changes, has no effect on
// clients: no connection of a loop fails, and changes in between are in force after its first sync.
func TestProxyRestart(t *testing.T) { inModes(t, allModes, testProxyRestart) }

func testProxyRestart(t *testing.T) {
	begin(t)
	steady := web(t, "steady", "pod1", "pod4")
	moving := web(t, "moving", "pod1")
	p := startProxy(t)
	await(t, "pod3", steady, "pod1", "pod4")
	await(t, "pod3", moving, "pod1")
	stopPod, stopClient := traffic(t, "pod3", steady), traffic(t, netlab.Client, steady)
	flapping := startFlapping(t, "flapping", 5)
	for round, pod := range []string{"pod2", "pod5", "pod1", "pod3", "pod4"} {
		time.Sleep(time.Duration(round) * 7 * time.Millisecond) // so that the end falls on different moments of a write
		end := []func(*testbed.Proxy) error{(*testbed.Proxy).StopInOrder, (*testbed.Proxy).Kill}[round%2]
		must(t, end(p))
		time.Sleep(time.Duration(round) * 100 * time.Millisecond)
		move(t, "moving", pod)
		start := time.Now()
		p = startProxy(t)
		await(t, "pod3", moving, pod)
		t.Logf("round %d: the change made meanwhile is in %v after the start", round,
			time.Since(start).Round(time.Millisecond))
	}
	flapping.stopAndCheck(t)
	marker(t, "marker")
	stopPod()
	stopClient()
}
