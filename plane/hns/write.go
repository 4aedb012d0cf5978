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
)

// writer is one verb's work: it turns plans into calls. Endpoints come before the load balancers that use them, and go after those.
type writer struct {
	*Plane
	calls  int        // that wrote, or tried to
	asked  bool       // the network was read anew
	listed []Endpoint // of the network, where they were listed because HNS may not filter
}

func (p *Plane) writer() *writer { return &writer{Plane: p} }

// row writes what HNS shall hold for a row; nil if that goes.
func (w *writer) row(ctx context.Context, key lb.Key, row *lb.Frontend) error {
	st := w.st
	if row == nil {
		delete(st.rows, key)
	} else {
		st.rows[key] = row
	}
	want := st.planned(row)
	for _, l := range want.lacks {
		w.notices.lacking(l, row.Service, key)
	}
	if err := w.put(ctx, key, &want); err != nil {
		return fmt.Errorf("%s (%s): %w", key, service(row), err)
	}
	return nil
}

func service(row *lb.Frontend) string {
	if row == nil {
		return "goes"
	}
	return row.Service
}

// put makes the load balancer of the key what is planned. Where some endpoints cannot be had, the others serve, and the
// error says so.
func (w *writer) put(ctx context.Context, key lb.Key, want *plan) error {
	st := w.st
	is := st.balancers[key]
	if want.none() {
		return w.remove(ctx, key, is)
	}
	addrs, missing := w.have(ctx, key, want.backends)
	missing = errors.Join(missing, w.reach(ctx, key, is, want))
	switch {
	case len(addrs) == 0:
		return errors.Join(missing, w.remove(ctx, key, is))
	case is != nil && is.shape == want.shape && slices.Equal(is.endpoints, addrs) && !is.doubt && is.unknown == 0:
		return missing
	case is != nil && is.shape == want.shape && !is.doubt && st.features.ModifyLoadbalancer:
		return errors.Join(missing, w.modify(ctx, is, addrs))
	}
	return errors.Join(missing, w.replace(ctx, key, is, want, addrs))
}

// reach has an endpoint at the address of a load balancer that pods of an overlay network reach by one.
func (w *writer) reach(ctx context.Context, key lb.Key, is *balancer, want *plan) error {
	if !want.atVIP {
		return nil
	}
	if e := w.st.endpoints[key.Addr]; e == nil || e.doubt {
		if err := w.endpoint(ctx, key, backend{addr: key.Addr}); err != nil {
			return fmt.Errorf("endpoint for pods: %w", err)
		}
	}
	if is != nil && !is.atVIP {
		w.st.acquire([]netip.Addr{key.Addr})
		is.atVIP = true
	}
	return nil
}

// modify changes the endpoints of a load balancer in place: connections to those that stay live on.
func (w *writer) modify(ctx context.Context, is *balancer, addrs []netip.Addr) error {
	l := is.request(w.ids(addrs))
	l.ID = is.id
	w.calls++
	made, err := w.hns.ModifyLoadBalancer(ctx, l)
	if err == nil && !sameIDs(made.HostComputeEndpoints, l.HostComputeEndpoints) {
		// HNS 15.4 reports success and keeps the old endpoints (kubernetes/kubernetes#131466).
		w.unmodifiable.Store(true)
		err = ErrUnsupported
	}
	switch {
	case errors.Is(err, ErrUnsupported):
		w.st.features.ModifyLoadbalancer = false
		return w.replace(ctx, is.key(), is, &plan{shape: is.shape, atVIP: is.atVIP}, addrs)
	case err != nil:
		is.doubt = true
		w.doubt(err, addrs)
		w.idleAll(addrs)
		return err
	}
	w.st.acquire(addrs)
	w.st.release(is.endpoints)
	is.endpoints, is.unknown = addrs, 0
	is.shown, _ = shapeOf(made)
	return nil
}

// sameIDs compares ids, whose order and case do not matter.
func sameIDs(a, b []string) bool {
	lower := func(ids []string) []string {
		return slices.Sorted(slices.Values(strings.Fields(strings.ToLower(strings.Join(ids, " ")))))
	}
	return slices.Equal(lower(a), lower(b))
}

// replace deletes a load balancer, if there is one, and makes another for the key, of which HNS takes only one: until the second call
// has ended the key is not served. If HNS refuses the new one, the old one comes back.
func (w *writer) replace(ctx context.Context, key lb.Key, is *balancer, want *plan, addrs []netip.Addr) error {
	st := w.st
	before := &plan{}
	st.acquire(addrs)
	back := false
	if is != nil {
		back = !is.doubt
		before.shape, before.atVIP = is.shape, is.atVIP
		st.acquire(is.endpoints) // until it is known which one serves
		defer st.release(is.endpoints)
		if err := w.remove(ctx, key, is); err != nil {
			st.release(addrs)
			return err
		}
	}
	err := w.create(ctx, key, want, addrs)
	if err == nil {
		return nil
	}
	st.release(addrs)
	if back && !Uncertain(err) && w.create(ctx, key, before, is.endpoints) == nil {
		st.acquire(is.endpoints)
	}
	return err
}

// create makes a load balancer whose endpoints have been acquired.
func (w *writer) create(ctx context.Context, key lb.Key, want *plan, addrs []netip.Addr) error {
	s := want.shape
	w.calls++
	made, err := w.hns.CreateLoadBalancer(ctx, s.request(w.ids(addrs)))
	if errors.Is(err, ErrInvalid) {
		made, err = w.without(ctx, &s, addrs, made, err)
	}
	if err != nil {
		w.doubt(err, addrs)
		if id := w.st.others[key]; id != "" && errors.Is(err, ErrExists) {
			return fmt.Errorf("%w: load balancer %s of another program has the address and port", err, id)
		}
		if portTaken(err) {
			return fmt.Errorf("%w: a program of this node listens on the port, or it is in the dynamic range: see netsh int ipv4 show excludedportrange and dynamicport", err)
		}
		return err
	}
	shown, _ := shapeOf(made)
	is := &balancer{shape: s, shown: shown, id: made.ID, endpoints: addrs}
	if w.st.balancers[key] = is; want.atVIP && w.st.endpoints[key.Addr] != nil {
		is.atVIP = true
		w.st.acquire([]netip.Addr{key.Addr})
	}
	return nil
}

// portTaken reports whether HNS refused a load balancer because the system has its port.
func portTaken(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == CodePortExists
}

// without makes a load balancer that HNS refused as invalid without one of its optional flags. If HNS takes it, this build of Windows
// does not know the flag, and is not asked for it again.
func (w *writer) without(ctx context.Context, s *shape, addrs []netip.Addr, made LoadBalancer, err error) (LoadBalancer, error) {
	for _, flag := range []PortMappingFlags{MappingVIPExternal, MappingLocalRoutedVIP, MappingUseMux} {
		if s.mapping&flag == 0 {
			continue
		}
		plain := *s
		plain.mapping &^= flag
		w.calls++
		again, e := w.hns.CreateLoadBalancer(ctx, plain.request(w.ids(addrs)))
		if e == nil {
			w.st.refused |= flag
			w.refused.Store(uint32(w.st.refused))
			w.notices.tell(lackFlag, "build", w.st.features.Build, "flag", int(flag), "key", s.key().String())
			*s = plain
			return again, nil
		}
		if Uncertain(e) {
			return again, e
		}
	}
	return made, err
}

// remove deletes the load balancer of a key. One that is not there is gone. After any other error it may be there or not: it is kept in mind,
// and deleted again.
func (w *writer) remove(ctx context.Context, key lb.Key, is *balancer) error {
	if is == nil {
		return nil
	}
	if err := w.delete(ctx, is.id, w.hns.DeleteLoadBalancer); err != nil && !errors.Is(err, ErrNotFound) {
		is.doubt = true
		return err
	}
	delete(w.st.balancers, key)
	w.st.release(is.endpoints)
	if is.atVIP {
		w.st.release([]netip.Addr{key.Addr})
	}
	return nil
}

// delete deletes an object. Windows Server 2019 sometimes fails to, for no reason that it gives, and does at the next attempt
// (kubernetes/kubernetes#113524).
func (w *writer) delete(ctx context.Context, id string, f func(context.Context, string) error) (err error) {
	for range 3 {
		w.calls++
		if err = f(ctx, id); !errors.Is(err, ErrFailed) || ctx.Err() != nil {
			break
		}
	}
	return err
}

// have returns the addresses for which there are endpoints, and makes those that are missing. The error names those that
// cannot be had.
func (w *writer) have(ctx context.Context, key lb.Key, backends []backend) (addrs []netip.Addr, missing error) {
	var errs []error
	addrs = make([]netip.Addr, 0, len(backends))
	for _, b := range backends {
		// On Windows Server 2019 a pod may have come with the address of an endpoint of ours (kubernetes/kubernetes#138000).
		if e := w.st.endpoints[b.addr]; e == nil || e.doubt || b.here && e.ours {
			if err := w.endpoint(ctx, key, b); err != nil {
				errs = append(errs, fmt.Errorf("backend %s: %w", b.addr, err))
				continue
			}
		}
		addrs = append(addrs, b.addr)
	}
	return addrs, errors.Join(errs...)
}

// errNoPod is that a pod of this node has no HNS endpoint.
var errNoPod = errors.New("no HNS endpoint has the address, which is of a pod of this node: its CNI has not made it yet, or has removed it")

// endpoint finds the endpoint of a backend, or makes it. What a container of this node has is used as it is, whoever says that it is
// elsewhere: HNS would else keep two of one address apart by chance, and the CNI from making its own.
func (w *writer) endpoint(ctx context.Context, key lb.Key, b backend) error {
	own := w.st.own(b.addr)
	if b.here || own || w.st.endpoints[b.addr] != nil {
		if found, err := w.find(ctx, b.addr); found || err != nil {
			return err
		}
	}
	switch {
	case b.here:
		return errNoPod
	case own:
		return fmt.Errorf("%w (subnet of this node in the network %q)", errNoPod, w.st.name)
	}
	e, known := w.st.remoteEndpoint(b.addr)
	if !known && key.Addr != b.addr && w.reread(ctx) {
		e, known = w.st.remoteEndpoint(b.addr)
	}
	if !known && key.Addr != b.addr {
		w.notices.lacking(lackProvider, b.addr.String(), key)
	}
	w.calls++
	made, err := w.hns.CreateEndpoint(ctx, e)
	if err != nil {
		// A container may have the address, or a run before may have made the endpoint.
		if found, _ := w.find(ctx, b.addr); found {
			return nil
		}
		return err
	}
	w.learn(b.addr, made.ID, true)
	return nil
}

// reread asks once more which nodes the network leads to: one may have come since.
func (w *writer) reread(ctx context.Context) bool {
	if w.asked {
		return false
	}
	w.asked = true
	all, err := w.hns.Networks(ctx, w.cfg.Network)
	if err != nil {
		return false
	}
	n, err := pick(w.cfg.Network, all)
	if err != nil || !strings.EqualFold(n.id, w.st.id) {
		return false
	}
	w.st.network = n
	return true
}

// find asks HNS who has the address. Whether this HNS filters by addresses nobody knows before it has found one so: until then, where
// it finds none, the endpoints of the network are listed, once in a verb.
func (w *writer) find(ctx context.Context, a netip.Addr) (bool, error) {
	notAt := func(e Endpoint) bool { return !strings.EqualFold(e.HostComputeNetwork, w.st.id) || !e.Has(a) }
	all, err := w.hns.EndpointsAt(ctx, w.st.id, a.String())
	asked := len(all)
	all = slices.DeleteFunc(all, notAt)
	w.filters = w.filters || len(all) > 0 && len(all) == asked
	if len(all) == 0 && !w.filters {
		if err = nil; w.listed == nil {
			w.listed, err = w.hns.Endpoints(ctx, w.st.id)
		}
		all = slices.DeleteFunc(slices.Clone(w.listed), notAt)
	}
	if err != nil || len(all) == 0 {
		return false, err
	}
	i := max(0, slices.IndexFunc(all, func(e Endpoint) bool { return e.Flags&RemoteEndpoint == 0 }))
	w.learn(a, all[i].ID, ours(all[i]))
	return true, nil
}

// learn takes note of an endpoint. Load balancers that have the address by another id are the audit's.
func (w *writer) learn(a netip.Addr, id string, ours bool) {
	if w.st.learn(a, id, ours) {
		w.suspected()
	}
}

func (w *writer) ids(addrs []netip.Addr) []string {
	ids := make([]string, len(addrs))
	for i, a := range addrs {
		ids[i] = w.st.endpoints[a].id
	}
	slices.Sort(ids)
	return ids
}

// doubt takes note that HNS did not find something: one of the endpoints, perhaps. They are looked for before they are used again.
func (w *writer) doubt(err error, addrs []netip.Addr) {
	if !errors.Is(err, ErrNotFound) {
		return
	}
	for _, a := range addrs {
		w.st.endpoints[a].doubt = true
	}
}

// idleAll forgets, or has deleted, endpoints that were found for a load balancer which did not take them.
func (w *writer) idleAll(addrs []netip.Addr) {
	for _, a := range addrs {
		w.st.idle(a, w.st.endpoints[a])
	}
}

// sweep deletes endpoints of ours that no load balancer needs: until then the CNI cannot give the address to a pod of this node
// (kubernetes/kubernetes#130963). What cannot go is the audit's, which sees who has it.
func (w *writer) sweep(ctx context.Context) (deleted int, err error) {
	var errs []error
	for _, a := range sorted(w.st.unused) {
		e := w.st.endpoints[a]
		err := w.delete(ctx, e.id, w.hns.DeleteEndpoint)
		if delete(w.st.unused, a); err == nil || errors.Is(err, ErrNotFound) {
			w.st.forget(a)
			deleted++
			continue
		}
		e.doubt = true
		errs = append(errs, fmt.Errorf("endpoint %s, which is not needed any more: %w", a, err))
	}
	return deleted, errors.Join(errs...)
}

// forward writes what leads health checks of the Services' load balancers to this node.
func (w *writer) forward(ctx context.Context, services map[string]bool) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(services)) {
		c := w.st.checks[name]
		want := c.wanted(w.cfg.HealthzPort)
		for key := range c.keys {
			if !want[key] && w.st.rows[key] == nil {
				errs = append(errs, w.put(ctx, key, &plan{}))
			}
		}
		for key := range want {
			if w.st.rows[key] != nil || w.taken[key.Port] {
				continue // a port of the Service itself, or of a program of the node
			}
			p := w.st.forwarded(key.Addr, key.Port)
			for _, l := range p.lacks {
				w.notices.lacking(l, name, key)
			}
			err := w.put(ctx, key, &p)
			if portTaken(err) && w.st.others[key] == "" {
				w.taken[key.Port] = true
				w.notices.lacking(lackHealthPort, name, key)
				continue
			}
			errs = append(errs, err)
		}
		if c.keys = want; len(c.rows) == 0 {
			delete(w.st.checks, name)
		}
	}
	return errors.Join(errs...)
}

// note keeps what leads health checks up to the change of a row, and adds its Service to those whose health checks may go elsewhere.
func (w *writer) note(was, is *lb.Frontend, services map[string]bool) {
	if !w.cfg.ForwardHealthCheckVIP {
		return
	}
	for i, row := range []*lb.Frontend{was, is} {
		if row == nil || row.Kind != lb.HealthCheck && row.Kind != lb.LoadBalancer {
			continue
		}
		name := lb.OwnerOf(row.Service)
		c := w.st.checks[name]
		if c == nil {
			c = &check{rows: map[lb.Key]lb.Kind{}}
			w.st.checks[name] = c
		}
		services[name] = true
		if delete(c.rows, row.Key); i == 1 {
			c.rows[row.Key] = row.Kind
		}
	}
}

func sorted(m map[netip.Addr]bool) []netip.Addr {
	return slices.SortedFunc(maps.Keys(m), netip.Addr.Compare)
}
