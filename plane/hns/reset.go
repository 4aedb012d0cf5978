package hns

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/lb"
	"kube-proxy/plane"
)

// picture is the content of HNS.
type picture struct {
	facts
	endpoints []Endpoint
	balancers []LoadBalancer
}

// byID returns the endpoints by their ids in lower case: HNS shows ids in any case.
func (pic *picture) byID() map[string]Endpoint {
	all := make(map[string]Endpoint, len(pic.endpoints))
	for _, e := range pic.endpoints {
		all[strings.ToLower(e.ID)] = e
	}
	return all
}

// read lists HNS.
func (p *Plane) read(ctx context.Context, node lb.Node) (pic picture, err error) {
	if err := ctx.Err(); err != nil {
		return pic, err
	}
	pic.facts = p.cfg.facts(node)
	pic.refused = PortMappingFlags(p.refused.Load())
	pic.features, err = p.hns.Features(ctx)
	if err != nil {
		return pic, err
	}
	pic.features.ModifyLoadbalancer = pic.features.ModifyLoadbalancer && !p.unmodifiable.Load()
	all, err := p.hns.Networks(ctx, p.cfg.Network)
	if err != nil {
		return pic, err
	}
	pic.network, err = pick(p.cfg.Network, all)
	if err != nil {
		return pic, fmt.Errorf("%w: %w", err, errNoNetwork)
	}
	pic.endpoints, err = p.hns.Endpoints(ctx, pic.id)
	if err != nil {
		return pic, err
	}
	pic.balancers, err = p.hns.LoadBalancers(ctx)
	if err != nil {
		return pic, err
	}
	if p.cfg.ForwardHealthCheckVIP {
		for _, e := range pic.endpoints {
			if a := addresses(e, p.cfg.Family); e.Name == p.cfg.RootEndpoint && len(a) > 0 {
				pic.root, pic.rootAddr = e.ID, a[0]
			}
		}
	}
	return pic, nil
}

// errNoNetwork: the network is missing or ambiguous.
var errNoNetwork = errors.New("waiting for the network")

// Reset makes HNS hold exactly the table. It adopts the objects of an earlier run, see the package
// comment.
func (p *Plane) Reset(ctx context.Context, want *lb.Table) (res plane.ResetResult, err error) {
	was := p.st
	p.st, p.suspect, p.taken = nil, false, map[uint16]bool{}
	pic, err := p.read(ctx, want.Node)
	if err == nil && pic.overlay { // it refuses load balancers without these
		err = errors.Join(pic.lacks(p.cfg.SourceVIP)...)
	}
	if err != nil {
		return res, fmt.Errorf("hns: reset: %w", err)
	}
	r := p.reconciliation(pic, was, want.Sorted())
	r.run(ctx)
	if r.stopped != nil {
		p.st = nil
		return res, fmt.Errorf("hns: reset: %w", r.stopped)
	}
	if errors.Join(r.rest...) != nil {
		p.suspected()
	}
	served := r.stale
	if was != nil {
		served = slices.AppendSeq(served, maps.Keys(was.rows))
	}
	p.show()
	return plane.ResetResult{Later: slices.AppendSeq(r.later, maps.Keys(r.failed)),
		Dropped: plane.Dropped(slices.Values(served), want)}, nil
}

// Audit lists HNS and repairs differences. HNS reports no changes; without full, Audit lists only
// after a suspicious answer.
func (p *Plane) Audit(ctx context.Context, full bool) (repaired int, err error) {
	if err := p.usable(ctx); err != nil {
		return 0, fmt.Errorf("hns: audit: %w", err)
	}
	if !full && !p.suspect {
		return 0, nil
	}
	pic, err := p.read(ctx, p.st.node)
	if err == nil && !strings.EqualFold(pic.id, p.st.id) {
		err = fmt.Errorf("the HNS network %q was created again: %w", p.cfg.Network, plane.ErrStateLost)
	} else if errors.Is(err, errNoNetwork) {
		err = fmt.Errorf("%w: %w", err, plane.ErrStateLost)
	}
	if err != nil {
		if errors.Is(err, plane.ErrStateLost) {
			p.st = nil
		}
		return 0, fmt.Errorf("hns: audit: %w", err)
	}
	was := p.st
	p.suspect = false
	rows := slices.SortedFunc(maps.Values(was.rows), func(a, b *lb.Frontend) int { return a.Key.Compare(b.Key) })
	r := p.reconciliation(pic, was, rows)
	p.st.failed = was.failed
	r.run(ctx)
	p.show()
	switch {
	case r.stopped != nil && r.calls == 0:
		p.st, p.suspect = was, true
		return 0, fmt.Errorf("hns: audit: %w", r.stopped)
	case r.stopped != nil:
		p.st = nil
		return r.repaired, fmt.Errorf("hns: audit: %w: %w", r.stopped, plane.ErrStateLost)
	case len(r.later) > 0:
		p.st = nil
		return r.repaired, fmt.Errorf("hns: audit: %d load balancers are missing: %w", len(r.later), plane.ErrStateLost)
	}
	return r.repaired, r.auditErr(was.failed)
}

// reconciliation changes HNS from a picture to the state that frontends need.
type reconciliation struct {
	*writer
	rows []*lb.Frontend

	spare []string // ids of redundant endpoints
	// source: an endpoint of this node has the source VIP.
	source bool

	repaired int
	stale    []lb.Key         // removed load balancers
	later    []lb.Key         // postponed frontends
	failed   map[lb.Key]error // frontends that failed
	rest     []error          // other errors
	stopped  error            // why the run stopped early
}

// reconciliation adopts a picture as the plane's state. was is the former state, or nil.
func (p *Plane) reconciliation(pic picture, was *state, rows []*lb.Frontend) *reconciliation {
	st := newState(pic.facts)
	p.st = st
	r := &reconciliation{writer: &writer{Plane: p}, rows: rows, failed: map[lb.Key]error{}}
	for _, row := range rows {
		st.rows[row.Key] = row
		r.note(nil, row, map[string]bool{})
	}
	if was == nil {
		was = newState(facts{})
	}
	r.adoptEndpoints(pic, was)
	r.adoptBalancers(pic, was)
	p.notices.facts(&st.facts, p.cfg)
	return r
}

// adoptEndpoints takes the endpoints of the network into the state. If two have one address, that
// of a container counts.
func (r *reconciliation) adoptEndpoints(pic picture, was *state) {
	st := r.st
	for _, e := range pic.endpoints {
		for _, a := range addresses(e, st.family) {
			is, own := st.endpoints[a], ours(e)
			if a == st.sourceVIP && e.Flags&RemoteEndpoint == 0 {
				if r.source && e.Name == sourceName+a.String() { // a late call on Windows Server 2019 made a second one
					r.spare = append(r.spare, e.ID)
					continue
				}
				r.source = true
			}
			if known := was.endpoints[a]; known != nil && known.id == e.ID {
				own = own || known.ours // HNS may show it differently
			}
			switch {
			case is == nil:
			case own:
				r.spare = append(r.spare, e.ID)
				continue
			case is.ours:
				r.spare = append(r.spare, is.id)
			case e.Flags&RemoteEndpoint != 0: // both are others'
				continue
			}
			st.learn(a, e.ID, own)
			if provider, _ := st.provider(a); own && st.overlay && provider != ProviderOf(e) {
				st.endpoints[a].doubt = true // it routes to another node
			}
		}
	}
	if e := st.endpoints[st.sourceVIP]; e != nil && e.ours && r.needsSource() {
		e.doubt = true // the local endpoint replaces it
	}
}

// adoptBalancers takes the load balancers of this network's proxies into the state.
func (r *reconciliation) adoptBalancers(pic picture, was *state) {
	st, byID := r.st, pic.byID()
	checks := st.checked(r.cfg.HealthzPort)
	for _, l := range pic.balancers {
		s, ok := shapeOf(l)
		if ok && s.family() != st.family {
			continue
		}
		key := s.key()
		if !ok || st.balancers[key] != nil || !s.served(l, &st.facts, byID, st.rows[key] != nil || checks[key]) {
			st.leave(l)
			continue
		}
		b := &balancer{shape: s, shown: s, id: l.ID}
		if known := was.balancers[key]; known != nil && known.id == l.ID && known.shown == s {
			b.shape = known.shape // unchanged, in whatever form HNS shows it
		}
		for _, id := range l.HostComputeEndpoints {
			a := st.addressOf(byID[strings.ToLower(id)])
			switch {
			case !a.IsValid():
				b.unknown++
			case st.endpoints[a].doubt:
				b.doubt = true
				fallthrough
			default:
				b.endpoints = append(b.endpoints, a)
			}
		}
		slices.SortFunc(b.endpoints, netip.Addr.Compare)
		b.endpoints = slices.Compact(b.endpoints)
		st.acquire(b.endpoints)
		st.balancers[key] = b
		if row, e := st.rows[key], st.endpoints[key.Addr]; row != nil && st.atVIP(row) && e != nil && !e.doubt {
			b.atVIP = true
			st.acquire([]netip.Addr{key.Addr})
		}
	}
}

// addressOf is the endpoint's address in the state, invalid if it has none there.
func (s *state) addressOf(e Endpoint) netip.Addr {
	for _, a := range addresses(e, s.family) {
		if is := s.endpoints[a]; is != nil && is.id == e.ID {
			return a
		}
	}
	return netip.Addr{}
}

// leave records the keys of another program's load balancer.
func (s *state) leave(l LoadBalancer) {
	vips := l.FrontendVIPs
	if len(vips) == 0 {
		vips = []string{""}
	}
	for _, vip := range vips {
		for _, m := range l.PortMappings {
			a, _ := netip.ParseAddr(vip)
			s.others[lb.Key{Addr: a, Port: m.ExternalPort, Proto: lb.Proto(m.Protocol)}] = l.ID
		}
	}
}

// run first corrects wrong objects, then removes stale ones, then adds new ones.
func (r *reconciliation) run(ctx context.Context) {
	services := map[string]bool{}
	for name := range r.st.checks {
		services[name] = true
	}
	r.wrong(ctx)
	r.makeSource(ctx)
	now, later := plane.Postpone(r.Plane, slices.Values(r.rows), r.MaxBatchWeight(), func(row *lb.Frontend) bool {
		want := r.st.planned(row)
		return r.st.balancers[row.Key] != nil || want.none()
	})
	r.later = plane.Keys(later)
	for _, row := range later {
		r.note(row, nil, services)
		delete(r.st.rows, row.Key)
	}
	var fresh []*lb.Frontend
	for _, row := range now {
		if r.st.balancers[row.Key] == nil {
			fresh = append(fresh, row)
		} else {
			r.write(ctx, row)
		}
	}
	r.prune(ctx)
	for _, row := range fresh {
		r.write(ctx, row)
	}
	if err := r.forward(ctx, services); err != nil {
		r.rest = append(r.rest, err)
	}
	for _, id := range r.spare {
		if err := r.delete(ctx, id, r.hns.DeleteEndpoint); err == nil {
			r.repaired++
		} else if !errors.Is(err, ErrNotFound) {
			r.rest = append(r.rest, fmt.Errorf("duplicate endpoint %s: %w", id, err))
		}
	}
	for a, e := range r.st.endpoints {
		r.st.idle(a, e)
	}
	n, err := r.sweep(ctx)
	r.repaired += n
	r.rest = append(r.rest, err)
	r.stop(ctx, err)
}

// makeSource creates the source VIP's endpoint, without which an overlay network refuses load
// balancers.
func (r *reconciliation) makeSource(ctx context.Context) {
	st := r.st
	if !r.needsSource() || r.stopped != nil {
		return
	}
	r.calls++
	if _, err := r.hns.CreateEndpoint(ctx, st.sourceEndpoint()); err != nil {
		r.stopped = fmt.Errorf("creating the endpoint of the source VIP %s (--source-vip, winkernel.sourceVip): %w",
			st.sourceVIP, err)
		return
	}
	r.repaired++
}

// needsSource reports whether an overlay network lacks a local endpoint with the source VIP.
func (r *reconciliation) needsSource() bool {
	return !r.source && r.st.overlay && lb.FamilyOf(r.st.sourceVIP) == r.st.family
}

// wrong removes endpoints that route to the wrong node, and their load balancers: both are created
// again.
func (r *reconciliation) wrong(ctx context.Context) {
	for key, b := range r.st.balancers {
		if slices.ContainsFunc(b.endpoints, func(a netip.Addr) bool { return r.st.endpoints[a].doubt }) {
			r.count(ctx, func() error { return r.remove(ctx, key, b) })
		}
	}
	for a, e := range r.st.endpoints {
		if !e.doubt || e.refs > 0 {
			continue
		}
		err := r.count(ctx, func() error { return r.delete(ctx, e.id, r.hns.DeleteEndpoint) })
		if err == nil || errors.Is(err, ErrNotFound) {
			r.st.forget(a)
		}
	}
}

// prune removes load balancers that neither a frontend nor a health check needs.
func (r *reconciliation) prune(ctx context.Context) {
	checks := r.st.checked(r.cfg.HealthzPort)
	for _, key := range slices.SortedFunc(maps.Keys(r.st.balancers), lb.Key.Compare) {
		if r.st.rows[key] != nil || checks[key] {
			continue
		}
		if err := r.count(ctx, func() error { return r.remove(ctx, key, r.st.balancers[key]) }); err != nil {
			r.rest = append(r.rest, fmt.Errorf("stale %s: %w", key, err))
			continue
		}
		r.stale = append(r.stale, key)
	}
}

// write writes one frontend.
func (r *reconciliation) write(ctx context.Context, row *lb.Frontend) {
	if err := r.count(ctx, func() error { return r.row(ctx, row.Key, row) }); err != nil {
		r.failed[row.Key] = err
	}
}

// count counts a successful write by f, and stops the run if HNS no longer answers.
func (r *reconciliation) count(ctx context.Context, f func() error) error {
	if r.stopped != nil {
		return r.stopped
	}
	before := r.calls
	err := f()
	if r.calls > before && err == nil {
		r.repaired++
	}
	r.stop(ctx, err)
	return err
}

func (r *reconciliation) stop(ctx context.Context, err error) {
	switch {
	case r.stopped != nil:
	case ctx.Err() != nil:
		r.stopped = ctx.Err()
	case errors.Is(err, ErrRPC), errors.Is(err, ErrTimeout):
		r.stopped = err
	}
}

// auditErr returns the errors of an audit, without those of frontends that the engine retries
// anyway.
func (r *reconciliation) auditErr(known map[lb.Key]bool) error {
	errs := slices.Clone(r.rest)
	for _, k := range slices.SortedFunc(maps.Keys(r.failed), lb.Key.Compare) {
		if !known[k] {
			errs = append(errs, r.failed[k])
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("hns: audit: %w", err)
	}
	return nil
}
