package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/trace"
)

// Differences implements mode.Tracer. It reads all objects of the mode into a separate ledger, as a
// Reset does, and reports the writes that a Reset would make. Draining real and virtual servers are
// no difference.
func (p *Plane) Differences(ctx context.Context, want *lb.Table, each func(trace.Difference) bool) error {
	v, done, err := p.view(ctx)
	if err != nil {
		return fmt.Errorf("ipvs: compare: %w", err)
	}
	defer done()
	d := &differ{view: v, Reporter: mode.NewReporter(ctx, each), Plane: &Plane{cfg: p.cfg, sets: p.sets}}
	d.cfg.IPVS, d.cfg.Sets, d.cfg.Device = v.IPVS, v.Sets, v.Device
	for _, part := range []func(context.Context, *lb.Table) error{d.chains, d.kinds, d.objects} {
		err = part(ctx, want)
		if err != nil || d.Err() != nil {
			break
		}
	}
	err = d.Done(err)
	if err != nil {
		return fmt.Errorf("ipvs: compare: %w", err)
	}
	return nil
}

// differ compares. Its Plane reads as a Reset does, and writes nothing.
type differ struct {
	*Plane
	*mode.Reporter
	view *View
}

// chains compares the rules without their comments.
func (d *differ) chains(ctx context.Context, want *lb.Table) error {
	jumps, rules, err := d.view.Held(ctx)
	if err != nil {
		return err
	}
	for _, j := range chainJumps() {
		if !slices.Contains(jumps, j) {
			d.Report(lb.Key{}, fmt.Sprintf("chain %s of table %s", j.Chain, j.Table), j.Rule, "")
		}
	}
	have := map[chainName][]string{}
	for _, r := range rules {
		at := chainName{r.Table, r.Chain}
		have[at] = append(have[at], r.Rule)
	}
	facts := nodeFacts{family: d.cfg.Family, masq: d.cfg.Masquerade, node: want.Node, excluded: d.cfg.ExcludeCIDRs}
	facts.fullyRandom = slices.ContainsFunc(have[chainName{"nat", chainPostrouting}], func(r string) bool {
		return strings.Contains(r, "--random-fully")
	})
	shall := chainRules(facts)
	for _, at := range slices.SortedFunc(maps.Keys(shall), compareChains) {
		if !slices.EqualFunc(shall[at], have[at], func(a, b string) bool {
			return xtables.WithoutComments(a) == xtables.WithoutComments(b)
		}) {
			d.Report(lb.Key{}, fmt.Sprintf("chain %s of table %s", at[1], at[0]), strings.Join(shall[at], "\n"),
				strings.Join(have[at], "\n"))
		}
		delete(have, at)
	}
	for _, at := range slices.SortedFunc(maps.Keys(have), compareChains) {
		d.Report(lb.Key{}, fmt.Sprintf("chain %s of table %s", at[1], at[0]), "", strings.Join(have[at], "\n"))
	}
	return nil
}

func compareChains(a, b chainName) int { return slices.Compare(a[:], b[:]) }

// kinds checks that the sets and the device exist with the right type.
func (d *differ) kinds(ctx context.Context, _ *lb.Table) error {
	for s := range setCount {
		want := d.sets[s]
		have, err := d.view.Sets.Header(ctx, want.Name)
		if err != nil && !errors.Is(err, ipset.ErrNoSet) {
			return err
		}
		text := ""
		if err == nil {
			if have.Differs(want) == "" {
				continue
			}
			text = have.Set.String()
		}
		d.broken[s] = true
		d.Report(lb.Key{}, "ipset "+want.Name, want.String(), text)
	}
	_, err := d.view.Device.Addresses(ctx)
	if errors.Is(err, ErrNoDevice) {
		d.deviceless = true
		d.Report(lb.Key{}, "interface "+Device, "an interface of type "+DeviceType, "")
		return nil
	}
	return err
}

// objects compares virtual servers, members and addresses.
func (d *differ) objects(ctx context.Context, want *lb.Table) error {
	l, err := d.readAll(ctx, want)
	if err != nil {
		return err
	}
	for _, row := range want.Sorted() {
		l.set(row.Key, row) // the plane has refused and reported it too
	}
	servers := l.sortedServers()
	for _, s := range servers {
		if s.refs == 0 && s.has && s.isDraining() {
			l.leave(lb.Key{}, s, true)
		}
	}
	unmarked := d.broken[setMarksPods] || d.broken[setMarksHost] || d.broken[setMarksAnywhere]
	for _, s := range servers {
		if s.id.Mark != 0 && unmarked { // the meaning of the mark is unknown
			continue
		}
		d.server(l, s)
	}
	var wrong []member
	for m, c := range l.members {
		if !c.right() && !d.broken[m.set] && !(unmarked && c.has && c.refs > 0 && m.set.marks()) {
			wrong = append(wrong, m)
		}
	}
	slices.SortFunc(wrong, compareMembers)
	for _, m := range wrong {
		c := l.members[m]
		text := func(there bool, as mark) string {
			if !there {
				return ""
			}
			return m.wire(as).String()
		}
		d.Report(l.touched.members[m], "member "+m.wire(mark{}).String()+" of ipset "+m.set.name(l.family),
			text(c.refs > 0, c.want), text(c.has, c.is))
	}
	if d.deviceless {
		return nil
	}
	for _, a := range slices.SortedFunc(maps.Keys(l.addrs), netip.Addr.Compare) {
		if is := l.addrs[a]; is.has != l.binds(a, is) {
			want, have := a.String(), ""
			if is.has {
				want, have = "", a.String()
			}
			d.Report(l.touched.addrs[a], "address "+a.String()+" of "+Device, want, have)
		}
	}
	return nil
}

// isDraining reports whether a virtual server has only real servers that take no new connections.
func (s *virtual) isDraining() bool {
	for _, d := range s.dests {
		if d.weight != 0 {
			return false
		}
	}
	return len(s.dests) > 0
}

// server compares a virtual server and its real servers.
func (d *differ) server(l *ledger, s *virtual) {
	key := l.touched.servers[s]
	name := "virtual server " + s.id.String()
	save := func(there bool, v ipvs.Service) string {
		if !there {
			return ""
		}
		v.ServiceID = s.id
		return strings.TrimSpace(ipvs.SaveService(v))
	}
	if s.refs == 0 {
		if s.has && !s.leaving && s.id != probeID(l.family) {
			d.Report(key, name, "", save(true, s.is))
		}
		return
	}
	if !s.has || s.is != s.want {
		d.Report(key, name, save(true, s.want), save(s.has, s.is))
	}
	if !s.has {
		return // its real servers are unknown
	}
	right := dest{1, int32(ipvs.Masq)}
	text := func(a netip.AddrPort, is dest) string {
		if is.weight == unknown {
			return fmt.Sprintf("%s with settings of others", a)
		}
		return strings.TrimSpace(ipvs.SaveDestination(s.id,
			ipvs.Destination{Addr: a, Forwarding: ipvs.Forwarding(is.forwarding), Weight: is.weight}))
	}
	if s.set != nil {
		for b := range s.set.Backends.All() {
			is, has := s.dests[b.Addr]
			if is == right || l.withholds(b.Addr.Addr()) {
				continue
			}
			have := ""
			if has {
				have = text(b.Addr, is)
			}
			d.Report(key, fmt.Sprintf("real server %s of %s", b.Addr, name), text(b.Addr, right), have)
		}
	}
	for _, a := range sortedAddrs(s.dests) {
		if is := s.dests[a]; !l.wants(s, a) && is.weight != 0 {
			d.Report(key, fmt.Sprintf("real server %s of %s", a, name), "", text(a, is))
		}
	}
}
