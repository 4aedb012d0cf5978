//go:build linux

package ebpf

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

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
	// Pins is the folder of pinned objects in a BPF file system. Each family has one below it.
	Pins string
	// Sockets says whose sockets are balanced: "all", "host" or "off".
	Sockets string
	// Guard refuses bind() to a NodePort in the node's network namespace.
	Guard bool
	// Stale says which sockets end with their endpoint: "udp", "all" or "none".
	Stale string
	// Count has connections counted.
	Count bool
	// Log takes failures outside the calls of a plane; nil for none.
	Log *slog.Logger
}

// PacketPath is the plane that serves what the programs pass.
type PacketPath interface {
	mode.Plane
	mode.Looker
	mode.TrafficCounter
}

// Plane is the packet path with the programs in front. Its methods are called as those of the
// packet path.
//
// The packet path alone would serve every row. So a failure of the programs is no failure of a
// call: the programs are switched off, and the next audit tries to repair them.
type Plane struct {
	PacketPath
	cfg       Config
	settings  bpf.LBSettings
	addresses *addresses
	kernel    *kernel // nil before the first Reset, and after a failure to open it
	st        *state  // nil before the first Reset
	node      lb.Node
	failed    error // why the programs are off
	noticed   bool
	unreaped  error // why sockets do not end with their endpoint
	untold    bool
}

// New returns a plane in the network namespace of the calling thread, over the packet path, which
// it closes. It changes nothing.
func New(cfg Config, packets PacketPath) (*Plane, error) {
	node, err := netnsCookie()
	if err != nil {
		return nil, fmt.Errorf("ebpf: %w", err)
	}
	p := &Plane{PacketPath: packets, cfg: cfg}
	p.settings = bpf.LBSettings{Node: node, On: flag(cfg.Sockets != "off"), Scope: flag(cfg.Sockets == "host"),
		Guard: flag(cfg.Guard), Counts: flag(cfg.Count)}
	if p.addresses, err = openAddresses(cfg.Family, cfg.Log); err != nil {
		return nil, fmt.Errorf("ebpf: %w", err)
	}
	return p, nil
}

func flag(is bool) uint8 {
	if is {
		return 1
	}
	return 0
}

// Close closes what the process has open. The programs keep serving.
func (p *Plane) Close() error {
	err := p.addresses.close()
	if p.kernel != nil {
		err = errors.Join(err, p.kernel.close())
	}
	return errors.Join(err, p.PacketPath.Close())
}

// Reset is part of plane.Plane. The programs are attached after the first one.
func (p *Plane) Reset(ctx context.Context, want *lb.Table) (plane.ResetResult, error) {
	res, err := p.PacketPath.Reset(ctx, want)
	if err != nil {
		return res, err
	}
	p.node = want.Node
	p.settle(p.reset(want))
	return res, nil
}

// reset makes the tables hold want, whatever is there.
func (p *Plane) reset(want *lb.Table) error {
	p.st = newState(want.Node)
	if err := p.open(); err != nil {
		p.st.add(want)
		return err
	}
	have, err := p.kernel.read()
	if err != nil {
		p.st.add(want)
		return err
	}
	if p.st.adopt(have, want); !p.st.left() {
		p.st = newState(want.Node)
		p.st.add(want)
		have = &snapshot{}
		err = p.kernel.clear()
	}
	if err == nil {
		err = p.hold(have)
	}
	if err == nil {
		err = p.repair(have)
	}
	return err
}

func (p *Plane) open() (err error) {
	if p.kernel == nil {
		pins := filepath.Join(p.cfg.Pins, strings.ToLower(p.cfg.Family.String()))
		p.kernel, err = open(p.cfg.Family, p.cfg.Cgroup, pins)
	}
	if err != nil || p.kernel.reaper != nil || p.cfg.Stale == "none" {
		return err
	}
	// A kernel without BTF has none; a socket then stays with an endpoint that is gone, as said in docs/ebpf.md.
	if p.kernel.reaper, p.unreaped = newReaper(&p.kernel.obj.LBMaps, p.cfg.Stale == "all", p.cfg.Log); p.unreaped != nil {
		p.untold = true
	}
	return nil
}

// hold sends the clients of rows that have other sets than before to the packet path: while the
// tables change, the number of a set may be that of another one.
func (p *Plane) hold(have *snapshot) error {
	b := &batch{}
	want := map[bpf.LBFront][3]uint32{}
	for k, f := range p.st.fronts() {
		want[k] = f.Set
	}
	for k, f := range have.fronts {
		if want[k] != f.Set {
			f.Set = [3]uint32{}
			b.fronts.set(k, f)
			have.fronts[k] = f
		}
	}
	return p.kernel.write(b)
}

// repair writes what differs from what was read, and switches the programs on.
func (p *Plane) repair(have *snapshot) error {
	if err := p.kernel.write(p.st.differ(have)); err != nil {
		return err
	}
	if err := p.addresses.use(p.kernel.obj.Addresses, p.node.NodePorts); err != nil {
		return err
	}
	if err := p.kernel.configure(p.settings); err != nil {
		return err
	}
	_, err := p.kernel.attach()
	p.kernel.reaper.ask()
	return err
}

// Apply is part of plane.Plane.
func (p *Plane) Apply(ctx context.Context, changes []lb.Change) (plane.ApplyResult, error) {
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
	p.failed, p.noticed = err, false
	if p.kernel == nil {
		return
	}
	off := p.settings
	off.On = 0
	if p.kernel.configure(off) != nil {
		p.failed = errors.Join(append(unpin(p.kernel.pins), err)...)
	}
	p.failed = errors.Join(p.failed, p.kernel.close())
	p.kernel = nil
}

// SetNode is part of plane.Plane.
func (p *Plane) SetNode(ctx context.Context, n lb.Node) error {
	if err := p.PacketPath.SetNode(ctx, n); err != nil {
		return err
	}
	p.node = n
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
	repaired, err = p.PacketPath.Audit(ctx, full)
	if err != nil || p.st == nil || !full && p.failed == nil {
		return repaired, err
	}
	n, err := p.audit()
	p.settle(err)
	return repaired + n, nil
}

func (p *Plane) audit() (repaired int, err error) {
	if err := p.open(); err != nil {
		return 0, err
	}
	have, err := p.kernel.read()
	if err != nil {
		return 0, err
	}
	attached, err := p.kernel.repin()
	if err != nil {
		return 0, err
	}
	b := p.st.differ(have)
	if err := p.kernel.write(b); err != nil {
		return 0, err
	}
	if err := p.addresses.use(p.kernel.obj.Addresses, p.node.NodePorts); err != nil {
		return 0, err
	}
	p.kernel.reaper.ask()
	return attached + b.len(), errors.Join(p.kernel.expire(), p.kernel.configure(p.settings))
}

// Notices is part of mode.Plane.
func (p *Plane) Notices() []mode.Notice {
	all := p.PacketPath.Notices()
	if p.failed != nil && !p.noticed {
		p.noticed = true
		all = append(all, mode.Notice{Args: []any{"err", p.failed}, Text: "Failed to write the tables of the eBPF programs; " +
			"the nftables rules serve all connections until a comparison repairs them"})
	}
	if p.untold {
		p.untold = false
		all = append(all, mode.Notice{Text: "Cannot end sockets whose endpoint is gone; their programs send to it until they connect again", Args: []any{"err", p.unreaped}})
	}
	return all
}

// Measure is part of mode.Plane.
func (p *Plane) Measure(emit mode.Emit) error { return p.PacketPath.Measure(emit) }
