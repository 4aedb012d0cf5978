package planetest

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/scenario"
)

// modelled is a connection of a model that stays open.
type modelled struct {
	Meeting
	backend netip.AddrPort
	row     *lb.Frontend // that decided
}

// putToModel plays a scenario in both families, one after the other.
func (s *suite) putToModel(sc *scenario.Scenario) (_ Result, failures []string, lapsed bool, _ error) {
	result := Result{Families: map[string]string{}}
	for _, f := range families {
		r := s.newRun(sc, nil, f)
		var err error
		r.model, err = s.Model(f, sc.Settings)
		if err != nil {
			return Result{}, nil, false, fmt.Errorf("make the model: %w", err)
		}
		r.play()
		note(&result.Modelled, r.modelled)
		result.Families[f.String()] = r.verdict()
		failures = append(failures, r.failures...)
	}
	return result, failures, false, nil
}

// checkOtherwise compares the scenarios in which a model showed a difference with the permitted
// ones, if all scenarios were run.
func (s *suite) checkOtherwise(t *testing.T) {
	if len(s.results.Cases) < s.all {
		return
	}
	seen := map[Modelled][]string{}
	for _, name := range slices.Sorted(maps.Keys(s.results.Cases)) {
		for _, how := range s.results.Cases[name].Modelled {
			seen[how] = append(seen[how], name)
		}
	}
	for how, want := range s.Otherwise {
		want = slices.Sorted(slices.Values(want))
		if !slices.Equal(seen[how], want) {
			t.Errorf("%s: otherwise (%s) are\n%s\nand may be\n%s", s.Mode, how, strings.Join(seen[how], " "),
				strings.Join(want, " "))
		}
	}
}

// in runs fn in an empty kernel, with a function that makes the family's planes there.
func (cfg *Config) in(f lb.Family, fn func(create func() (Plane, error)) error) error {
	if cfg.Model == nil {
		return netlab.Isolated(0, func() error { return fn(func() (Plane, error) { return cfg.New(f) }) })
	}
	m, err := cfg.Model(f, scenario.Settings{})
	if err != nil {
		return fmt.Errorf("make the model: %w", err)
	}
	return fn(m.New)
}

// kernel returns the name of the tested kernel or model.
func (cfg *Config) kernel(t *testing.T) string {
	if cfg.Model != nil {
		return cfg.Stands
	}
	return kernel(t)
}

// holder returns the name of the host with the address if there is no lab, "" without one.
func (r *run) holder(a netip.Addr) string {
	if lb.Within(r.sc.Settings.NodeHolds, a) {
		return netlab.Node1
	}
	return netlab.Owner(a)
}

// ask does for a model what line does with packets.
func (r *run) ask(p scenario.Packet) (asked bool, err error) {
	switch p.Verb {
	case scenario.KeepsWorking, scenario.IsDead, scenario.MovesTo:
		c, open := r.asked[p.Conn]
		if !open {
			return false, nil
		}
		return true, r.goesOn(p, c)
	case scenario.Send, scenario.Open:
	default:
		return false, nil
	}
	shots, err := r.resolve(p)
	if err != nil || len(shots) == 0 || shots[0].Proto == 0 || r.led(shots[0]) { // a ping is of no load balancer
		return false, err
	}
	got := outcome{hosts: map[string]uint16{}, once: p.Verb == scenario.Open, sticky: true}
	var met []Meeting
	for _, s := range shots {
		m := r.model.Meets(Connection{From: p.From, To: s.To, ToNode: r.holds(s.To.Addr()), Proto: s.Proto})
		r.arrives(&got, p.From, s, m)
		if err := errors.Join(r.stray(s, m), r.compareSources(p, m), r.asks(p, s, m)); err != nil {
			return true, explain(p, s, m, r.table, err)
		}
		met = append(met, m)
	}
	if err := r.compare(p, shots, met, got); err != nil {
		return true, explain(p, shots[0], met[0], r.table, err)
	}
	if p.Verb == scenario.Open {
		r.asked[p.Conn] = modelled{met[0], append(met[0].Backends, shots[0].To)[0], r.table.Get(shots[0].Key)}
	}
	return true, nil
}

// stray returns an error for a backend that is neither one of the deciding frontend, nor the
// address and port, nor the NodePort.
func (r *run) stray(s scenario.Shot, m Meeting) error {
	var routes []lb.Route
	for _, k := range []lb.Key{s.Key, {Addr: s.To.Addr(), Port: s.To.Port(), Proto: s.Proto},
		{Port: s.To.Port(), Proto: s.Proto}} {
		if row := r.table.Get(k); row != nil {
			routes = append(routes, row.Routes...)
		}
	}
	for _, a := range m.Backends {
		if !slices.ContainsFunc(routes, func(route lb.Route) bool {
			return route.To != nil && route.To.Backends.Has(a)
		}) {
			return fmt.Errorf("%s is no backend of the row", a)
		}
	}
	return nil
}

// goesOn looks at a connection that was opened before.
func (r *run) goesOn(p scenario.Packet, c modelled) error {
	lives := c.By == "" || r.model.Lives(c.Meeting, c.backend)
	if lives == (p.Verb == scenario.KeepsWorking) {
		return nil
	}
	// Only if the frontends differ in nothing but their backends, connections are known to
	// continue.
	now := (*lb.Frontend)(nil)
	if c.row != nil {
		now = r.table.Get(c.row.Key)
	}
	if !lives && now != nil && balances(now) && now.Affinity == c.row.Affinity && !r.s.Recreates {
		return fmt.Errorf("connection %s by %q to %s has ended, though its load balancer could be changed in place",
			p.Conn, c.By, c.backend)
	}
	r.modelledSo(ModelledFlows)
	return nil
}

func balances(f *lb.Frontend) bool {
	return slices.ContainsFunc(f.Routes, func(route lb.Route) bool { return route.Do == lb.Balance })
}

// holds reports whether node1 has the address.
func (r *run) holds(a netip.Addr) bool { return a.IsLoopback() || r.holder(a) == netlab.Node1 }

// outcome is the result of a line's connections.
type outcome struct {
	hosts            map[string]uint16 // the hosts that answered, and at which port
	refused, dropped bool              // of some of the connections
	once             bool              // the line makes one connection
	// each connection that is translated is one of a client that stays with its backend
	sticky bool
}

// arrives adds the host that answers a connection.
func (r *run) arrives(o *outcome, from string, s scenario.Shot, m Meeting) {
	at := m.Backends
	o.sticky = o.sticky && (m.Sticky || m.By == "")
	switch {
	case m.By == "":
		at = []netip.AddrPort{s.To}
	case len(at) == 0:
		o.dropped = true
	}
	for _, a := range at {
		host := r.holder(a.Addr())
		if a.Addr().IsLoopback() {
			host = from
		}
		switch {
		case m.By == "" && host == "" && lb.Within(netlab.ServiceRanges(), a.Addr()):
			o.hosts[netlab.Sink] = a.Port()
		case host == "":
			o.dropped = true
		case slices.Contains(Ports, a.Port()):
			o.hosts[host] = a.Port()
		default:
			o.refused = true
		}
	}
}

// led reports whether another program of the node redirects packets to the port, which is outside
// the model.
func (r *run) led(s scenario.Shot) bool {
	return slices.ContainsFunc(r.sc.Settings.HostPorts, func(p scenario.HostPort) bool {
		return p.Port == s.To.Port() && s.Proto == lb.TCP && r.holds(s.To.Addr())
	})
}

// compare returns the differences from the line, except those that the mode permits.
func (r *run) compare(p scenario.Packet, shots []scenario.Shot, met []Meeting, got outcome) error {
	err := got.differs(p.Want)
	if err == nil {
		return nil
	}
	var how Modelled
	for i := range shots {
		one := r.otherways(p, shots[i], met[i], got)
		if one == "" || how != "" && one != how {
			return err
		}
		how = one
	}
	r.modelledSo(how)
	return nil
}

// differs returns the differences from want.
func (o outcome) differs(want scenario.Outcome) error {
	hosts := strings.Join(slices.Sorted(maps.Keys(o.hosts)), ", ")
	if want.Verdict != scenario.Answered {
		switch {
		case hosts != "":
			return fmt.Errorf("%s may answer", hosts)
		case want.Verdict == scenario.Refused && !o.refused || want.Verdict == scenario.Dropped && !o.dropped:
			return errors.New("it is refused where it should be dropped, or dropped where it should be refused")
		}
		return nil
	}
	if o.refused != (want.Or == scenario.Refused) || o.dropped != (want.Or == scenario.Dropped) {
		return fmt.Errorf("%s answer; some connections are refused: %t, some dropped: %t", hosts, o.refused, o.dropped)
	}
	if want.Sticky && !o.sticky && !o.once {
		return errors.New("the client does not stay with a backend")
	}
	for host, port := range o.hosts {
		i := slices.IndexFunc(want.Backends, func(b scenario.Backend) bool { return b.Host == host })
		switch {
		case i < 0:
			return fmt.Errorf("%s may answer", host)
		case want.Backends[i].Port != 0 && want.Backends[i].Port != port:
			return fmt.Errorf("%s is reached at port %d", host, port)
		}
	}
	for _, b := range want.Backends {
		if _, ok := o.hosts[b.Host]; !ok {
			return fmt.Errorf("%s is not reached", b.Host)
		}
	}
	return nil
}

// otherways names the difference of the model that explains an unexpected outcome; "" without one.
func (r *run) otherways(p scenario.Packet, s scenario.Shot, m Meeting, got outcome) Modelled {
	row := r.table.Get(s.Key)
	if p.Want.Verdict != scenario.Answered && m.By == "" {
		_, passes := got.hosts[netlab.Sink]
		if passes && len(got.hosts) == 1 || len(got.hosts) == 0 {
			return ModelledSilence
		}
	}
	exact := lb.Key{Addr: s.To.Addr(), Port: s.To.Port(), Proto: s.Proto}
	if r.ranged(exact) && (m.By == "" || r.holds(exact.Addr) && leadsTo(m, r.nodePort(exact))) {
		return ModelledRanges
	}
	if row == nil {
		return ""
	}
	sender, _ := netlab.HostByName(p.From)
	inside := sender.Node == netlab.Node1 // the node and its pods
	last := row.Routes[len(row.Routes)-1]
	switch {
	case row.Key.Proto == lb.SCTP && m.By == "":
		return ModelledSCTP
	case row.Kind == lb.NodePort && r.nodePortsDiffer(s, m):
		return ModelledNodePorts
	case inside && split(row) && (last.Do != lb.Balance && m.By == "" || last.Do == lb.Balance && leadsTo(m, last.To)):
		return ModelledSplit
	case row.Affinity > 0 && m.Sticky && got.includes(p.Want.Backends) && leadsTo(m, last.To):
		return ModelledAffinity
	case last.Do == lb.Balance && ports(last.To) > 1 && m.By != "" && within(m, last.To):
		return ModelledPorts
	case row.Kind == lb.ClusterIP && !inside && r.s.KeepsSources && m.By != "" && within(m, last.To):
		return ModelledInside
	}
	return ""
}

// ranged reports whether the key's frontend has source ranges.
func (r *run) ranged(k lb.Key) bool {
	row := r.table.Get(k)
	return row != nil && len(row.Sources) > 0
}

func (r *run) nodePort(k lb.Key) *lb.BackendSet {
	k.Addr = netip.Addr{}
	if row := r.table.Get(k); row != nil {
		return row.Routes[len(row.Routes)-1].To
	}
	return nil
}

// nodePortsDiffer reports whether a NodePort answers on an address that is not configured, or on
// none because the primary one is not.
func (r *run) nodePortsDiffer(s scenario.Shot, m Meeting) bool {
	asked := func(a netip.Addr) bool {
		return lb.Within(r.table.Node.NodePorts, a)
	}
	if m.By != "" {
		return !asked(s.To.Addr())
	}
	return !asked(netlab.Addr(netlab.Node1, r.family == lb.IPv6)) || s.To.Addr().IsLoopback()
}

// split reports whether the frontend treats the sources differently from the node's address.
func split(row *lb.Frontend) bool {
	last := row.Routes[len(row.Routes)-1]
	return slices.ContainsFunc(row.Routes, func(route lb.Route) bool {
		return route.Do != last.Do || route.To != nil && route.To.ID != last.To.ID
	})
}

// within reports whether the backends that the model names are some of the set's, all of one port;
// leadsTo, whether they are all of it.
func within(m Meeting, set *lb.BackendSet) bool {
	return !slices.ContainsFunc(m.Backends, func(a netip.AddrPort) bool {
		return a.Port() != m.Backends[0].Port() || !set.Backends.Has(a)
	})
}

func leadsTo(m Meeting, set *lb.BackendSet) bool {
	return set != nil && len(m.Backends) == set.Backends.Len() && within(m, set)
}

func ports(set *lb.BackendSet) int {
	seen := map[uint16]bool{}
	for b := range set.Backends.All() {
		seen[b.Addr.Port()] = true
	}
	return len(seen)
}

func (o outcome) includes(backends []scenario.Backend) bool {
	return !slices.ContainsFunc(backends, func(b scenario.Backend) bool { _, ok := o.hosts[b.Host]; return !ok })
}

// compareSources reports that backends see another source than in the line, unless the mode intends
// that.
func (r *run) compareSources(p scenario.Packet, m Meeting) error {
	if p.Want.Verdict != scenario.Answered || m.By == "" {
		return nil
	}
	for _, b := range p.Want.Backends {
		switch same := b.From.Host == scenario.Same; {
		case b.From == scenario.Origin{} || same == m.Kept:
		case m.Kept:
			r.modelledSo(ModelledClient)
		case r.s.KeepsSources && b.Host != netlab.Node1: // packets that stay on the node are not masqueraded
			return fmt.Errorf("%s does not see the client's own address", b.Host)
		default:
			r.modelledSo(ModelledNode)
		}
	}
	return nil
}

func (r *run) modelledSo(how Modelled) { r.modelled = append(r.modelled, how) }

// explain describes the query and the model's answer.
func explain(p scenario.Packet, s scenario.Shot, m Meeting, table *lb.Table, err error) error {
	row := fmt.Sprintf("none for %s", s.Key)
	if f := table.Get(s.Key); f != nil {
		row = strings.TrimRight(strings.ReplaceAll(f.String(), "\n", "\n      "), " \n")
	}
	return fmt.Errorf("asked: %s → %s/%s\nmodel: by %q to %v, sticky %t, source kept %t\ngot:   %w\nrow:   %s",
		p.From, s.To, s.Proto, m.By, m.Backends, m.Sticky, m.Kept, err, row)
}
