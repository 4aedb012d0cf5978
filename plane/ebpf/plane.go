//go:build linux

package ebpf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"kube-proxy/config/option"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane"
	"kube-proxy/plane/ebpf/bpf"
)

// Config says what a plane does.
type Config struct {
	// Family is the IP family; required.
	Family lb.Family
	// Cgroup is the cgroup whose sockets are balanced, with those below it.
	Cgroup string
	// Pins is the folder of pinned objects in a BPF file system. Each network namespace has one
	// below it, and in that each family.
	Pins string
	// Sockets says whose sockets are balanced: "all", "host" or "off".
	Sockets string
	// Guard refuses bind() to a NodePort in the node's network namespace.
	Guard bool
	// Exempt are patterns of files: network namespaces and cgroups that take the packet path.
	Exempt []string
	// Stale says which sockets end with their endpoint: "udp", "all" or "none".
	Stale string
	// Count has connections counted.
	Count bool
	// Wait is whether programs connect the first sockets of pods only after [Plane.OthersGone].
	Wait bool
	// Heartbeat is the time without a sign of life of the plane after which the programs connect no
	// new sockets; 0 for never.
	Heartbeat time.Duration
	// Log takes failures outside the calls of a plane; nil discards them.
	Log *slog.Logger
}

// PacketPath is the plane that serves what the programs pass.
type PacketPath interface {
	mode.Plane
	mode.Tracer
	mode.TrafficCounter
	Unanswered
	// Remember has clients with affinity stay with backends.
	Remember(context.Context, []plane.Choice) error
}

// Plane is the packet path with the programs in front. Its methods are called as those of the
// packet path.
//
// The packet path alone would serve every row. So a failure of the programs is no failure of a
// call: the programs are switched off, and the next audit tries to repair them.
type Plane struct {
	PacketPath
	cfg       Config
	cookie    uint64 // of this network namespace
	switches  switches
	addresses *addresses
	exempt    *exemptions
	counted   *counted // nil where connections are not counted

	stop context.CancelFunc // of the heartbeats
	done sync.WaitGroup

	// calls is held during a call of a plane, and during other uses of the packet path.
	calls sync.Mutex
	// mu is held to change what follows, by the goroutine that makes the calls of a plane; others
	// read it.
	mu     sync.RWMutex
	st     *state  // nil before the first Reset
	kernel *kernel // nil before the first Reset, and after a failure
	node   lb.Node
	remade chan struct{} // has a value when kernel is another

	failed   error         // why the programs are off
	ended    atomic.Uint64 // sockets, with their endpoint
	unreaped error         // why sockets do not end with their endpoint
	notices  []mode.Notice
	said     map[string]bool // what is off on this kernel
	others   string          // that were noticed
	held     []lb.Key        // frontends with an address of the node, as noticed
}

// New returns a plane in the network namespace of the calling thread, over the packet path, which
// it closes. It changes nothing.
func New(cfg Config, packets PacketPath) (*Plane, error) {
	node, err := netnsCookie()
	if err != nil {
		return nil, fmt.Errorf("ebpf: %w", err)
	}
	inode, ok := namespaceOf("/proc/thread-self/ns/net")
	if !ok {
		return nil, errors.New("ebpf: cannot read the number of the network namespace")
	}
	p := &Plane{PacketPath: packets, cfg: cfg, cookie: node, said: map[string]bool{},
		remade: make(chan struct{}, 1)}
	p.cfg.Pins, p.cfg.Log = pinsOf(cfg.Pins, node), cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	limit, _, _ := cgroupMemory(ownCgroups, cgroupMounts)
	p.switches.want = bpf.LBSettings{Node: node, Inode: inode, Counts: flag(cfg.Count), Most: most(limit),
		Timeout: uint64(cfg.Heartbeat)}
	follow(&p.switches.want, cfg.Sockets, cfg.Guard)
	p.switches.waits = cfg.Wait
	if cfg.Count {
		p.counted = &counted{ports: map[uint32]string{}}
	}
	if p.addresses, err = openAddresses(cfg.Family, p.cfg.Log); err != nil {
		return nil, fmt.Errorf("ebpf: %w", err)
	}
	p.exempt = newExemptions(&p.switches, p.cfg.Log)
	p.exempt.patterns = cfg.Exempt
	ctx, stop := context.WithCancel(context.Background())
	if p.stop = stop; cfg.Heartbeat > 0 {
		p.done.Go(func() { p.beat(ctx) })
	}
	return p, nil
}

// Close closes what the process has open. The programs keep serving.
func (p *Plane) Close() error {
	p.stop()
	p.done.Wait()
	return errors.Join(p.exempt.close(), p.addresses.close(), p.forget(), p.PacketPath.Close())
}

// forget closes what this process has of the programs, which stay as they are.
func (p *Plane) forget() error {
	if p.kernel == nil {
		return nil
	}
	p.switches.forget()
	err := errors.Join(p.exempt.use(nil), p.addresses.use(nil, nil))
	k := p.kernel
	p.setKernel(nil)
	return errors.Join(err, k.close())
}

func (p *Plane) setKernel(k *kernel) {
	p.mu.Lock()
	p.kernel = k
	p.mu.Unlock()
	select {
	case p.remade <- struct{}{}:
	default:
	}
}

// Configure is part of mode.Configurable.
func (p *Plane) Configure(blocks option.Blocks) error {
	o := optionsOf(blocks).EBPF
	p.calls.Lock()
	defer p.calls.Unlock()
	next := func(s *bpf.LBSettings) { follow(s, o.SocketLB, o.ProtectNodePorts) }
	will := p.switches.wanted()
	next(&will)
	isNew := func(pattern string) bool { return !slices.Contains(p.exempt.patterns, pattern) }
	p.handOver(will, slices.ContainsFunc(o.Exempt, isNew))
	return errors.Join(p.exempt.want(o.Exempt), p.switches.change(next))
}

// OthersGone is part of mode.Successor. While IPVS remembers a connection, even an ended one, it
// takes replies to a direct connection of the same port to the same endpoint for its own. The
// node's sockets do not wait: while service addresses are the node's, they would have one as
// source, and would lose it.
func (p *Plane) OthersGone() error { return p.switches.endWait() }

// Reset is part of plane.Plane. The programs are attached after the first one.
func (p *Plane) Reset(ctx context.Context, want *lb.Table) (plane.ResetResult, error) {
	p.calls.Lock()
	defer p.calls.Unlock()
	res, err := p.PacketPath.Reset(ctx, want)
	if err != nil {
		return res, err
	}
	p.setNode(want.Node)
	p.settle(p.reset(want))
	return res, nil
}

func (p *Plane) setNode(n lb.Node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.node = n
}

func (p *Plane) setState(st *state) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.st = st
}

// serviceOf returns the service port of a destination; "" if it is gone.
func (p *Plane) serviceOf(f bpf.LBFront) string {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if is := p.st.front(f); is != nil {
		return is.Service
	}
	return ""
}

// stays reports whether a flow to a destination may stay at an endpoint (DP-50).
func (p *Plane) stays(f bpf.LBFront, at netip.AddrPort) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	is := p.st.front(f)
	return is != nil && is.Serves(at)
}

// reset makes the tables hold want, whatever is there.
func (p *Plane) reset(want *lb.Table) error {
	st := newState(want.Node)
	defer func() {
		if p.counted != nil {
			p.counted.retain(p.st)
			p.st.counted = p.counted
		}
	}()
	have, err := p.read()
	if err != nil {
		st.add(want)
		p.setState(st)
		return err
	}
	if st.adopt(have, want); !st.left() {
		st = newState(want.Node)
		st.add(want)
		have = &snapshot{}
		err = p.kernel.clear()
	}
	p.setState(st)
	if err == nil {
		err = p.hold(have)
	}
	if err == nil {
		_, err = p.repair(have)
	}
	return err
}

// read opens maps and programs, and returns what the tables have.
func (p *Plane) read() (*snapshot, error) {
	if err := p.open(); err != nil {
		return nil, err
	}
	return p.kernel.read()
}

// open opens maps and programs, unless another program connects sockets to endpoints too.
func (p *Plane) open() error {
	if err := p.look(); err != nil {
		return err
	}
	if p.kernel == nil {
		pins := filepath.Join(p.cfg.Pins, strings.ToLower(p.cfg.Family.String()))
		k, err := open(p.cfg.Family, p.cfg.Cgroup, pins, p.cfg.Count)
		if err != nil {
			return err
		}
		if err = p.switches.goOn(k.obj.Config); err == nil {
			k.witness, err = newWitness(k.obj.Refusals, p.serviceOf, p.cfg.Log)
		}
		if err == nil {
			k.census, err = newCensus(&k.obj.LBMaps, p.cfg.Log)
		}
		if err != nil {
			return errors.Join(err, k.close())
		}
		p.setKernel(k)
		p.off(setsErrors())
		p.off(readsKernel())
	}
	p.reap()
	return nil
}

// reap has sockets end with their endpoint, as far as the kernel can.
func (p *Plane) reap() {
	if p.kernel.reaper != nil || p.cfg.Stale == "none" {
		return
	}
	p.kernel.reaper, p.unreaped = newReaper(&p.kernel.obj.LBMaps, p.stays, p.cfg.Stale == "all", &p.ended, p.cfg.Log)
	p.off(p.unreaped)
}

// off notes once that a part of the mode is off for what the kernel lacks, if it is.
func (p *Plane) off(err error) {
	if err != nil && !p.said[err.Error()] {
		p.said[err.Error()] = true
		p.notice("A part of mode ebpf is off", "err", err)
	}
}

// look looks for programs of others at the hooks, and reports those that it has not seen before.
func (p *Plane) look() error {
	all, err := neighbours(p.cfg.Family, p.cfg.Cgroup, p.cookie)
	if errors.Is(err, unix.EPERM) {
		p.off(fmt.Errorf("programs that connect sockets too are not recognized: %w", err))
		return nil
	}
	if err != nil {
		return err
	}
	if names := words(all); names != p.others {
		p.others = names
		if names != "" {
			p.notice("Other programs see the same calls of sockets, and may change their addresses", "programs", names)
		}
	}
	return alone(all)
}

// noteHeld reports the frontends whose address the node has, if they are others than before.
func (p *Plane) noteHeld(all []lb.Key) {
	const most = 5 // frontends in a line of the log
	if slices.Equal(all, p.held) {
		return
	}
	if p.held = all; len(all) > 0 {
		p.notice("This node has the addresses of frontends; the nftables rules serve their clients, and packets may "+
			"go to the holder of the address, as NodeLocal DNSCache", "frontends", all[:min(len(all), most)],
			"count", len(all))
	}
}

func (p *Plane) notice(text string, args ...any) {
	p.notices = append(p.notices, mode.Notice{Text: text, Args: args})
}

// hold sends the clients of rows that have other sets than before to the packet path: while the
// tables change, the number of a set may be that of another one.
func (p *Plane) hold(have *snapshot) error {
	b := &batch{}
	want := map[bpf.LBFront][len(classes)]uint32{}
	for k, f := range p.st.fronts() {
		want[k] = f.Set
	}
	for k, f := range have.fronts {
		if want[k] != f.Set {
			f.Set = [len(classes)]uint32{}
			b.fronts.set(k, f)
			have.fronts[k] = f
		}
	}
	return p.kernel.write(b)
}

// repair writes what differs from what was read, attaches programs that are not attached, and
// switches them on. It returns how much that was.
func (p *Plane) repair(have *snapshot) (repaired int, err error) {
	b := p.st.differ(have)
	if err := p.kernel.write(b); err != nil {
		return 0, err
	}
	if err := p.addresses.use(p.kernel.obj.Addresses, p.node.NodePorts); err != nil {
		return 0, err
	}
	p.noteHeld(p.addresses.are(p.st.rows))
	p.handOver(p.switches.wanted(), false)
	if err := errors.Join(p.switches.use(p.kernel.obj.Config), p.exempt.use(&p.kernel.obj.LBMaps)); err != nil {
		return 0, err
	}
	attached, err := p.kernel.repin()
	p.kernel.census.ask()
	p.kernel.reaper.ask()
	if err != nil {
		return attached + b.len(), err
	}
	strays, err := p.kernel.detachStrays()
	if strays > 0 {
		p.notice("Detached eBPF programs of an earlier process, which had pinned them in another BPF file system; "+
			"mount the host's, so that programs serve while no proxy runs", "programs", strays)
	}
	return attached + b.len() + strays, err
}

// Apply is part of plane.Plane.
func (p *Plane) Apply(ctx context.Context, changes []lb.Change) (plane.ApplyResult, error) {
	p.calls.Lock()
	defer p.calls.Unlock()
	res, err := p.PacketPath.Apply(ctx, changes)
	if err != nil || p.st == nil {
		return res, err
	}
	b := &batch{}
	for _, c := range changes {
		p.st.change(b, c.Key, c.New)
	}
	p.write(b)
	return res, nil
}

// write writes a batch, if the programs are on.
func (p *Plane) write(b *batch) {
	if p.failed != nil {
		return
	}
	p.settle(p.kernel.write(b))
	if p.failed == nil && len(b.backends.gone) > 0 {
		p.kernel.reaper.ask()
	}
}

// settle notes how a write of the tables ended. After a failure the programs are switched off or,
// if that fails too, detached. What the process has of them is closed, for a failure may be of
// that.
func (p *Plane) settle(err error) {
	if err == nil {
		p.failed = nil
		return
	}
	if p.failed == nil || p.failed.Error() != err.Error() {
		p.notice("The eBPF programs are off, and the nftables rules serve all connections, "+
			"until a comparison repairs the programs", "err", err)
	}
	p.failed = err
	if p.kernel == nil { // those of an earlier process may serve
		if e := disconnect(p.cfg.Family); e != nil {
			p.failed = errors.Join(err, e)
		}
		return
	}
	p.handOver(bpf.LBSettings{}, false)
	if e := p.switches.off(p.kernel.obj.Config); e != nil {
		p.failed = errors.Join(err, e, disconnect(p.cfg.Family))
	}
	if e := p.forget(); e != nil {
		p.cfg.Log.Debug("Failed to close what belongs to the eBPF programs", "err", e)
	}
}

// SetNode is part of plane.Plane.
func (p *Plane) SetNode(ctx context.Context, n lb.Node) error {
	p.calls.Lock()
	defer p.calls.Unlock()
	if err := p.PacketPath.SetNode(ctx, n); err != nil {
		return err
	}
	p.setNode(n)
	if p.st == nil {
		return nil
	}
	b := &batch{}
	p.st.setNode(b, n)
	p.write(b)
	if p.failed == nil {
		p.settle(p.addresses.use(p.kernel.obj.Addresses, n.NodePorts))
	}
	return nil
}

// Audit is part of plane.Plane. It reads all tables, for nothing reports changes of them.
func (p *Plane) Audit(ctx context.Context, full bool) (repaired int, err error) {
	p.calls.Lock()
	defer p.calls.Unlock()
	repaired, err = p.PacketPath.Audit(ctx, full)
	if err != nil || p.st == nil || !full && p.failed == nil {
		return repaired, err
	}
	n, err := p.audit()
	p.settle(err)
	return repaired + n, nil
}

func (p *Plane) audit() (repaired int, err error) {
	have, err := p.read()
	if err != nil {
		return 0, err
	}
	repaired, err = p.repair(have)
	return repaired, errors.Join(err, p.kernel.expire(), p.counted.expire(p.kernel.obj.Counters))
}

// Probe is part of plane.Plane.
func (p *Plane) Probe(ctx context.Context) error {
	p.calls.Lock()
	defer p.calls.Unlock()
	return p.PacketPath.Probe(ctx)
}

// ChangedBy is part of plane.Witness.
func (p *Plane) ChangedBy() string { return plane.ChangedBy(p.PacketPath) }

// Notices is part of mode.Plane.
func (p *Plane) Notices() []mode.Notice {
	all := append(p.PacketPath.Notices(), p.notices...)
	p.notices = nil
	return all
}

// Measure is part of mode.Plane.
func (p *Plane) Measure(emit mode.Emit) error {
	err := p.PacketPath.Measure(emit)
	p.mu.RLock()
	defer p.mu.RUnlock()
	s := p.sockets()
	emit(socketsNow, float64(s.Known))
	emit(socketsLimit, float64(s.Limit))
	emit(staleEndedTotal, float64(s.Ended))
	emit(programsServing, float64(flag(s.Serving || s.Configured)))
	if s.Timeout > 0 {
		emit(heartbeatAge, s.Heartbeat.Seconds())
	}
	if p.kernel != nil {
		err = errors.Join(err, measureRefusals(p.kernel.obj.Refused, emit), measurePassed(p.kernel.obj.Passed, emit))
	}
	return err
}

// Counts is part of mode.TrafficCounter.
func (p *Plane) Counts() bool { return p.counted != nil && p.PacketPath.Counts() }

// Traffic is part of mode.TrafficCounter: connections by the packet path, and by the programs.
func (p *Plane) Traffic(ctx context.Context, f func(mode.Count)) error {
	err := p.PacketPath.Traffic(ctx, f)
	counters, e := p.counters()
	if counters == nil {
		return errors.Join(err, e)
	}
	return errors.Join(err, p.counted.each(ctx, counters, f), counters.Close())
}

// counters returns the map of the programs' counters, open until the caller closes it: a reading
// takes long, and writes must not wait for it. It is nil if no program counts.
func (p *Plane) counters() (*ebpf.Map, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.counted == nil || p.kernel == nil {
		return nil, nil
	}
	m, err := p.kernel.obj.Counters.Clone()
	if err != nil {
		return nil, fmt.Errorf("open the counters of the eBPF programs: %w", err)
	}
	return m, nil
}
