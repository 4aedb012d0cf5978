//go:build linux

package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/mode"
)

// Connections by frontend ([mode.TrafficCounter], docs/adr/0069). The first packet of a connection, which alone comes to the nat chains, is counted in
// a set that packets fill: an element for each frontend in use, with a counter. So no change of a row costs more, nothing is to be kept in step, and
// what is not used goes by itself. A rule of its own counts: where it fails, because the set is full or memory short, the packet goes on to the
// next rule, and is served.
const (
	// countersLimit is the most frontends whose connections are counted at a time. An element takes about 200 bytes, and 16 for each CPU.
	countersLimit = 1 << 16
	// countersKept is how long the counter of a frontend is kept that nobody uses, so the longest time between two readings.
	countersKept = 10 * time.Minute
)

// count is the rule that counts a connection to a frontend that has a set of backends in sets.
func (r *ruleset) count(comment string, sets setIndex, key []rule.Operand) rule.Rule {
	counters := sConnections
	if sets == sNodePortClusterSets || sets == sNodePortLocalSets {
		counters = sNodePortConnections
	}
	return r.New(comment+": count", rule.Find(rule.Number, r.set(sets), key...), rule.Increment(r.set(counters), countersKept, key...))
}

// counters reads the counters, over a socket of its own: writes go on meanwhile. It is nil where nothing is counted.
type counters struct {
	mu sync.Mutex // held to read
	reader
	addrLens map[setIndex]int // sets, with the lengths of addresses in their keys: 0 for NodePorts
}

// openCounters opens the socket, where rules count.
func (p *Plane) openCounters(ctx context.Context) (err error) {
	if !p.rules.counts {
		return nil
	}
	lacks, err := p.lacks(ctx, p.rules.New("", rule.Counter))
	if p.rules.counts = !lacks && err == nil; !p.rules.counts {
		return err
	}
	p.counters, err = p.newCounters(map[setIndex]int{sConnections: p.ip.AddrLen, sNodePortConnections: 0})
	return err
}

// newCounters reads sets of counters, by the lengths of addresses in their keys.
func (p *Plane) newCounters(addrLens map[setIndex]int) (*counters, error) {
	sock, err := wire.Open()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	return &counters{reader: p.readerBy(sock, nil), addrLens: addrLens}, nil
}

func (c *counters) close() error {
	if c == nil {
		return nil
	}
	return c.Socket.Close()
}

// Counts is part of mode.TrafficCounter. It is false where the kernel cannot count.
func (p *Plane) Counts() bool { return p.counters != nil }

// Traffic is part of mode.TrafficCounter: connections that were led to an endpoint. Bytes are not counted; it would cost each packet something.
func (p *Plane) Traffic(ctx context.Context, f func(mode.Count)) error {
	return p.counters.read(ctx, func(row lb.Key, n uint64) {
		f(mode.Count{CounterID: mode.CounterID{Row: row}, Traffic: mode.Traffic{Connections: n}})
	})
}

// read calls f with each counter.
func (c *counters) read(ctx context.Context, f func(row lb.Key, n uint64)) error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, addrLen := range c.addrLens {
		d := &c.sets[i]
		err := c.EachElement(ctx, d.Name, func(el []byte) {
			if n, ok := counterOf(el); ok && len(wire.ElementKey(el)) == d.KeyLen() {
				f(wire.ParseKey(wire.ElementKey(el), addrLen), n)
			}
		})
		// Others may write meanwhile; what is missing then is read the next time. Before the first write there is no table.
		if err != nil && !errors.Is(err, netlink.ErrInterrupted) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("nftables %s: read the counters of %s: %w", c.IP.Family, d.Name, err)
		}
	}
	return nil
}

// counterOf returns the packets that an element's counter has counted.
func counterOf(el []byte) (uint64, bool) {
	x := netlink.Attribute(el, unix.NFTA_SET_ELEM_EXPR)
	n := netlink.Attribute(netlink.Attribute(x, unix.NFTA_EXPR_DATA), unix.NFTA_COUNTER_PACKETS)
	if netlink.CStr(netlink.Attribute(x, unix.NFTA_EXPR_NAME)) != "counter" || len(n) != 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(n), true
}
