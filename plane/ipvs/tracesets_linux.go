package ipvs

import (
	"errors"
	"net/netip"

	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
)

// Knows implements [xtables.Sets]: it knows only members of this mode's sets.
func (w *way) Knows(name string) bool {
	_, known := setNamed(w.cfg.Family, name)
	return known
}

// Marks implements [xtables.Sets].
func (w *way) Marks(name string) bool { return w.Knows(name) }

// Has implements [xtables.Sets].
func (w *way) Has(name, by string, p xtables.Packet) (bool, error) {
	s, _ := setNamed(w.cfg.Family, name)
	m := memberAs(s, p)
	if s.typ() == ipset.HashIP && by == "src" {
		m.addr = p.From.Addr()
	}
	has, err := w.view.Sets.Has(w.ctx, name, m.wire(mark{}))
	if errors.Is(err, ipset.ErrNoSet) { // removed since its rule was listed
		w.linef("no ipset %s", name)
		return false, nil
	}
	return has, err
}

// MarkOf implements [xtables.Sets]. It lists the set: the kernel cannot return the mark of one
// member.
func (w *way) MarkOf(name, _ string, p xtables.Packet) (value, mask uint32, err error) {
	s, _ := setNamed(w.cfg.Family, name)
	m := memberAs(s, p)
	_, err = w.view.Sets.Members(w.ctx, name, func(is ipset.Member) {
		if have, as := memberOf(s, is); have == m {
			value, mask = as.value, as.mask
			w.linef("ipset %s %s", name, is)
		}
	})
	return value, mask, err
}

// memberAs returns the member of a set that matches a packet; the third dimension is the source.
func memberAs(s set, p xtables.Packet) member {
	m := member{set: s, port: p.To.Port()}
	switch s.typ() {
	case ipset.HashIP:
		return member{set: s, addr: p.To.Addr()}
	case ipset.BitmapPort:
		return m
	case ipset.HashIPPortIP, ipset.HashIPPortNet:
		m.from = netip.PrefixFrom(p.From.Addr(), p.From.Addr().BitLen())
	}
	m.addr, m.proto = p.To.Addr(), p.Proto
	return m
}

// setNamed finds a set by its name.
func setNamed(f lb.Family, name string) (set, bool) {
	for s := range setCount {
		if s.name(f) == name {
			return s, true
		}
	}
	return 0, false
}
