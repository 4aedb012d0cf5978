package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/trace"
)

// View has its own connections for reading the kernel, in the caller's network namespace.
type View struct {
	IPVS   *ipvs.Conn
	Sets   SetView
	Device Addresses
	// Held returns the jumps to the mode's chains, and their rules.
	Held heldChains
	// Here reports whether packets to an address are for this node.
	Here func(context.Context, netip.Addr) (bool, error)
	// Stays returns the real server that persistence chose for the client; a zero one if unknown.
	Stays func(ctx context.Context, id ipvs.ServiceID, client netip.Addr) (netip.AddrPort, error)
	// Close closes the connections.
	Close func() error
}

// SetView is the part of ipset.Conn that a trace needs.
type SetView interface {
	Sets
	Has(ctx context.Context, name string, m ipset.Member) (bool, error)
	Header(ctx context.Context, name string) (ipset.Header, error)
}

// view waits for its turn, and opens a View.
func (p *Plane) view(ctx context.Context) (*View, func(), error) {
	select {
	case p.tracing <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	v, err := p.cfg.View()
	if err != nil {
		<-p.tracing
		return nil, nil, err
	}
	return v, func() {
		v.Close()
		<-p.tracing
	}, nil
}

// TracePacket implements mode.Tracer. It follows a packet through the mode's chains in the kernel,
// its ipsets, and the virtual server of its mark or address. It ignores rules of other programs. It
// runs iptables-save, and lists a set of marks for a packet that has one; the rest costs the same
// in a table of any size.
//
// Shares follow the weights if the scheduler does, and are otherwise 0, unknown.
func (p *Plane) TracePacket(ctx context.Context, packet trace.Packet, walk mode.Walk) (trace.Kernel, error) {
	k, err := p.follow(ctx, packet, walk)
	if err != nil {
		return trace.Kernel{}, fmt.Errorf("ipvs: follow a packet to %s: %w", packet.To, err)
	}
	return k, nil
}

func (p *Plane) follow(ctx context.Context, packet trace.Packet, walk mode.Walk) (trace.Kernel, error) {
	if f := lb.FamilyOf(packet.To.Addr()); f != p.cfg.Family {
		return trace.Kernel{}, fmt.Errorf("it is of %s, and this plane of %s", f, p.cfg.Family)
	}
	v, done, err := p.view(ctx)
	if err != nil {
		return trace.Kernel{}, err
	}
	defer done()
	way := &way{ctx: ctx, view: v, Plane: p, packet: packet, walk: walk, Packet: xtables.Packet{From: packet.From,
		To: packet.To, Proto: packet.Proto, In: packet.In}}
	way.Kernel.Way = []string{}
	jumps, rules, err := v.Held(ctx)
	if err != nil {
		return trace.Kernel{}, err
	}
	way.rules = slices.Concat(jumps, rules)
	if err := way.all(); err != nil {
		return trace.Kernel{}, err
	}
	return way.Kernel, nil
}

// way is the path of one packet.
type way struct {
	*Plane
	ctx    context.Context
	view   *View
	packet trace.Packet
	walk   mode.Walk
	rules  []xtables.ChainRule
	// Packet is the packet's current state.
	xtables.Packet
	trace.Kernel
}

// maxSaid is the maximum number of lines of a way.
const maxSaid = 200

func (w *way) linef(format string, args ...any) { w.line(fmt.Sprintf(format, args...)) }

func (w *way) line(text string) {
	if len(w.Way) < maxSaid {
		w.Way = append(w.Way, text)
	}
}

// all takes the packet through the hooks, in the order of the kernel, until it ends.
func (w *way) all() error {
	here, err := w.view.Here(w.ctx, w.To.Addr())
	if err != nil {
		return err
	}
	w.FromHere, w.ToHere = w.packet.Host, here || w.packet.Here
	var steps []func() (done bool, err error)
	if w.packet.Host {
		w.In = ""
		steps = append(steps, w.hook("OUTPUT", "mangle", "nat"), w.serve, w.hook("OUTPUT", "filter"),
			func() (bool, error) {
				w.In = "lo"
				return false, nil
			})
	}
	switch {
	case w.ToHere:
		steps = append(steps, w.hook("INPUT", "mangle", "filter"), w.serve,
			w.passes("no virtual server takes it: it is for programs of this node"))
	case !w.packet.Host:
		steps = append(steps, w.hook("PREROUTING", "nat"), w.hook("FORWARD", "filter"))
		fallthrough
	default:
		steps = append(steps, w.passes(w.To.Addr().String()+" is not an address of this node: the packet goes on to "+
			"its destination"))
	}
	for _, step := range steps {
		if done, err := step(); done || err != nil {
			return err
		}
	}
	return nil
}

// passes ends the way.
func (w *way) passes(why string) func() (bool, error) {
	return func() (bool, error) {
		w.line(why)
		w.Verdict = trace.Pass
		return true, nil
	}
}

// hook takes the packet through the chains of that name in the tables, and reports whether it ends
// there.
func (w *way) hook(name string, tables ...string) func() (done bool, err error) {
	return func() (bool, error) {
		for _, table := range tables {
			v := &xtables.Visit{Rules: w.rules, Sets: w, Table: table, Chain: name, Packet: &w.Packet, Report: w.line}
			if k, err := w.walk(w.ctx, v, w.packet); err != nil || k.Verdict != trace.Pass {
				w.Verdict = k.Verdict
				return true, err
			}
		}
		return false, nil
	}
}

// serve takes the packet through IPVS: by its mark if that has a virtual server, else by its
// address. done is false without either.
func (w *way) serve() (done bool, err error) {
	ids := []ipvs.ServiceID{ipvs.ByAddr(w.To, uint8(w.Packet.Proto))}
	if w.Packet.Mark != 0 {
		ids = slices.Insert(ids, 0, ipvs.ByMark(wireFamily(w.cfg.Family), w.Packet.Mark))
	}
	for _, id := range ids {
		s, err := w.view.IPVS.Service(w.ctx, id)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return true, err
		}
		return true, w.balance(s.Service)
	}
	return false, nil
}

// balance makes a virtual server take the packet.
func (w *way) balance(s ipvs.Service) error {
	w.linef("%s", strings.TrimSpace(ipvs.SaveService(s)))
	var persistent uint32
	var sum int64
	all, err := w.view.IPVS.Destinations(w.ctx, s.ServiceID)
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b ipvs.DestinationState) int { return a.Addr.Compare(b.Addr) })
	open := uint32(0)
	for _, d := range all {
		open += d.Active + d.Inactive
		persistent += d.Persistent
		line := strings.TrimSpace(ipvs.SaveDestination(s.ServiceID, d.Destination))
		switch {
		case d.Weight <= 0 && d.Active+d.Inactive > 0:
			w.linef("%s: it drains, with %d connections", line, d.Active+d.Inactive)
		case d.Weight <= 0:
			w.linef("%s: it takes no new connections", line)
		default:
			w.linef("%s: %d connections", line, d.Active+d.Inactive)
			share := weightOf(s.Scheduler, d.Weight)
			sum += share
			w.Backends = append(w.Backends, trace.Backend{Address: d.Addr, Share: float64(share)})
		}
	}
	for i := range w.Backends {
		if sum > 0 {
			w.Backends[i].Share /= float64(sum)
		}
	}
	if s.Flags&ipvs.Persistent != 0 && persistent > 0 {
		w.Affine, err = w.view.Stays(w.ctx, s.ServiceID, w.From.Addr())
		switch {
		case errors.Is(err, errTooMany):
			w.linef("persistence: %v", err)
		case err != nil:
			return err
		case w.Affine.IsValid():
			w.linef("persistence: the client stays with %s", w.Affine)
		}
	}
	if len(w.Backends) == 0 {
		w.linef("no real server takes new connections: the client is refused")
		w.Verdict, w.Drains = trace.Reject, open > 0
		return nil
	}
	w.Verdict = trace.Balance
	return w.leave()
}

// weightOf returns a real server's share of new connections; 0 for schedulers that do not use
// weights.
func weightOf(scheduler string, weight int32) int64 {
	switch scheduler {
	case "rr", "lc":
		return 1
	case "wrr", "wlc", "sed", "nq", "sh", "mh":
		return int64(weight)
	}
	return 0
}

// leave takes the translated packet out of the node. All real servers except the client itself are
// alike.
func (w *way) leave() error {
	another := slices.IndexFunc(w.Backends, func(b trace.Backend) bool {
		return b.Address.Addr() != w.packet.From.Addr()
	})
	to := w.Backends[max(0, another)].Address
	here, err := w.view.Here(w.ctx, to.Addr())
	if err != nil {
		return err
	}
	w.To, w.ToHere, w.In, w.Out = to, here, "", ""
	if here {
		w.Out = "lo"
	} else if done, err := w.hook("OUTPUT", "mangle")(); done || err != nil { // IPVS sends it through OUTPUT once more
		return err
	}
	_, err = w.hook("POSTROUTING", "nat")()
	w.Masquerade = w.Masqueraded
	return err
}
