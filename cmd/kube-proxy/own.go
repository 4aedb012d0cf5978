package main

import (
	"context"
	"net/netip"
	"time"

	"kube-proxy/cluster"
)

// ownAddrs are the addresses of this machine's interfaces, without those of devices that a mode
// gives service addresses.
type ownAddrs interface {
	// list returns the addresses.
	list(ctx context.Context) ([]netip.Addr, error)
	// changed has a value after a change.
	changed() <-chan struct{}
	close()
}

// ownEvery is the time between two lists of the addresses where no notification arrived.
const ownEvery = time.Minute

// ownDelay is the wait for more changes after the first.
const ownDelay = 100 * time.Millisecond

// openOwn lists this machine's addresses before the source starts, so that the first write already
// leaves the ports of the node's own servers alone (TN-98). It returns a function that follows the
// addresses until its context ends.
func (p *proxy) openOwn(ctx context.Context) func(context.Context) {
	own, err := newOwnAddrs(p.addressDevices())
	if err != nil {
		p.log.Error("Cannot follow this node's addresses; only those of the Node object are kept from Services",
			"err", err)
		return func(context.Context) {}
	}
	failed := ""
	look := func() {
		addrs, err := own.list(ctx)
		switch {
		case ctx.Err() != nil:
		case err == nil:
			failed = ""
			p.fold(cluster.NodeHolds{Addrs: addrs})
		case err.Error() != failed:
			failed = err.Error()
			p.log.Error("Cannot list this node's addresses; keeping the previous list", "err", err)
		}
	}
	look()
	return func(ctx context.Context) {
		defer own.close()
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(ownEvery):
			case <-own.changed():
				select {
				case <-ctx.Done():
					return
				case <-time.After(ownDelay):
				}
			}
			look()
		}
	}
}

// addressDevices returns the devices that have service addresses in any mode: those of another mode
// stay until its leftovers are removed.
func (p *proxy) addressDevices() (names []string) {
	for _, m := range p.modes {
		if m.AddressDevice != "" {
			names = append(names, m.AddressDevice)
		}
	}
	return names
}
