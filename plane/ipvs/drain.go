//go:build linux

package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/lb"
)

// How long real servers drain (ADR 0046). A real server is removed when it has no connections, or
// no longer answers, so that those of a dead node do not stay for ever (PN-42).
const (
	// firstLook is the first pause before a check, and lastLook the longest; pauses double.
	firstLook, lastLook = 2 * time.Second, 30 * time.Second
	// underWay is the minimum stay. Packets that chose the real server before its weight was 0 may
	// not be counted yet, and would lose their connection.
	underWay = time.Second
	// mute limits the time without a reply while packets go to it: clients repeat lost packets.
	mute = 2 * time.Minute
	// silent limits the time without a packet from it, without [Config.Idle]: IPVS then forgets
	// idle connections.
	silent = 15 * time.Minute
	// stay limits how long connections keep the address of a deleted Service: another may own it by
	// then (TN-63).
	stay = 5 * time.Minute
	// perSecond is the number of real servers that are listed for each second of pause.
	perSecond = 1000
	// Virtual servers due within together are checked together, up to inspectStep real servers:
	// changes of frontends wait meanwhile.
	together    = time.Second
	inspectStep = 20000
)

// drain schedules the removal of a real server for when its connections have ended.
func (p *Plane) drain(s *virtual, a netip.AddrPort) {
	now := time.Now()
	if s.drain == nil {
		pause := firstLook + time.Duration(len(s.dests))*time.Second/perSecond
		s.drain = &draining{next: now.Add(pause), pause: pause, dests: map[netip.AddrPort]seen{}}
	}
	if _, known := s.drain.dests[a]; known {
		return
	}
	s.drain.dests[a] = seen{left: now, noticed: now}
	p.drains[s] = struct{}{}
	p.wake(s.drain.next)
}

// wake makes Drift have a value at that time.
func (p *Plane) wake(at time.Time) {
	if !p.alarmAt.IsZero() && !at.Before(p.alarmAt) {
		return
	}
	p.alarmAt = at
	if p.alarm == nil {
		p.alarm = time.AfterFunc(time.Until(at), p.signal)
	} else {
		p.alarm.Reset(time.Until(at))
	}
}

// drainDue removes drained real servers of the virtual servers that are due.
func (p *Plane) drainDue(ctx context.Context) error {
	now, counts := time.Now(), counting() // without counts, silence cannot be detected
	p.alarmAt = time.Time{}
	w := p.writer()
	var ops []serverOp
	listed := 0
	for s := range p.drains { // in another order each time, so that all get their turn
		if s.drain == nil || len(s.drain.dests) == 0 && !s.leaving {
			s.drain = nil
			delete(p.drains, s)
			continue
		}
		if next := now.Add(together); !next.After(s.drain.next) {
			p.wake(s.drain.next)
			continue
		} else if listed >= inspectStep {
			p.wake(next)
			continue
		}
		listed += len(s.dests)
		gone, err := p.inspectAt(ctx, s, now, counts)
		if err != nil {
			return err
		}
		for _, a := range gone[:min(len(gone), stage)] {
			ops = append(ops, s.op(ipvs.DelDestination, a, 0))
		}
		s.drain.pause = max(min(2*s.drain.pause, lastLook), time.Duration(len(s.dests))*time.Second/perSecond)
		s.drain.next = now.Add(s.drain.pause)
		if len(gone) > stage {
			s.drain.next = now.Add(together)
		}
		p.wake(s.drain.next)
		p.l.touched.servers[s] = lb.Key{}
	}
	if err := w.serverOps(ctx, ops); err != nil {
		return err
	}
	if err := w.write(ctx); err != nil {
		return err
	}
	return p.ended("remove what has drained", w, nil)
}

// inspectAt returns the real servers that have drained, or serve no connection any more.
func (p *Plane) inspectAt(ctx context.Context, s *virtual, now time.Time, counts bool) (gone []netip.AddrPort,
	err error) {
	listed, err := p.cfg.IPVS.Destinations(ctx, s.id)
	if err != nil {
		return nil, fmt.Errorf("look for connections of virtual server %s: %w", s.id, err)
	}
	left := map[netip.AddrPort]bool{}
	late := s.leaving && (now.Sub(s.drain.left) >= stay || p.l.taken(s))
	for _, d := range listed {
		is, drains := s.drain.dests[d.Addr]
		if !drains {
			continue
		}
		left[d.Addr] = true
		if s.leaving {
			d.Inactive = 0
		}
		if is.follow(d, now, p.cfg.Idle) && (counts || d.Active+d.Inactive == 0) || late {
			gone = append(gone, d.Addr)
		}
		s.drain.dests[d.Addr] = is
	}
	for a := range s.drain.dests {
		if !left[a] { // another program removed it
			delete(s.dests, a)
			delete(s.drain.dests, a)
		}
	}
	return gone, nil
}

// follow records a real server's activity since the last check, and reports whether it can be
// removed. idle is the time after which IPVS forgets a connection.
func (s *seen) follow(d ipvs.DestinationState, now time.Time, idle time.Duration) bool {
	in, out := d.Stats.InPackets, d.Stats.OutPackets
	switch {
	case out != s.out:
		s.noticed, s.asked = now, time.Time{}
	case in != s.in && s.asked.IsZero():
		s.asked = now
	}
	s.in, s.out = in, out
	if now.Sub(s.left) < underWay {
		return false
	}
	return d.Active+d.Inactive == 0 || now.Sub(s.noticed) >= idle || !s.asked.IsZero() && now.Sub(s.asked) >= mute
}
