package sockets

import (
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

// Config says what a Watcher tells to whom. Collides must be set.
type Config struct {
	// Collides is called from the goroutine of Run for each socket in the way of a NodePort; once, and once
	// more if it had been away. service is the row's, "ns/name:port". It should not take long.
	Collides func(service string, port uint16, proto lb.Proto, listener netip.AddrPort)
	// Serves says whether NodePorts answer at an address of this node; nil means at all but loopback.
	Serves func(netip.Addr) bool
	// Delay is how long Run waits for more after the first change; 0 means 100 ms.
	Delay time.Duration
	// Period is the time between two looks at all NodePorts, give or take a tenth; 0 means 5 minutes, less
	// than 0 means never.
	Period time.Duration
	// Log is where failures are told; nil means slog.Default().
	Log *slog.Logger
}

// Watcher compares NodePorts with sockets. [New] makes one.
type Watcher struct {
	cfg    Config
	kernel kernel
	// confirm is how long a UDP socket must exist before it is told: a client without connect(2) looks like a
	// server, but not for long.
	confirm time.Duration
	wake    chan struct{} // has a value when there are fresh ports
	looks   atomic.Uint64 // that are over

	mu    sync.Mutex
	rows  map[lb.Family]map[port]string // the Service of each NodePort
	fresh map[port]struct{}             // to be looked at

	// The rest belongs to the goroutine of Run.

	told     map[state]struct{}
	suspects map[state]suspect
	errs     map[lb.Proto]string // told
}

// port is a NodePort of either family.
type port struct {
	number uint16
	proto  lb.Proto
}

// state is one socket in the way of one NodePort.
type state struct {
	service string
	port
	listener netip.AddrPort
}

// suspect is a socket that is not told yet.
type suspect struct {
	inode uint32
	since time.Time
}

// kernel is what a Watcher asks the kernel.
type kernel interface {
	// sockets lists what waits for traffic of a protocol, on one port if that is not 0.
	sockets(proto lb.Proto, port uint16) ([]socket, error)
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

// takes reports whether traffic of a family comes to the socket, if it comes to one of its addresses.
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
	if cfg.Delay == 0 {
		cfg.Delay = 100 * time.Millisecond
	}
	if cfg.Period == 0 {
		cfg.Period = 5 * time.Minute
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Serves == nil {
		cfg.Serves = func(a netip.Addr) bool { return !a.IsLoopback() }
	}
	return &Watcher{cfg: cfg, kernel: k, confirm: 3 * time.Second, wake: make(chan struct{}, 1),
		rows:  map[lb.Family]map[port]string{lb.IPv4: {}, lb.IPv6: {}},
		fresh: map[port]struct{}{}, told: map[state]struct{}{}, suspects: map[state]suspect{}, errs: map[lb.Proto]string{}}
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
	rows := o.w.rows[o.fam]
	for _, c := range changes {
		if !c.Key.IsNodePort() {
			continue
		}
		p := port{c.Key.Port, c.Key.Proto}
		if c.New == nil || c.New.Kind != lb.NodePort {
			delete(rows, p)
			continue
		}
		if rows[p] != c.New.Service {
			rows[p] = c.New.Service
			o.w.fresh[p] = struct{}{}
		}
	}
	if len(o.w.fresh) > 0 {
		select {
		case o.w.wake <- struct{}{}:
		default:
		}
	}
}

// Run looks until ctx ends, and then closes what New has opened. Call it once.
func (w *Watcher) Run(ctx context.Context) {
	defer w.kernel.close()
	var periodic <-chan time.Time
	if w.cfg.Period > 0 {
		periodic = time.After(w.period())
	}
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
			case <-time.After(w.cfg.Delay):
			}
		case <-confirm:
		case <-periodic:
			all, periodic = true, time.After(w.period())
		}
		start := time.Now()
		w.look(all)
		if confirm = nil; len(w.suspects) > 0 {
			confirm = time.After(w.confirm)
		}
		select { // endless changes cost a tenth of a CPU at most
		case <-ctx.Done():
		case <-time.After(9 * time.Since(start)):
		}
	}
}

// period is Config.Period, give or take a tenth, so that nodes do not look together.
func (w *Watcher) period() time.Duration {
	return time.Duration(float64(w.cfg.Period) * (0.9 + 0.2*rand.Float64()))
}

// take returns the ports to look at now, by protocol.
func (w *Watcher) take(all bool) map[lb.Proto]map[uint16]struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[lb.Proto]map[uint16]struct{}{}
	add := func(p port) {
		if out[p.proto] == nil {
			out[p.proto] = map[uint16]struct{}{}
		}
		out[p.proto][p.number] = struct{}{}
	}
	for p := range w.fresh {
		add(p)
	}
	w.fresh = map[port]struct{}{}
	for s, was := range w.suspects {
		if time.Since(was.since) >= w.confirm {
			add(s.port)
		}
	}
	if all {
		for _, rows := range w.rows {
			for p := range rows {
				add(p)
			}
		}
	}
	return out
}

// services returns whose NodePort p is, in the families whose traffic s takes.
func (w *Watcher) services(p port, s socket) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
		if service := w.rows[fam][p]; service != "" && s.takes(fam) && !slices.Contains(out, service) {
			out = append(out, service)
		}
	}
	return out
}

// look compares the ports in question, or all, with the sockets there are.
func (w *Watcher) look(all bool) {
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
		list, err := w.kernel.sockets(proto, only)
		w.failed(proto, err)
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
			if a := s.addr.Addr().Unmap(); !a.IsUnspecified() && !w.cfg.Serves(a) {
				continue
			}
			for _, service := range w.services(p, s) {
				found[state{service, p, s.addr}] = s.inode
			}
		}
	}
	w.withoutOurs(found)
	w.compare(found, looked)
	w.looks.Add(1)
}

// withoutOurs removes sockets of this process, of which the kernel is asked only if there is something to
// tell.
func (w *Watcher) withoutOurs(found map[state]uint32) {
	if len(found) == 0 {
		return
	}
	ours, err := w.kernel.ours()
	if err != nil {
		w.cfg.Log.Error("this process cannot list its own sockets; NodePorts in use are not told", "err", err)
		clear(found)
		return
	}
	for s, inode := range found {
		if _, own := ours[inode]; own {
			delete(found, s)
		}
	}
}

// compare tells what is new, and forgets what is no longer so. looked are the ports of which found tells all.
func (w *Watcher) compare(found map[state]uint32, looked map[port]struct{}) {
	for s := range w.told {
		_, asked := looked[s.port]
		if _, still := found[s]; asked && !still || !w.wanted(s) {
			delete(w.told, s)
		}
	}
	now := time.Now()
	suspects := map[state]suspect{}
	for s, was := range w.suspects {
		if _, asked := looked[s.port]; !asked && w.wanted(s) {
			suspects[s] = was
		}
	}
	for s, inode := range found {
		if _, known := w.told[s]; known {
			continue
		}
		if s.proto == lb.UDP {
			was, known := w.suspects[s]
			if !known || was.inode != inode {
				was = suspect{inode, now}
			}
			if now.Sub(was.since) < w.confirm {
				suspects[s] = was
				continue
			}
		}
		w.told[s] = struct{}{}
		w.cfg.Collides(s.service, s.number, s.proto, s.listener)
	}
	w.suspects = suspects
}

// wanted reports whether the Service still has the NodePort.
func (w *Watcher) wanted(s state) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rows[lb.IPv4][s.port] == s.service || w.rows[lb.IPv6][s.port] == s.service
}

// failed tells of an error when it is another one than the last time; nil is none.
func (w *Watcher) failed(proto lb.Proto, err error) {
	if err == nil {
		delete(w.errs, proto)
		return
	}
	if w.errs[proto] != err.Error() {
		w.errs[proto] = err.Error()
		w.cfg.Log.Warn("sockets cannot be listed; whether NodePorts are in use is not known", "proto", proto, "err", err)
	}
}
