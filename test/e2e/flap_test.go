package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
)

// flapping is a set of services whose endpoints change all the time.
type flapping struct {
	names  []string
	addrs  []netip.AddrPort
	cancel context.CancelFunc
	group  sync.WaitGroup

	mu      sync.Mutex
	pod     map[string]string // the last endpoint of each that the API server has accepted
	unsure  map[string]bool   // the last write failed: it may or may not be stored
	writes  int
	refused int
}

// startFlapping creates n services and moves them from pod to pod, one write after the other. A
// write that fails (the API server may be down) is tried again with the next pod.
func startFlapping(t *testing.T, prefix string, n int) *flapping {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	f := &flapping{cancel: cancel, pod: map[string]string{}, unsure: map[string]bool{}}
	for i := range n {
		name := fmt.Sprintf("%s-%d", prefix, i)
		f.names = append(f.names, name)
		f.addrs = append(f.addrs, web(t, name, "pod1"))
		f.pod[name] = "pod1"
	}
	f.group.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			name, pod := f.names[i%n], fmt.Sprintf("pod%d", 1+i%5)
			err := bed.API.Update(context.WithoutCancel(ctx), slice(name, pod))
			f.mu.Lock()
			f.writes++
			f.unsure[name] = err != nil
			if err != nil {
				f.refused++
			} else {
				f.pod[name] = pod
			}
			f.mu.Unlock()
			if err != nil {
				time.Sleep(20 * time.Millisecond)
			}
		}
	})
	t.Cleanup(f.stop)
	return f
}

func (f *flapping) stop() {
	f.cancel()
	f.group.Wait()
}

// stopAndCheck stops the changes and waits until each service is answered by its last endpoint.
func (f *flapping) stopAndCheck(t *testing.T) {
	t.Helper()
	f.stop()
	for i, name := range f.names {
		if f.unsure[name] {
			move(t, name, f.pod[name])
		}
		await(t, netlab.Node1, f.addrs[i], f.pod[name])
	}
	t.Logf("%d services flapped: %d writes, %d of them failed; each is answered by its last endpoint", len(f.names),
		f.writes, f.refused)
}
