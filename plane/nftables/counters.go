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

// Connections by frontend ([mode.TrafficCounter], docs/adr/0069). Only the first packet of a
// connection reaches the nat chains. It is counted in a set that packets fill: one element with a
// counter for each frontend in use. So changes of frontends cost no more, the set needs no
// synchronisation, and unused counters expire. The counting rule does nothing else: when it fails,
// because the set is full or memory is short, the packet continues with the next rule and is
// served.
const (
	// countersLimit is the maximum number of frontends whose connections are counted at a time. An
	// element takes about 200 bytes, plus 16 for each CPU.
	countersLimit = 1 << 16
	// countersKept is how long the counter of an unused frontend lives, and so the maximum time
	// between two readings.
	countersKept = 10 * time.Minute
)

// count returns the rule that counts a connection to a frontend that has a backend set in sets.
func (r *ruleset) count(comment string, sets setIndex, key []rule.Operand) rule.Rule {
	counters := sConnections
	if sets == sNodePortClusterSets || sets == sNodePortLocalSets {
		counters = sNodePortConnections
	}
	return r.New(comment+": count", rule.Find(rule.Number, r.set(sets), key...),
		rule.Increment(r.set(counters), countersKept, key...))
}

// counters reads the counters on its own socket, so that writes continue meanwhile. It is nil when
// nothing is counted.
type counters struct {
	mu sync.Mutex // held while reading
	reader
	addrLens map[setIndex]int // sets, with the address length in their keys: 0 for NodePorts
}

// openCounters opens the socket, if rules count.
func (p *Plane) openCounters(ctx context.Context) (err error) {
	if !p.rules.counts {
		return nil
	}
	lacks, err := p.lacks(ctx, p.rules.New("", rule.Counter))
	p.rules.counts = !lacks && err == nil
	if !p.rules.counts {
		return err
	}
	p.counters, err = p.newCounters(map[setIndex]int{sConnections: p.ip.AddrLen, sNodePortConnections: 0})
	return err
}

// newCounters returns a reader for sets of counters, given with the address length in their keys.
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

// Counts implements mode.TrafficCounter. It is false if the kernel cannot count.
func (p *Plane) Counts() bool { return p.counters != nil }

// Traffic implements mode.TrafficCounter with the connections that were translated to an endpoint.
// It does not count bytes, which would cost each packet time.
func (p *Plane) Traffic(ctx context.Context, f func(mode.Count)) error {
	return p.counters.read(ctx, func(row lb.Key, n uint64) {
		f(mode.Count{CounterID: mode.CounterID{Frontend: row}, Traffic: mode.Traffic{Connections: n}})
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
		// Another program may write meanwhile; the next reading returns the missing counters.
		// Before the first write no table exists.
		if err != nil && !errors.Is(err, netlink.ErrInterrupted) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("nftables %s: read the counters of %s: %w", c.IP.Family, d.Name, err)
		}
	}
	return nil
}

// counterOf returns the number of packets in an element's counter.
func counterOf(el []byte) (uint64, bool) {
	x := netlink.Attribute(el, unix.NFTA_SET_ELEM_EXPR)
	n := netlink.Attribute(netlink.Attribute(x, unix.NFTA_EXPR_DATA), unix.NFTA_COUNTER_PACKETS)
	if netlink.CStr(netlink.Attribute(x, unix.NFTA_EXPR_NAME)) != "counter" || len(n) != 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(n), true
}
