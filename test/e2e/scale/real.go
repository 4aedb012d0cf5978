package scale

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/testbed"
)

// Real measures one real proxy in node1, by the bytes that its interface receives, headers of all
// layers included: it checks the values of hollow nodes. Heap is its largest resident size.
func (h *Harness) Real(ctx context.Context, changes int, rate time.Duration) (c Cost, err error) {
	c.Nodes, c.Connections = 1, 1
	before, err := h.received(ctx)
	if err != nil {
		return c, err
	}
	proxy, err := h.Bed.StartProxy()
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, proxy.StopInOrder()) }()
	if err := h.followed(ctx, proxy); err != nil {
		return c, err
	}
	listed, err := h.received(ctx)
	if err != nil {
		return c, err
	}
	if err := errors.Join(h.change(ctx, changes, rate), h.followed(ctx, proxy)); err != nil {
		return c, err
	}
	changed, err := h.received(ctx)
	if err != nil {
		return c, err
	}
	c.ListBytes, c.ChangeBytes = float64(listed-before), float64(changed-listed)/float64(changes)
	c.Heap, err = proxy.PeakMemory()
	return c, err
}

// followed waits until the real proxy's rules have the marker.
func (h *Harness) followed(ctx context.Context, proxy *testbed.Proxy) error {
	addr, err := h.Mark(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		rules, err := h.Bed.Ruleset(ctx)
		if err == nil && strings.Contains(rules, addr) {
			return nil
		}
		if ended := sleep(ctx, 100*time.Millisecond); ended != nil { // err: there was no table yet
			return fmt.Errorf("kube-proxy does not follow: %w\n%s", errors.Join(err, ended), proxy.LogTail(20))
		}
	}
}

// received is how many bytes node1's interface has received.
func (h *Harness) received(ctx context.Context) (bytes int64, err error) {
	out, err := h.Bed.Command(ctx, netlab.Node1, "cat", "/proc/self/net/dev")
	if err != nil {
		return 0, err
	}
	_, figures, found := strings.Cut(out, netlab.Uplink+":")
	if _, err := fmt.Sscan(figures, &bytes); err != nil || !found {
		return 0, fmt.Errorf("read statistics of node1's interface: %w", err)
	}
	return bytes, nil
}
