package hns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/lb"
)

// writer does the work of one verb: it turns plans into calls. Endpoints are created before their
// load balancers and deleted after them.
type writer struct {
	*Plane
	calls  int        // writes and attempts
	asked  bool       // the network was read again
	listed []Endpoint // the network's endpoints, if HNS may be unable to filter
}

// row writes the load balancer of a frontend, or removes it if the frontend is nil.
func (w *writer) row(ctx context.Context, key lb.Key, row *lb.Frontend) error {
	st := w.st
	of := cmp.Or(row, st.rows[key])
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
		return fmt.Errorf("%s (%s): %w", key, service(of), err)
	}
	return nil
}

// service names the Service of a frontend for an error; nil is one that only HNS has.
func service(row *lb.Frontend) string {
	if row == nil {
		return "no Service"
	}
	return row.Service
}

// put writes a planned load balancer. If endpoints are missing, the others serve and the error
// names the missing ones.
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

// reach ensures the remote endpoint at the address of a load balancer that needs one.
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

// modify replaces endpoints in place: connections to the remaining ones survive.
func (w *writer) modify(ctx context.Context, is *balancer, addrs []netip.Addr) error {
	l := is.request(w.ids(addrs))
	l.ID = is.id
	w.calls++
	made, err := w.hns.ModifyLoadBalancer(ctx, l)
	if err == nil && !SameIDs(made.HostComputeEndpoints, l.HostComputeEndpoints) {
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

// SameIDs compares ids, ignoring order and case.
func SameIDs(a, b []string) bool {
	lower := func(ids []string) []string {
		return slices.Sorted(slices.Values(strings.Fields(strings.ToLower(strings.Join(ids, " ")))))
	}
	return slices.Equal(lower(a), lower(b))
}

// replace deletes a load balancer, if there is one, and creates another. HNS allows one for a key,
// so the key is not served in between. If HNS refuses the new one, the old one is restored.
func (w *writer) replace(ctx context.Context, key lb.Key, is *balancer, want *plan, addrs []netip.Addr) error {
	st := w.st
	before := &plan{}
	st.acquire(addrs)
	back := false
	if is != nil {
		back = !is.doubt
		before.shape, before.atVIP = is.shape, is.atVIP
		st.acquire(is.endpoints) // until it is clear which one serves
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

// create creates a load balancer whose endpoints are acquired.
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
			return fmt.Errorf("%w: a program of this node has the port, or it is in the dynamic range: see netsh int "+
				"ipv4 show excludedportrange and dynamicport", err)
		}
		return err
	}
	shown, _ := shapeOf(made)
	is := &balancer{shape: s, shown: shown, id: made.ID, endpoints: addrs}
	w.st.balancers[key] = is
	if want.atVIP && w.st.endpoints[key.Addr] != nil {
		is.atVIP = true
		w.st.acquire([]netip.Addr{key.Addr})
	}
	return nil
}

// portTaken reports whether the system has the port of a load balancer.
func portTaken(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == CodePortExists
}

// without retries an invalid request without each optional flag. If HNS accepts, this build of
// Windows does not know that flag, and later requests omit it.
func (w *writer) without(ctx context.Context, s *shape, addrs []netip.Addr, made LoadBalancer, err error) (LoadBalancer,
	error) {
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
			w.notices.report(lackFlag, "build", w.st.features.Build, "flag", int(flag), "key", s.key().String())
			*s = plain
			return again, nil
		}
		if Uncertain(e) {
			return again, e
		}
	}
	return made, err
}

// remove deletes the load balancer of a key. One that HNS does not find is already deleted. After
// other errors its state is unknown, and it is deleted again later.
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

// delete deletes an object. On Windows Server 2019 deletes sometimes fail without a reason and
// succeed when repeated (kubernetes/kubernetes#113524).
func (w *writer) delete(ctx context.Context, id string, f func(context.Context, string) error) (err error) {
	for range 3 {
		w.calls++
		err = f(ctx, id)
		if !errors.Is(err, ErrFailed) || ctx.Err() != nil {
			break
		}
	}
	return err
}

// have creates missing endpoints, and returns the addresses that have one. The error names the
// others.
func (w *writer) have(ctx context.Context, key lb.Key, backends []backend) (addrs []netip.Addr, missing error) {
	var errs []error
	addrs = make([]netip.Addr, 0, len(backends))
	for _, b := range backends {
		// On Windows Server 2019 a pod may have the address of one of our endpoints
		// (kubernetes/kubernetes#138000).
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

// errNoPod: a pod of this node has no HNS endpoint.
var errNoPod = errors.New("a pod of this node has the address, but no HNS endpoint: the CNI plugin has not created " +
	"it yet, or removed it")

// endpoint finds or creates the endpoint of a backend. It uses a container's endpoint wherever the
// backend is said to be: a second one would compete with it, and hinder the CNI plugin.
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
		// A container may have the address, or an earlier run may have created the endpoint.
		if found, _ := w.find(ctx, b.addr); found {
			return nil
		}
		return err
	}
	w.learn(b.addr, made.ID, true)
	return nil
}

// reread reads the network again, once in a verb: a node may have joined since.
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

// find looks up an address in HNS. Until a filtered list has found an endpoint, this HNS may be
// unable to filter; then an empty result is checked in the whole list, once in a verb.
func (w *writer) find(ctx context.Context, a netip.Addr) (bool, error) {
	notAt := func(e Endpoint) bool { return !strings.EqualFold(e.HostComputeNetwork, w.st.id) || !e.Has(a) }
	all, err := w.hns.EndpointsAt(ctx, w.st.id, a.String())
	asked := len(all)
	all = slices.DeleteFunc(all, notAt)
	w.filters = w.filters || len(all) > 0 && len(all) == asked
	if len(all) == 0 && !w.filters {
		err = nil
		if w.listed == nil {
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

// learn records an endpoint. If load balancers use another id for the address, the audit corrects
// them.
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

// doubt marks endpoints after HNS did not find an object, perhaps one of them: they are looked up
// before further use.
func (w *writer) doubt(err error, addrs []netip.Addr) {
	if !errors.Is(err, ErrNotFound) {
		return
	}
	for _, a := range addrs {
		w.st.endpoints[a].doubt = true
	}
}

// idleAll releases endpoints that were found for a load balancer which failed.
func (w *writer) idleAll(addrs []netip.Addr) {
	for _, a := range addrs {
		w.st.idle(a, w.st.endpoints[a])
	}
}

// sweep deletes unused endpoints of ours: the CNI plugin cannot give their addresses to pods before
// (kubernetes/kubernetes#130963). Failures are left to the audit.
func (w *writer) sweep(ctx context.Context) (deleted int, err error) {
	var errs []error
	for _, a := range slices.SortedFunc(maps.Keys(w.st.unused), netip.Addr.Compare) {
		e := w.st.endpoints[a]
		err := w.delete(ctx, e.id, w.hns.DeleteEndpoint)
		delete(w.st.unused, a)
		if err == nil || errors.Is(err, ErrNotFound) {
			w.st.forget(a)
			deleted++
			continue
		}
		e.doubt = true
		errs = append(errs, fmt.Errorf("unused endpoint %s: %w", a, err))
	}
	return deleted, errors.Join(errs...)
}

// forward writes the load balancers that forward health checks of Services.
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
				continue // the Service or a program of the node has the port
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
		c.keys = want
		if len(c.rows) == 0 {
			delete(w.st.checks, name)
		}
	}
	return errors.Join(errs...)
}

// note updates the forwarded health checks with a changed frontend, and adds its Service to
// services.
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
		delete(c.rows, row.Key)
		if i == 1 {
			c.rows[row.Key] = row.Kind
		}
	}
}
