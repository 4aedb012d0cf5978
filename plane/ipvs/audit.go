//go:build linux

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/lb"
	"kube-proxy/plane"
)

// Audit repairs changes of other programs. IPVS and ipsets send no notifications. With full, or if
// a reply of the kernel revealed another writer, it compares all virtual servers, members and
// addresses, and the real servers of a part of the virtual servers; the next audit continues with
// others. Otherwise it handles notifications of addresses and rules, and real servers that drain.
func (p *Plane) Audit(ctx context.Context, full bool) (repaired int, err error) {
	if err := p.usable(ctx); err != nil {
		return 0, fmt.Errorf("ipvs: audit: %w", err)
	}
	full = full || p.suspected
	p.suspected = false
	addresses, place := p.cfg.Device.News()
	err = func() error {
		p.again(lb.Key{}) // the engine retries frontends
		left := p.writer()
		if err := left.write(ctx); err != nil { // not counted, because it is no drift
			return err
		}
		// Addresses come first: while one is not bound, packets to it go elsewhere.
		if place || full {
			if err := p.replace(ctx); err != nil {
				return err
			}
		}
		if addresses || full {
			if err := p.readAddresses(ctx, p.l); err != nil {
				return err
			}
		}
		if full {
			if err := p.compare(ctx); err != nil {
				return err
			}
		}
		w := p.writer()
		w.errs = left.errs
		err := w.write(ctx)
		repaired += w.repaired
		err = p.ended("audit", w, err)
		if err != nil {
			return err
		}
		n, err := p.cfg.Chains.Audit(ctx, full)
		repaired += n
		if err != nil {
			return err
		}
		return p.drainDue(ctx)
	}()
	switch {
	case err == nil:
		return repaired, nil
	case errors.Is(err, ipset.ErrNoSet), errors.Is(err, ErrNoDevice):
		err = fmt.Errorf("%w: %w", err, plane.ErrStateLost)
	}
	if errors.Is(err, plane.ErrStateLost) {
		p.lose()
	}
	p.suspected = true // notifications arrive only once
	return repaired, fmt.Errorf("ipvs: audit: %w", err)
}

// compare records and touches the objects that other programs changed.
func (p *Plane) compare(ctx context.Context) error {
	if err := p.readSets(ctx, p.l); err != nil {
		return err
	}
	seen, err := p.readServers(ctx, p.l, func(ipvs.ServiceID) {})
	if err != nil {
		return err
	}
	for id, s := range p.l.servers {
		if s.has && !seen[id] {
			s.gone()
			p.l.touched.servers[s] = lb.Key{}
			p.done(lb.Key{}, s)
		}
	}
	return p.compareDests(ctx)
}

// compareDests reads the real servers of the next part of the virtual servers.
func (p *Plane) compareDests(ctx context.Context) error {
	if len(p.unread) == 0 {
		p.unread = slices.SortedFunc(maps.Keys(p.l.servers), compareIDs)
	}
	for n, listed := 0, 0; n < auditStep && listed < inspectStep && len(p.unread) > 0; n++ {
		id := p.unread[0]
		p.unread = p.unread[1:]
		s := p.l.servers[id]
		if s == nil || !s.has {
			continue
		}
		dests, err := p.destsOf(ctx, id)
		if err != nil {
			p.unread = append(p.unread, id) // the next audit lists it, after the others
			return err
		}
		listed += len(dests)
		if !maps.Equal(dests, s.dests) {
			s.dests = dests
			p.l.touched.servers[s] = lb.Key{}
		}
	}
	return nil
}
