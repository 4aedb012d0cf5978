//go:build linux

package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/lb"
)

// Dump reads the kernel and returns the state that decides about new connections as text: without
// draining real servers, and with names instead of the numbers of marks.
func (p *Plane) Dump() (string, error) {
	ctx := context.Background()
	d := dumper{Plane: p, leaving: map[ipvs.ServiceID]bool{}, held: map[netip.Addr]bool{}}
	if p.l != nil {
		d.know()
	}
	for _, part := range []func(context.Context) error{d.servers, d.setMembers, d.addresses} {
		if err := part(ctx); err != nil {
			return "", fmt.Errorf("ipvs: dump: %w", err)
		}
	}
	slices.Sort(d.lines)
	rules, err := p.cfg.Chains.Rules(ctx)
	if err != nil {
		return "", fmt.Errorf("ipvs: dump: %w", err)
	}
	for _, r := range rules {
		d.lines = append(d.lines, fmt.Sprintf("%s %s %s\n", r.Table, r.Chain, r.Rule))
	}
	return strings.Join(d.lines, ""), nil
}

type dumper struct {
	*Plane
	lines []string
	// leaving are virtual servers without a frontend whose connections continue, and held the
	// addresses that only they have.
	leaving map[ipvs.ServiceID]bool
	held    map[netip.Addr]bool
}

func (d *dumper) know() {
	for id, s := range d.l.servers {
		if s.refs == 0 {
			d.leaving[id] = true
			if s.bind != unbound {
				d.held[id.Addr.Addr()] = true
			}
		}
	}
	for _, s := range d.l.servers {
		if s.refs > 0 && s.bind != unbound {
			delete(d.held, s.id.Addr.Addr())
		}
	}
}

func (d *dumper) line(format string, args ...any) {
	d.lines = append(d.lines, fmt.Sprintf(format, args...)+"\n")
}

// name returns the name of a virtual server.
func (d *dumper) name(id ipvs.ServiceID) string {
	if id.Mark == 0 {
		return id.String()
	}
	return "mark " + d.mark(id.Mark)
}

func (d *dumper) mark(m uint32) string {
	if d.l != nil {
		if s := d.l.servers[ipvs.ByMark(wireFamily(d.cfg.Family), m)]; s != nil && s.of != nil {
			return fmt.Sprintf("of %s sticky %t masquerade %t", s.of.set, s.of.sticky, s.of.masq)
		}
	}
	return fmt.Sprintf("%#x", m)
}

func (d *dumper) servers(ctx context.Context) error {
	servers, err := serversOf(d.cfg.IPVS, d.cfg.Family)
	if err != nil {
		return err
	}
	for _, s := range servers {
		if d.leaving[s.ServiceID] {
			continue
		}
		name := d.name(s.ServiceID)
		d.line("virtual server %s scheduler %s flags %d timeout %d netmask %d", name, s.Scheduler, s.Flags, s.Timeout,
			s.Netmask)
		all, err := d.cfg.IPVS.Destinations(ctx, s.ServiceID)
		if err != nil {
			return err
		}
		for _, is := range all {
			if is.Weight != 0 {
				d.line("virtual server %s to %s weight %d forwarding %d", name, is.Addr, is.Weight, is.Forwarding)
			}
		}
	}
	return nil
}

func (d *dumper) setMembers(ctx context.Context) error {
	for s := range setCount {
		_, err := d.cfg.Sets.Members(ctx, d.sets[s].Name, func(m ipset.Member) {
			if s == setIPs && d.held[m.Addr] || s == setMarksAnywhere &&
				d.leaving[serviceOf(lb.Key{Addr: m.Addr, Port: m.Port, Proto: lb.Proto(m.Proto)})] {
				return
			}
			text := m.Key().String()
			if m.Mask == wholeMark {
				text += " mark " + d.mark(m.Mark)
			} else if s.marks() {
				text += fmt.Sprintf(" mark %#x/%#x", m.Mark, m.Mask)
			}
			d.line("ipset %s %s", d.sets[s].Name, text)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *dumper) addresses(ctx context.Context) error {
	all, err := d.cfg.Device.Addresses(ctx)
	for _, a := range all {
		if !d.held[a] {
			d.line("address %s", a)
		}
	}
	return err
}
