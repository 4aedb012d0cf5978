package netlab

import (
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// ServiceRanges returns the ranges of addresses that a proxy translates, of both families.
func ServiceRanges() []netip.Prefix {
	return []netip.Prefix{Service4, LoadBalancer4, External4, Service6, LoadBalancer6, External6}
}

// BaitSink assigns all addresses of ServiceRanges to the sink, and gives it routes back to the
// pods. With responders there (BaitPort), the sink answers a packet that a node forwards
// untranslated, and Silence means that the node dropped it.
func (l *Lab) BaitSink() error {
	ns, err := l.Namespace(Sink)
	if err != nil {
		return err
	}
	r, err := openRTNL(ns)
	if err != nil {
		return fmt.Errorf("netlab: in the sink: %w", err)
	}
	defer r.close()
	if err := takeServiceRanges(r); err != nil {
		return err
	}
	uplink, err := r.find(Uplink)
	if err != nil {
		return fmt.Errorf("netlab: in the sink: %w", err)
	}
	for _, name := range []string{Node1, Node2} {
		for _, six := range []bool{false, true} {
			pods := podRange(name, six)
			err := r.addRoute(route{dst: pods, gateway: Addr(name, six), index: uplink.index, replaces: true})
			if err != nil {
				return fmt.Errorf("netlab: give the sink a route to %s: %w", pods, err)
			}
		}
	}
	return nil
}

// BaitPort starts a responder of the sink on a port, unless it has done so before.
func (l *Lab) BaitPort(proto Proto, port uint16) error {
	l.baitMu.Lock()
	defer l.baitMu.Unlock()
	at := bait{proto, port}
	if l.baits[at] {
		return nil
	}
	if _, err := l.Listen(Sink, proto, port); err != nil {
		return err
	}
	l.baits[at] = true
	return nil
}

// bait is the sink's set of addresses.
type bait struct {
	proto Proto
	port  uint16
}

// Silence returns the time without an answer after which a packet counts as dropped. It measures
// connections from pod3 to pod1 and pod4, which must have responders on the TCP port, so that on a
// busy machine a late answer does not count as a drop.
func (l *Lab) Silence(port uint16) (time.Duration, error) {
	var slowest time.Duration
	for range 3 {
		for _, name := range []string{"pod1", "pod4"} {
			for _, six := range []bool{false, true} {
				begin := time.Now()
				if _, err := l.Dial("pod3", TCP, netip.AddrPortFrom(Addr(name, six), port), DialOptions{}); err != nil {
					return 0, fmt.Errorf("the lab does not work: %w", err)
				}
				slowest = max(slowest, time.Since(begin))
			}
		}
	}
	return min(max(300*time.Millisecond, 20*slowest), 2*time.Second), nil
}

func takeServiceRanges(r *rtnl) error {
	lo, err := r.find("lo")
	if err != nil {
		return fmt.Errorf("netlab: in the sink: %w", err)
	}
	for _, p := range ServiceRanges() {
		err := r.addRoute(route{dst: p, index: lo.index, kind: unix.RTN_LOCAL, table: unix.RT_TABLE_LOCAL,
			scope: unix.RT_SCOPE_HOST, replaces: true})
		if err != nil {
			return fmt.Errorf("netlab: let the sink take %s: %w", p, err)
		}
	}
	return nil
}
