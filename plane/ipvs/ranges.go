package ipvs

import (
	"fmt"

	"kube-proxy/lb"
)

// maxRanges limits the source ranges of a Service, summed over its keys: they are members of an
// ipset that all Services share (ADR 0046).
const maxRanges = 1 << 16

// bounded counts the ranges of the frontend that replaces old. If its Service has too many, it
// returns an error and a frontend that drops all clients, since any client could be outside of the
// ranges.
func (l *ledger) bounded(old, row *lb.Frontend) (*lb.Frontend, error) {
	l.countRanges(old, -1)
	if row == nil || len(row.Sources) == 0 {
		return row, nil
	}
	service := lb.OwnerOf(row.Service)
	if l.ranges[service]+len(row.Sources) <= maxRanges {
		l.countRanges(row, +1)
		return row, nil
	}
	closed := &lb.Frontend{Key: row.Key, Service: row.Service, Kind: row.Kind,
		Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Drop}}}
	return closed, fmt.Errorf("service %s: its clients are dropped here: with the %d source ranges of this address "+
		"and port it would have more than %d, "+
		"counted for each address and port; give it fewer and wider loadBalancerSourceRanges, or fewer ports, or "+
		"choose mode nftables", service, len(row.Sources), maxRanges)
}

func (l *ledger) countRanges(row *lb.Frontend, by int) {
	if row == nil || len(row.Sources) == 0 {
		return
	}
	service := lb.OwnerOf(row.Service)
	setOrDelete(l.ranges, service, l.ranges[service]+by*len(row.Sources))
}
