//go:build linux

package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/lb"
	"kube-proxy/plane"
)

// writer writes the objects that a verb touched.
//
// The kernel has no transactions here, so the order keeps clients served (ADR 0046). It writes
// first the objects that serve, then those that refer to them; it removes the latter first. Each
// step is planned from the ledger when its turn comes.
type writer struct {
	*Plane
	wrote    int // operations sent to the kernel
	repaired int // operations that the kernel accepted
	// failed are the ledger's objects for which the kernel refused an operation. The writer leaves
	// them alone.
	failed map[any]bool
	// cut are virtual servers that the next call continues, cutFor the frontends for which they
	// were touched (TN-69).
	cut    map[*virtual]bool
	cutFor map[lb.Key]bool
	errs   map[lb.Key][]error
	// collided: in this round the state of virtual servers was not as the ledger has it.
	collided bool
	// before and after are steps of a Reset: before clients can reach the virtual servers, and when
	// they can.
	before, after func(context.Context) error
}

func (p *Plane) writer() *writer {
	return &writer{Plane: p, failed: map[any]bool{}, cut: map[*virtual]bool{}, cutFor: map[lb.Key]bool{},
		errs: map[lb.Key][]error{}}
}

// set writes a frontend. If the ledger refuses it, set writes the ledger's replacement.
func (w *writer) set(key lb.Key, row *lb.Frontend) {
	if err := w.l.set(key, row); err != nil {
		w.errs[key] = append(w.errs[key], err)
	}
}

// rounds limits the repetitions after the kernel's state differed from the ledger.
const rounds = 4

// write writes all touched objects. Errors of objects are in w.errs, by the key that touched them.
// write returns an error after which the state of all is unknown.
func (w *writer) write(ctx context.Context) error {
	defer w.forget()
	for range rounds {
		before := w.wrote
		w.collided = false
		for _, step := range []func(context.Context) error{
			w.addMembers(w.guards),
			w.raise(func(s *virtual) bool { return s.has || s.id.Mark != 0 }),
			w.addMembers(anyMember),
			first(&w.before),
			w.raise(func(s *virtual) bool { return true }),
			w.addAddresses,
			first(&w.after),
			w.lower(func(s *virtual) bool { return s.id.Mark == 0 || s.refs > 0 }),
			w.removeAddresses,
			w.addMembers(anyMember), // of servers that now start to drain
			w.removeMembers,
			w.lower(func(s *virtual) bool { return true }),
		} {
			if err := step(ctx); err != nil {
				return err
			}
		}
		if w.wrote == before {
			break
		}
	}
	return nil
}

// first calls a function the first time, if it is set.
func first(f *func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		do := *f
		*f = nil
		if do == nil {
			return nil
		}
		return do(ctx)
	}
}

// forget clears the touched objects, and remembers those that failed or are partly written. If
// another program's writes collided with the last round, the next audit goes on with all: it
// compares kernel and ledger, and would not find what both lack.
func (w *writer) forget() {
	t := w.l.touched
	w.l.touched = newTouched()
	for s, key := range t.servers {
		switch {
		case w.failed[s] || w.cut[s]:
			w.remember(key, s)
		case w.collided:
			w.remember(lb.Key{}, s)
		}
		if w.cut[s] {
			w.cutFor[key] = true
			if key == (lb.Key{}) {
				w.signal() // an audit writes the rest
			}
		}
		w.done(key, s)
	}
	for m, key := range t.members {
		if w.failed[m] {
			w.remember(key, m)
		}
	}
	for a, key := range t.addrs {
		if w.failed[a] {
			w.remember(key, a)
		}
	}
}

// remember schedules another write of an object, with the next write of its frontend, or with the
// next audit for the zero key.
func (p *Plane) remember(key lb.Key, object any) {
	p.undone[key] = append(p.undone[key], object)
}

// again touches the objects of a frontend that failed or are partly written.
func (p *Plane) again(key lb.Key) {
	for _, object := range p.undone[key] {
		switch o := object.(type) {
		case *virtual:
			if p.l.servers[o.id] == o {
				p.l.touched.servers[o] = key
			}
		case member:
			p.l.touched.members[o] = key
		case netip.Addr:
			p.l.touched.addrs[o] = key
		}
	}
	delete(p.undone, key)
}

// refusedIn records an error of a member of a set, or of an address of the device. gone is the
// error for a set or device that does not exist. After the context has ended, it records nothing.
func (w *writer) refusedIn(ctx context.Context, object any, key lb.Key, err, gone error) error {
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.Is(err, gone):
		return fmt.Errorf("%w: %w", err, plane.ErrStateLost)
	}
	return w.fail(object, key, err)
}

// fail records that an object could not be written. It returns an error if that applies to all
// objects.
func (w *writer) fail(object any, key lb.Key, err error) error {
	if errors.Is(err, netlink.ErrNoAnswer) {
		return fmt.Errorf("%w: %w", err, plane.ErrStateLost)
	}
	w.failed[object] = true
	if s, ok := object.(*virtual); ok && s.has && s.refs == 0 {
		w.l.leave(key, s, true)
	}
	w.errs[key] = append(w.errs[key], err)
	return nil
}

// sortedServers returns the touched virtual servers without a failure, in a fixed order.
func (w *writer) sortedServers() []*virtual {
	all := slices.SortedFunc(maps.Keys(w.l.touched.servers), compareServers)
	return slices.DeleteFunc(all, func(s *virtual) bool { return w.failed[s] })
}

// sortedServers returns all virtual servers in a fixed order.
func (l *ledger) sortedServers() []*virtual {
	return slices.SortedFunc(maps.Values(l.servers), compareServers)
}

func compareServers(a, b *virtual) int { return compareIDs(a.id, b.id) }

func compareIDs(a, b ipvs.ServiceID) int {
	return cmp.Or(cmp.Compare(a.Mark, b.Mark), a.Addr.Compare(b.Addr), cmp.Compare(a.Proto, b.Proto))
}

// serverOp is an operation on a virtual server.
type serverOp struct {
	of *virtual
	ipvs.Op
}

// raise creates those virtual servers, and adds real servers to them.
func (w *writer) raise(which func(*virtual) bool) func(context.Context) error {
	return func(ctx context.Context) error {
		var ops []serverOp
		for _, s := range w.sortedServers() {
			if s.refs == 0 || w.cut[s] || !which(s) {
				continue
			}
			first := len(ops)
			// A foreign one would get the real servers.
			ops = w.l.raise(ops, s)
			if !s.has && w.excluded(s.id) {
				ops = ops[:first+1]
			}
			if len(ops)-first > stage {
				ops, w.cut[s] = ops[:first+stage], true
			}
		}
		return w.serverOps(ctx, ops)
	}
}

// excluded reports whether a virtual server that has the name may be another's.
func (p *Plane) excluded(id ipvs.ServiceID) bool {
	return id.Mark == 0 && lb.Within(p.cfg.ExcludeCIDRs, id.Addr.Addr())
}

// withheld reports whether a member must wait for its virtual server, which may be another
// program's: the member would claim it as ours, or drop packets to it.
func (w *writer) withheld(m member) bool {
	if len(w.cfg.ExcludeCIDRs) == 0 || !m.set.names() && !m.set.marks() && m.set != setFirewall ||
		m.set == setHealthCheck {
		return false
	}
	for k := range lb.Expand(m.key(), w.l.nodePorts) {
		if s := w.l.servers[serviceOf(k)]; w.excluded(serviceOf(k)) && s != nil && !s.has {
			return true
		}
	}
	return false
}

func (s *virtual) op(verb ipvs.Verb, a netip.AddrPort, weight int32) serverOp {
	service := s.want
	service.ServiceID = s.id // one that was found and that no frontend needs has only its name
	return serverOp{s, ipvs.Op{Verb: verb, Service: service, Destination: ipvs.Destination{Addr: a,
		Forwarding: ipvs.Masq, Weight: weight}}}
}

func (l *ledger) raise(ops []serverOp, s *virtual) []serverOp {
	switch {
	case !s.has:
		ops = append(ops, s.op(ipvs.NewService, netip.AddrPort{}, 0))
	case s.is != s.want:
		ops = append(ops, s.op(ipvs.SetService, netip.AddrPort{}, 0))
	}
	if s.set == nil {
		l.withhold(s, nil)
		return ops
	}
	var withheld []netip.Addr
	for b := range s.set.Backends.All() {
		switch is, has := s.dests[b.Addr]; {
		case l.withholds(b.Addr.Addr()):
			withheld = append(withheld, b.Addr.Addr())
		case !has:
			ops = append(ops, s.op(ipvs.NewDestination, b.Addr, 1))
		case is != dest{1, int32(ipvs.Masq)}:
			ops = append(ops, s.op(ipvs.SetDestination, b.Addr, 1))
		}
	}
	l.withhold(s, withheld)
	return ops
}

// lower removes real servers of the selected virtual servers, and virtual servers without
// frontends.
func (w *writer) lower(which func(*virtual) bool) func(context.Context) error {
	return func(ctx context.Context) error {
		var ops []serverOp
		for _, s := range w.sortedServers() {
			if !s.has || w.cut[s] || !which(s) { // leaving ones serve until all new ones exist
				continue
			}
			var err error
			ops, err = w.lowerOne(ctx, ops, s)
			if err != nil {
				return err
			}
		}
		return w.serverOps(ctx, ops)
	}
}

func (w *writer) lowerOne(ctx context.Context, ops []serverOp, s *virtual) ([]serverOp, error) {
	if s.refs == 0 {
		return w.leave(ctx, ops, s)
	}
	return w.removeServers(ops, s, func(a netip.AddrPort) fate {
		switch {
		case w.l.wants(s, a):
			return stays
		case s.drains():
			return drains
		case w.l.keeps(s, a):
			return idles
		}
		return goes
	}), nil
}

// fate is what happens to a real server.
type fate uint8

const (
	stays  fate = iota
	idles       // without new connections
	drains      // without new connections, until the last has ended
	goes
)

// removeServers appends operations that remove real servers, at most a stage of them.
func (w *writer) removeServers(ops []serverOp, s *virtual, fateOf func(netip.AddrPort) fate) []serverOp {
	leaving := map[netip.AddrPort]fate{}
	for a := range s.dests {
		if f := fateOf(a); f != stays {
			leaving[a] = f
		}
	}
	first := len(ops)
	for _, a := range sortedAddrs(leaving) {
		if len(ops)-first >= stage {
			w.cut[s] = true
			break
		}
		if leaving[a] == goes {
			ops = append(ops, s.op(ipvs.DelDestination, a, 0))
		} else if s.dests[a].weight != 0 {
			ops = append(ops, s.op(ipvs.SetDestination, a, 0))
		}
		if leaving[a] == drains {
			w.drain(s, a)
		}
	}
	return ops
}

func sortedAddrs[V any](m map[netip.AddrPort]V) []netip.AddrPort {
	return slices.SortedFunc(maps.Keys(m), netip.AddrPort.Compare)
}

// leave removes a virtual server without frontends. Its open connections continue for a while, as
// in other modes (DP-53), and it is removed after the last of them. At an address that another
// device has it is removed at once (TN-63).
func (w *writer) leave(ctx context.Context, ops []serverOp, s *virtual) ([]serverOp, error) {
	taken := w.l.taken(s)
	if s.leaving && s.drain != nil && len(s.dests) > 0 && len(s.drain.dests) == len(s.dests) && !taken {
		return ops, nil // already draining
	}
	if !s.drains() || len(s.dests) == 0 || taken {
		return append(ops, s.op(ipvs.DelService, netip.AddrPort{}, 0)), nil
	}
	listed, err := w.cfg.IPVS.Destinations(ctx, s.id)
	w.wrote++
	if err != nil {
		return ops, w.fail(s, w.l.touched.servers[s], fmt.Errorf("look for connections of virtual server %s: %w", s.id,
			err))
	}
	busy := map[netip.AddrPort]bool{}
	for _, d := range listed {
		if d.Active > 0 { // closed and half-open connections do not keep a removed Service
			busy[d.Addr] = true
		}
	}
	if len(busy) == 0 {
		return append(ops, s.op(ipvs.DelService, netip.AddrPort{}, 0)), nil
	}
	w.l.leave(w.l.touched.servers[s], s, true)
	ops = w.removeServers(ops, s, func(a netip.AddrPort) fate {
		if busy[a] {
			return drains
		}
		return goes
	})
	if s.drain != nil {
		s.drain.left = time.Now()
	}
	return ops, nil
}

// serverOps sends operations to IPVS, and records the outcome of each.
func (w *writer) serverOps(ctx context.Context, ops []serverOp) error {
	wire := make([]ipvs.Op, len(ops))
	for i, op := range ops {
		wire[i] = op.Op
	}
	return w.carryOut(ctx, len(ops), func(failed func(int, error)) error { return w.cfg.IPVS.Do(ctx, wire, failed) },
		func(i int, err error) error {
			op := ops[i]
			switch {
			case err != nil && ctx.Err() != nil:
				return nil
			case err != nil:
				return w.refused(ctx, op, err)
			case !op.of.has && op.Verb >= ipvs.NewDestination:
				w.collides() // another program removed it, and created it again
			}
			op.of.did(op.Op)
			if op.Verb == ipvs.DelService && ctx.Err() == nil {
				w.done(w.l.touched.servers[op.of], op.of)
			}
			return nil
		})
}

// carryOut sends n operations, and calls done with the outcome of each, in order. It returns the
// first error of done; or that of the context, if operations were not sent.
func (w *writer) carryOut(ctx context.Context, n int, do func(failed func(int, error)) error,
	done func(i int, err error) error) error {
	if n == 0 {
		return nil
	}
	w.wrote += n
	errs := map[int]error{}
	all := do(func(i int, err error) { errs[i] = err })
	for i := range n {
		if errs[i] == nil {
			w.repaired++
		}
		if err := done(i, errs[i]); err != nil {
			return err
		}
	}
	// The operations sent were carried out all the same.
	if err := ctx.Err(); err != nil && all != nil {
		return err
	}
	return nil
}

// did records that the kernel carried out an operation.
func (s *virtual) did(op ipvs.Op) {
	switch a := op.Destination.Addr; op.Verb {
	case ipvs.NewService:
		s.has, s.is, s.dests, s.drain, s.made = true, op.Service, map[netip.AddrPort]dest{}, nil, true
	case ipvs.SetService:
		s.is = op.Service
	case ipvs.DelService:
		s.gone()
	case ipvs.NewDestination, ipvs.SetDestination:
		if !s.has { // another program created it: its count is unknown
			s.has, s.dests, s.found = true, map[netip.AddrPort]dest{}, unknownCount
		}
		s.dests[a] = dest{op.Destination.Weight, int32(op.Destination.Forwarding)}
		if op.Destination.Weight > 0 {
			s.stays(a)
		}
	case ipvs.DelDestination:
		delete(s.dests, a)
		s.stays(a)
	}
}

// gone records that the virtual server does not exist.
func (s *virtual) gone() {
	s.has, s.is, s.dests, s.drain, s.made = false, ipvs.Service{}, nil, nil, false
}

// done records the state of a virtual server after an operation.
func (p *Plane) done(key lb.Key, s *virtual) {
	p.counters.follow(s)
	p.l.done(key, s)
}

// stays records that a real server no longer drains.
func (s *virtual) stays(a netip.AddrPort) {
	if s.drain != nil {
		delete(s.drain.dests, a)
	}
}

// refused records a refused operation. If the kernel's state differed from the ledger, because
// another program wrote, it corrects the ledger, and the rest is planned again.
func (w *writer) refused(ctx context.Context, op serverOp, err error) error {
	s, a, key := op.of, op.Destination.Addr, w.l.touched.servers[op.of]
	is := func(errno unix.Errno) bool { return errors.Is(err, errno) }
	onDest := op.Verb >= ipvs.NewDestination
	if !s.has && onDest { // it could not be created, which is already reported
		return nil
	}
	switch {
	case op.Verb == ipvs.NewService && is(unix.EEXIST):
		if w.excluded(s.id) {
			return w.fail(s, key, fmt.Errorf("virtual server %s is another program's, and its address is in "+
				"--ipvs-exclude-cidrs (ipvs.excludeCIDRs): "+"remove it, or take the address out of there", s.id))
		}
		if err := w.read(ctx, s); err != nil {
			return w.fail(s, key, err)
		}
	case is(unix.ESRCH): // also for a real server's operation
		s.gone()
		w.done(key, s)
	case op.Verb == ipvs.NewDestination && is(unix.EEXIST):
		s.dests[a] = dest{unknown, unknown}
	case onDest && is(unix.ENOENT):
		delete(s.dests, a)
		s.stays(a)
	default:
		return w.fail(s, key, err)
	}
	w.collides()
	return nil
}

// collides records that another program wrote: this round is repeated, and an audit compares all.
func (w *writer) collides() {
	w.collided = true
	w.suspect()
}

// read records an existing virtual server.
func (p *Plane) read(ctx context.Context, s *virtual) error {
	dests, err := p.destsOf(ctx, s.id)
	if err == nil {
		s.has, s.is, s.dests, s.found = true, ipvs.Service{}, dests, unknownCount
	}
	return err
}

// destsOf lists the real servers of a virtual server.
func (p *Plane) destsOf(ctx context.Context, id ipvs.ServiceID) (map[netip.AddrPort]dest, error) {
	listed, err := p.cfg.IPVS.Destinations(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("list the real servers of virtual server %s: %w", id, err)
	}
	dests := make(map[netip.AddrPort]dest, len(listed))
	for _, d := range listed {
		dests[d.Addr] = destOf(d.Destination)
	}
	return dests, nil
}

// destOf returns a real server as the ledger has it: unknown, if its settings differ from ours.
func destOf(d ipvs.Destination) dest {
	if d != (ipvs.Destination{Addr: d.Addr, Forwarding: d.Forwarding, Weight: d.Weight}) {
		return dest{unknown, unknown}
	}
	return dest{d.Weight, int32(d.Forwarding)}
}

// memberOp adds or removes a member.
type memberOp struct {
	member
	mark   mark
	remove bool
}

// guards reports whether a member blocks clients: by source ranges, or by the mark of packets to
// drop.
func (w *writer) guards(m member, as mark) bool {
	return m.set <= setFirewall || m.set == setMarksAnywhere && as == mark{w.l.mark.drop(), wholeMark}
}

func anyMember(member, mark) bool { return true }

// addMembers adds those members.
func (w *writer) addMembers(which func(member, mark) bool) func(context.Context) error {
	return func(ctx context.Context) error {
		var ops []memberOp
		for m := range w.l.touched.members {
			if c := w.l.members[m]; c.refs > 0 && !c.right() && which(m, c.want) && !w.failed[m] && !w.withheld(m) {
				ops = append(ops, memberOp{m, c.want, false})
			}
		}
		slices.SortFunc(ops, func(a, b memberOp) int { return compareMembers(a.member, b.member) })
		return w.memberOps(ctx, ops)
	}
}

func (w *writer) removeMembers(ctx context.Context) error {
	var ops []memberOp
	for m := range w.l.touched.members {
		switch c := w.l.members[m]; {
		case c.refs > 0 || !c.has || w.failed[m]:
		case w.proves(m):
			w.failed[m] = true
		default:
			ops = append(ops, memberOp{m, mark{}, true})
		}
	}
	slices.SortFunc(ops, func(a, b memberOp) int { return compareMembers(b.member, a.member) })
	return w.memberOps(ctx, ops)
}

// proves reports whether a member must stay, because the kernel refused the member that shows later
// that a leaving virtual server is ours.
func (w *writer) proves(m member) bool {
	if len(w.failed) > 0 && (m.set.names() || m.set.marks()) {
		for k := range lb.Expand(m.key(), w.l.own) {
			if s := w.l.servers[serviceOf(k)]; s != nil && s.leaving && w.failed[leavingMember(k)] {
				return true
			}
		}
	}
	return false
}

func compareMembers(a, b member) int {
	return cmp.Or(cmp.Compare(a.set, b.set), a.addr.Compare(b.addr), cmp.Compare(a.port, b.port),
		cmp.Compare(a.proto, b.proto), a.from.Compare(b.from))
}

func (w *writer) memberOps(ctx context.Context, ops []memberOp) error {
	wire := make([]ipset.Op, len(ops))
	for i, op := range ops {
		wire[i] = ipset.Op{Set: &w.sets[op.set], Delete: op.remove, Member: op.wire(op.mark)}
	}
	return w.carryOut(ctx, len(ops), func(failed func(int, error)) error { return w.cfg.Sets.Do(ctx, wire, failed) },
		func(i int, err error) error {
			m := ops[i].member
			if err != nil {
				return w.refusedIn(ctx, m, w.l.touched.members[m], err, ipset.ErrNoSet)
			}
			c := w.l.members[m]
			c.has, c.is = !ops[i].remove, ops[i].mark
			w.l.put(m, c)
			return nil
		})
}

func (w *writer) addAddresses(ctx context.Context) error {
	return w.addressOps(ctx, true, func(a netip.Addr, is address) bool { return w.l.binds(a, is) && !is.has })
}

func (w *writer) removeAddresses(ctx context.Context) error {
	return w.addressOps(ctx, false, func(a netip.Addr, is address) bool { return !w.l.binds(a, is) && is.has })
}

func (w *writer) addressOps(ctx context.Context, add bool, which func(netip.Addr, address) bool) error {
	var addrs []netip.Addr
	for a := range w.l.touched.addrs {
		if !w.failed[a] && which(a, w.l.addrs[a]) {
			addrs = append(addrs, a)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	change := w.cfg.Device.Remove
	if add {
		change = w.cfg.Device.Add
	}
	return w.carryOut(ctx, len(addrs), func(failed func(int, error)) error { return change(ctx, addrs, failed) },
		func(i int, err error) error {
			a := addrs[i]
			if err != nil {
				return w.refusedIn(ctx, a, w.l.touched.addrs[a], err, ErrNoDevice)
			}
			is := w.l.addrs[a]
			is.has = add
			setOrDelete(w.l.addrs, a, is)
			return nil
		})
}
