package sockets

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"kube-proxy/lb"
)

// Config configures a Watcher. All fields must be set.
type Config struct {
	// Collides is called by the goroutine of Run: for each socket that loses traffic to a NodePort,
	// and once for all ports that one Service newly takes at the node's own addresses. It is called
	// again if a collision had ended in between. It must be fast.
	Collides func(Collision)
	// Local returns the addresses of this node.
	Local func() ([]netip.Addr, error)
	// Serves reports whether NodePorts answer at an address of this node.
	Serves func(netip.Addr) bool
	// Log reports failures.
	Log *slog.Logger
}

// Collision is a port of this node that a Service's frontend takes over.
type Collision struct {
	// Service is the frontend's, "ns/name:port".
	Service string
	// Key is the frontend's: of a NodePort, or with an address of this node.
	Key lb.Key
	// Listener is the address of the program that loses traffic; not valid for a NodePort.
	Listener netip.AddrPort
	// NodePort is the Service, "ns/name:port", whose NodePort loses traffic; "" for a program.
	NodePort string
	// More is how many more there are of the same Service.
	More int
}

// delay is how long Run waits for more after the first change.
const delay = 100 * time.Millisecond

// checkEvery is the time between two checks of all NodePorts, plus or minus 10 %, so that nodes do
// not check together.
const checkEvery = 5 * time.Minute

// confirmAfter is the age at which a UDP socket is reported: a client without connect(2) looks like
// a server, but not for long.
const confirmAfter = 3 * time.Second

// Watcher compares NodePorts and frontends at the node's own addresses with sockets and with each
// other.
type Watcher struct {
	cfg    Config
	kernel kernel
	wake   chan struct{} // has a value when there are fresh ports

	nodePortsTaken, addressesTaken atomic.Int64 // see Taken

	mu    sync.Mutex
	rows  map[lb.Family]map[port]string  // the Service of each NodePort
	addrs map[netip.Addr]map[port]string // the Service of each port of external and load-balancer addresses
	fresh map[port]struct{}              // to be looked at
	gone  map[state]struct{}             // claims that ended before they were looked at, without listeners (TN-83)

	// The rest belongs to the goroutine of Run.

	locals   []netip.Addr     // of this node, with frontends or ended claims at the last check
	ended    map[port][]state // claims that had ended at the last check, and are still to be judged
	reported map[state]struct{}
	suspects map[state]suspect
	errs     map[string]string // reported
}

// port is a port number of either family.
type port struct {
	number uint16
	proto  lb.Proto
}

// state is one socket, or another Service's NodePort, in conflict with one frontend.
type state struct {
	service string
	port
	addr     netip.Addr // the frontend's; the zero Addr for a NodePort
	listener netip.AddrPort
	nodePort string // the other Service
}

func (s state) key() lb.Key { return lb.Key{Addr: s.addr, Port: s.number, Proto: s.proto} }

// suspect is a socket that is not reported yet.
type suspect struct {
	inode uint32
	since time.Time
}

// kernel is the part of diag that a Watcher needs.
type kernel interface {
	// sockets lists the sockets of a protocol that wait for traffic, on one port if that is not 0.
	sockets(ctx context.Context, proto lb.Proto, port uint16) ([]socket, error)
	// ours returns the inodes of the sockets of this process.
	ours() (map[uint32]struct{}, error)
	close()
}

// socket is one socket that waits for traffic.
type socket struct {
	addr  netip.AddrPort // the zone is left out
	inode uint32
	// v6only: an IPv6 socket on all addresses that does not take IPv4.
	v6only bool
}

// takes reports whether the socket receives traffic of a family to its addresses.
func (s socket) takes(fam lb.Family) bool {
	a := s.addr.Addr()
	switch {
	case a.Is4(), a.Is4In6():
		return fam == lb.IPv4
	case a.IsUnspecified():
		return fam == lb.IPv6 || !s.v6only
	}
	return fam == lb.IPv6
}

func newWatcher(cfg Config, k kernel) *Watcher {
	return &Watcher{cfg: cfg, kernel: k, wake: make(chan struct{}, 1),
		rows: map[lb.Family]map[port]string{lb.IPv4: {}, lb.IPv6: {}}, addrs: map[netip.Addr]map[port]string{},
		fresh: map[port]struct{}{}, gone: map[state]struct{}{}, reported: map[state]struct{}{},
		suspects: map[state]suspect{}, errs: map[string]string{}}
}

// Observer takes the applied changes of one family's engine. It is an engine.Observer.
type Observer struct {
	w   *Watcher
	fam lb.Family
}

// Observer returns the observer for the engine of a family.
func (w *Watcher) Observer(fam lb.Family) *Observer { return &Observer{w, fam} }

// Applied takes note of changes that are in force. It does no I/O; its time follows the changes.
func (o *Observer) Applied(changes []lb.Change) {
	o.w.mu.Lock()
	defer o.w.mu.Unlock()
	for _, c := range changes {
		if c.Key.IsNodePort() {
			o.w.note(o.w.rows[o.fam], c, lb.NodePort)
			continue
		}
		rows := o.w.addrs[c.Key.Addr]
		if rows == nil {
			rows = map[port]string{}
			o.w.addrs[c.Key.Addr] = rows
		}
		o.w.note(rows, c, lb.ExternalIP, lb.LoadBalancer)
		if len(rows) == 0 {
			delete(o.w.addrs, c.Key.Addr)
		}
	}
	if len(o.w.fresh) > 0 {
		select {
		case o.w.wake <- struct{}{}:
		default:
		}
	}
}

// note applies a change to frontends of these kinds; w.mu is held. A Service that is new there is
// checked.
func (w *Watcher) note(rows map[port]string, c lb.Change, kinds ...lb.Kind) {
	p := port{c.Key.Port, c.Key.Proto}
	_, unseen := w.fresh[p]
	if was := rows[p]; unseen && was != "" && (c.New == nil || c.New.Service != was) && len(w.gone) < maxGone {
		w.gone[state{service: was, port: p, addr: c.Key.Addr}] = struct{}{}
	}
	if c.New == nil || !slices.Contains(kinds, c.New.Kind) {
		delete(rows, p)
		return
	}
	if rows[p] != c.New.Service {
		rows[p] = c.New.Service
		w.fresh[p] = struct{}{}
	}
}

// maxGone limits the ended claims that are remembered between two looks.
const maxGone = 4096

// Run looks until ctx ends, and then closes the connections. Call it once.
func (w *Watcher) Run(ctx context.Context) {
	defer w.kernel.close()
	periodic := time.After(w.period())
	var confirm <-chan time.Time
	for {
		all := false
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
			select {
			case <-ctx.Done():
				return
			case <-time.After(delay):
			}
		case <-confirm:
		case <-periodic:
			all, periodic = true, time.After(w.period())
		}
		start := time.Now()
		w.look(ctx, all)
		confirm = nil
		if len(w.suspects) > 0 {
			confirm = time.After(confirmAfter)
		}
		select { // endless changes cost a tenth of a CPU at most
		case <-ctx.Done():
		case <-time.After(9 * time.Since(start)):
		}
	}
}

// period returns the time until the next check of all NodePorts.
func (w *Watcher) period() time.Duration {
	return time.Duration(float64(checkEvery) * (0.9 + 0.2*rand.Float64()))
}

// take returns the ports to check now, by protocol: those with a NodePort, or with a frontend at an
// address of this node.
func (w *Watcher) take(all bool) map[lb.Proto]map[uint16]struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	ports := w.fresh
	w.fresh = map[port]struct{}{}
	for p := range w.ended {
		ports[p] = struct{}{}
	}
	for s, was := range w.suspects {
		if time.Since(was.since) >= confirmAfter {
			ports[s.port] = struct{}{}
		}
	}
	if all {
		for _, rows := range w.rows {
			for p := range rows {
				ports[p] = struct{}{}
			}
		}
		for _, a := range w.locals {
			for p := range w.addrs[a] {
				ports[p] = struct{}{}
			}
		}
	}
	out := map[lb.Proto]map[uint16]struct{}{}
	for p := range ports {
		if w.rows[lb.IPv4][p] == "" && w.rows[lb.IPv6][p] == "" && len(w.here(p)) == 0 && len(w.ended[p]) == 0 {
			continue
		}
		if out[p.proto] == nil {
			out[p.proto] = map[uint16]struct{}{}
		}
		out[p.proto][p.number] = struct{}{}
	}
	return out
}

// here returns the frontends of a port at addresses of this node; w.mu is held.
func (w *Watcher) here(p port) []state {
	var out []state
	for _, a := range w.locals {
		if service := w.addrs[a][p]; service != "" {
			out = append(out, state{service: service, port: p, addr: a})
		}
	}
	for _, s := range w.ended[p] {
		if slices.Contains(w.locals, s.addr) && w.addrs[s.addr][p] != s.service {
			out = append(out, s)
		}
	}
	return out
}

// against returns the Services that take traffic from s: by a NodePort, or at one of its addresses.
func (w *Watcher) against(p port, s socket) []state {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := s.addr.Addr().Unmap()
	var out []state
	if at.IsUnspecified() || w.cfg.Serves(at) {
		for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
			found := state{service: w.rows[fam][p], port: p, listener: s.addr}
			if found.service != "" && s.takes(fam) && !slices.Contains(out, found) {
				out = append(out, found)
			}
		}
	}
	for _, found := range w.ended[p] {
		found.listener = s.addr
		if !found.addr.IsValid() && (at.IsUnspecified() || w.cfg.Serves(at)) && !slices.Contains(out, found) {
			out = append(out, found)
		}
	}
	for _, found := range w.here(p) {
		if at == found.addr || at.IsUnspecified() && s.takes(lb.FamilyOf(found.addr)) {
			found.listener = s.addr
			out = append(out, found)
		}
	}
	return out
}

// nodePorts adds frontends at the node's own addresses that take the port of another Service's
// NodePort.
func (w *Watcher) nodePorts(found map[state]uint32, looked map[port]struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for p := range looked {
		for _, s := range w.here(p) {
			s.nodePort = w.rows[lb.FamilyOf(s.addr)][p]
			if s.nodePort != "" && lb.OwnerOf(s.nodePort) != lb.OwnerOf(s.service) && w.cfg.Serves(s.addr) {
				found[s] = 0
			}
		}
	}
}

// look compares the ports in question, or all, with the sockets there are.
func (w *Watcher) look(ctx context.Context, all bool) {
	w.locate()
	ports := w.take(all)
	found := map[state]uint32{} // inodes
	looked := map[port]struct{}{}
	for _, proto := range []lb.Proto{lb.TCP, lb.UDP, lb.SCTP} {
		numbers := ports[proto]
		if len(numbers) == 0 {
			continue
		}
		only := uint16(0)
		if len(numbers) == 1 {
			for only = range numbers {
			}
		}
		list, err := w.kernel.sockets(ctx, proto, only)
		if ctx.Err() != nil { // no failure, and no result
			return
		}
		w.failed(proto.String()+" sockets", err)
		if err != nil {
			continue
		}
		for n := range numbers {
			looked[port{n, proto}] = struct{}{}
		}
		for _, s := range list {
			p := port{s.addr.Port(), proto}
			if _, asked := looked[p]; !asked {
				continue
			}
			for _, state := range w.against(p, s) {
				found[state] = s.inode
			}
		}
	}
	w.withoutOurs(found)
	w.nodePorts(found, looked)
	w.compare(found, looked)
}

// locate takes the ended claims, and finds the addresses of this node with frontends or such
// claims. If that fails, the previous ones stay.
func (w *Watcher) locate() {
	w.mu.Lock()
	for s := range w.gone {
		w.keepEnded(s)
	}
	w.gone = map[state]struct{}{}
	needed := len(w.addrs) > 0 || len(w.ended) > 0
	w.mu.Unlock()
	if !needed {
		w.locals = nil
		return
	}
	locals, err := w.cfg.Local()
	w.failed("this node's addresses", err)
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	claimed := map[netip.Addr]bool{}
	for _, claims := range w.ended {
		for _, s := range claims {
			claimed[s.addr] = true
		}
	}
	w.locals = slices.DeleteFunc(locals, func(a netip.Addr) bool { return w.addrs[a] == nil && !claimed[a] })
}

// withoutOurs removes sockets of this process from NodePorts' collisions: it may serve those
// itself.
func (w *Watcher) withoutOurs(found map[state]uint32) {
	if len(found) == 0 {
		return
	}
	ours, err := w.kernel.ours()
	w.failed("this process's own sockets", err)
	for s, inode := range found {
		if _, own := ours[inode]; (own || err != nil) && !s.addr.IsValid() {
			delete(found, s)
		}
	}
}

// compare reports new collisions, and forgets ended ones. found is complete for the ports in
// looked.
func (w *Watcher) compare(found map[state]uint32, looked map[port]struct{}) {
	for s := range w.reported {
		_, asked := looked[s.port]
		if _, still := found[s]; asked && !still || !w.wanted(s) {
			delete(w.reported, s)
		}
	}
	now := time.Now()
	suspects := map[state]suspect{}
	for s, was := range w.suspects {
		if _, asked := looked[s.port]; !asked && w.wanted(s) {
			suspects[s] = was
		}
	}
	ended := w.ended
	w.ended = nil
	for p, claims := range ended {
		if _, asked := looked[p]; !asked {
			for _, s := range claims {
				w.keepEnded(s)
			}
		}
	}
	var fresh []state
	for s, inode := range found {
		if _, known := w.reported[s]; known {
			continue
		}
		if s.proto == lb.UDP && s.listener.IsValid() {
			was, known := w.suspects[s]
			if !known || was.inode != inode {
				was = suspect{inode, now}
			}
			if now.Sub(was.since) < confirmAfter {
				suspects[s] = was
				if claim := (state{service: s.service, port: s.port, addr: s.addr}); slices.Contains(ended[s.port],
					claim) {
					w.keepEnded(claim)
				}
				continue
			}
		}
		w.reported[s] = struct{}{}
		fresh = append(fresh, s)
	}
	w.suspects = suspects
	nodePorts := 0
	for s := range w.reported {
		if !s.addr.IsValid() {
			nodePorts++
		}
	}
	w.nodePortsTaken.Store(int64(nodePorts))
	w.addressesTaken.Store(int64(len(w.reported) - nodePorts))
	w.report(fresh)
}

// Taken returns how many collisions the last check found: sockets that lose traffic to NodePorts,
// and sockets and NodePorts that lose traffic to frontends at the node's own addresses.
func (w *Watcher) Taken() (nodePorts, addresses int) {
	return int(w.nodePortsTaken.Load()), int(w.addressesTaken.Load())
}

// keepEnded keeps an ended claim for the next look: its UDP socket is too young, or the sockets
// could not be listed.
func (w *Watcher) keepEnded(s state) {
	if w.ended == nil {
		w.ended = map[port][]state{}
	}
	if !slices.Contains(w.ended[s.port], s) {
		w.ended[s.port] = append(w.ended[s.port], s)
	}
}

// report reports new collisions in the order of Services and keys. Those of one Service at the
// node's own addresses are one report, since its author decides their number.
func (w *Watcher) report(fresh []state) {
	slices.SortFunc(fresh, func(a, b state) int {
		return cmp.Or(cmp.Compare(lb.OwnerOf(a.service), lb.OwnerOf(b.service)), a.key().Compare(b.key()),
			a.listener.Compare(b.listener))
	})
	for len(fresh) > 0 {
		s, n := fresh[0], 1
		for n < len(fresh) && s.addr.IsValid() && lb.OwnerOf(fresh[n].service) == lb.OwnerOf(s.service) &&
			fresh[n].addr.IsValid() {
			n++
		}
		w.cfg.Collides(Collision{s.service, s.key(), s.listener, s.nodePort, n - 1})
		fresh = fresh[n:]
	}
}

// wanted reports whether the Service still has the frontend, and the other one its NodePort.
func (w *Watcher) wanted(s state) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.addr.IsValid() {
		return w.addrs[s.addr][s.port] == s.service &&
			(s.nodePort == "" || w.rows[lb.FamilyOf(s.addr)][s.port] == s.nodePort)
	}
	return w.rows[lb.IPv4][s.port] == s.service || w.rows[lb.IPv6][s.port] == s.service
}

// failed reports an error that differs from the last one; nil is none.
func (w *Watcher) failed(what string, err error) {
	if err == nil {
		delete(w.errs, what)
		return
	}
	if w.errs[what] != err.Error() {
		w.errs[what] = err.Error()
		w.cfg.Log.Warn("Cannot detect whether programs use ports of Services", "unlisted", what, "err", err)
	}
}
