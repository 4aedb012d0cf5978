//go:build linux

package ebpf

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/netlink/route"
	"kube-proxy/lb"
)

// addresses keeps the map of the node's addresses, with whether they answer NodePorts. It follows
// the kernel's notifications, because a stale address would take packets for another host.
type addresses struct {
	family       lb.Family
	log          *slog.Logger
	conn, events *netlink.Conn
	done         chan struct{}

	mu       sync.Mutex
	m        *ebpf.Map // nil before the first write
	prefixes []netip.Prefix
	own      map[netip.Addr]bool // as in m
}

// openAddresses listens in the network namespace of the calling thread.
func openAddresses(f lb.Family, log *slog.Logger) (*addresses, error) {
	a := &addresses{family: f, log: log, done: make(chan struct{})}
	var err error
	if a.conn, a.events, err = route.Open(a.number()); err != nil {
		return nil, err
	}
	go func() {
		defer close(a.done)
		a.events.Listen(func(netlink.Message) { a.changed() }, a.changed)
	}()
	return a, nil
}

func (a *addresses) number() byte {
	if a.family == lb.IPv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

func (a *addresses) close() error {
	err := errors.Join(a.events.Close(), a.conn.Close())
	<-a.done
	return err
}

// use has the map hold the node's addresses; those in these prefixes answer NodePorts. It uses no
// map if m is nil.
func (a *addresses) use(m *ebpf.Map, prefixes []netip.Prefix) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.m, a.prefixes = m, prefixes; m == nil {
		return nil
	}
	return a.write()
}

// are reports which of the frontends have an address of the node.
func (a *addresses) are(rows map[lb.Key]*row) (held []lb.Key) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k := range rows {
		if a.own[k.Addr] {
			held = append(held, k)
		}
	}
	slices.SortFunc(held, lb.Key.Compare)
	return held
}

// lookup returns the route to an address. The socket answers one question at a time.
func (a *addresses) lookup(ctx context.Context, to netip.Addr) (route.Route, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return route.Lookup(ctx, a.conn, route.Query{To: to})
}

// changed is called after each change of the node's addresses.
func (a *addresses) changed() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.m == nil {
		return
	}
	if err := a.write(); err != nil {
		a.log.Warn("Failed to follow the node's addresses for NodePorts", "err", err)
	}
}

// write makes the map hold what the kernel has.
func (a *addresses) write() error {
	all, err := route.Addresses(context.Background(), a.conn, a.number())
	if err != nil {
		return err
	}
	want := map[[4]uint32]uint8{}
	a.own = map[netip.Addr]bool{}
	for _, is := range all {
		want[addrOf(is.Addr)] = flag(lb.Within(a.prefixes, is.Addr))
		a.own[is.Addr] = true
	}
	err = prune(a.m, func(key [4]uint32, _ uint8) bool { _, is := want[key]; return !is })
	for key, answers := range want {
		err = errors.Join(err, a.m.Put(key, answers))
	}
	if err != nil {
		return fmt.Errorf("write the node's addresses: %w", err)
	}
	return nil
}
