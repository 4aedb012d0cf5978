package hns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"kube-proxy/lb"
	"kube-proxy/plane"
)

// Config says what a plane programs.
type Config struct {
	// Family is the IP family; required.
	Family lb.Family
	// HNS is where the plane writes; required. The planes of both families may share it.
	HNS HNS
	// Network is the name of the HNS network; "" leaves it to the environment variable KUBE_NETWORK (CF-31).
	Network string
	// SourceVIP is the address by which backends of an overlay network see clients that are not in it; not valid if there
	// is none. The plane of the other family ignores it.
	SourceVIP netip.Addr
	// DSR has backends answer clients directly where HNS and the kind of address allow it.
	DSR bool
	// RootEndpoint is the name of the node's own HNS endpoint; "" means cbr0 (CF-32).
	RootEndpoint string
	// ForwardHealthCheckVIP leads health checks of load balancers' addresses to RootEndpoint (CF-32).
	ForwardHealthCheckVIP bool
	// HealthzPort is led there, too, at addresses of Services without a healthCheckNodePort; 0 for none.
	HealthzPort uint16
	// IgnoreSourceRanges serves rows with source ranges to all clients, and does not leave them out.
	IgnoreSourceRanges bool
}

// Plane holds one family's load balancers in HNS. Its methods must be called by one goroutine at a time; [Plane.Drift] and
// [Plane.Measure] may be by another.
type Plane struct {
	cfg   Config
	hns   *counted
	st    *state // nil before the first Reset, and when it was lost
	drift chan struct{}
	// suspect: HNS answered as it would if others had changed our objects.
	suspect bool
	notices notices
	// refused are the optional flags of port mappings that this build of Windows does not take.
	refused atomic.Uint32
	// unmodifiable: HNS accepts modifications of load balancers and ignores them.
	unmodifiable atomic.Bool
	// taken are ports at which HNS leads no health checks, because a program of the node listens there; as of the last Reset.
	taken map[uint16]bool
	// filters: HNS has found an endpoint by its address.
	filters bool
	shown   atomic.Pointer[sizes]

	// step is how many new load balancers a Reset writes; the others are left for later. A constant but for tests.
	step int
}

// step and pace are for an HNS that answers in some ten milliseconds, one call after the other; where it takes longer, pieces are
// smaller, so that their writes end in about pieceTime.
const (
	step, pace = 64, 64
	pieceTime  = 2 * time.Second
)

// New makes a plane. It calls nothing: the network may come later.
func New(cfg Config) (*Plane, error) {
	switch {
	case cfg.Family != lb.IPv4 && cfg.Family != lb.IPv6:
		return nil, fmt.Errorf("hns: family %s: want IPv4 or IPv6", cfg.Family)
	case cfg.HNS == nil:
		return nil, errors.New("hns: no HNS to write to")
	}
	if cfg.Network == "" {
		cfg.Network = os.Getenv(networkVariable)
	}
	if cfg.Network == "" {
		return nil, fmt.Errorf("hns: which HNS network? Name it by --network-name (winkernel.networkName) or the environment variable %s", networkVariable)
	}
	cfg.RootEndpoint = cfg.root()
	p := &Plane{cfg: cfg, hns: &counted{HNS: cfg.HNS}, drift: make(chan struct{}, 1), step: step}
	return p, nil
}

// root is the name of the node's own endpoint.
func (cfg *Config) root() string { return cmp.Or(cfg.RootEndpoint, "cbr0") }

// networkVariable is the environment variable that names the network (CF-31).
const networkVariable = "KUBE_NETWORK"

// Apply sets each change's load balancers, or removes them. A row that fails does not keep the others from being written; the error joins what
// failed.
func (p *Plane) Apply(ctx context.Context, changes []lb.Change) (res plane.ApplyResult, err error) {
	if err := p.usable(ctx); err != nil {
		return res, fmt.Errorf("hns: apply %d changes: %w", len(changes), err)
	}
	w := p.writer()
	services := map[string]bool{}
	var errs []error
	for _, c := range changes {
		w.note(p.st.rows[c.Key], c.New, services)
		err := w.row(ctx, c.Key, c.New)
		if delete(p.st.failed, c.Key); err != nil {
			p.st.failed[c.Key] = true
		}
		errs = append(errs, err)
	}
	errs = append(errs, w.forward(ctx, services))
	if _, err := w.sweep(ctx); err != nil {
		p.suspected()
	}
	return plane.ApplyResult{Written: w.calls > 0}, p.ended(ctx, fmt.Sprintf("apply %d changes", len(changes)), errors.Join(errs...))
}

// usable says why nothing can be written now.
func (p *Plane) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if p.st == nil {
		return plane.ErrNotSetUp
	}
	return nil
}

// ended looks at how the calls of a verb ended. Where HNS does not find what is named, the network may have gone, or come
// back as another: everything in it went with it.
func (p *Plane) ended(ctx context.Context, verb string, err error) error {
	p.show()
	if err == nil {
		return nil
	}
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrExists) || Uncertain(err) {
		p.suspected()
	}
	if errors.Is(err, ErrNotFound) || errors.Is(err, errNoPod) {
		if lost := p.lost(ctx); lost != nil {
			p.st = nil
			return fmt.Errorf("hns: %s: %w", verb, lost)
		}
	}
	return fmt.Errorf("hns: %s: %w", verb, err)
}

// suspected has the engine ask for an audit.
func (p *Plane) suspected() {
	p.suspect = true
	select {
	case p.drift <- struct{}{}:
	default:
	}
}

// lost says that the network is not the one that the plane wrote to; nil also where HNS does not tell.
func (p *Plane) lost(ctx context.Context) error {
	all, err := p.hns.Networks(ctx, p.cfg.Network)
	if err != nil {
		return nil
	}
	for _, n := range all {
		if strings.EqualFold(n.ID, p.st.id) {
			return nil
		}
	}
	return fmt.Errorf("the HNS network %q (%s) has gone, and all load balancers with it: %w", p.cfg.Network, p.st.id, plane.ErrStateLost)
}

// SetNode writes what a change of the node asks for: NodePorts may answer now, or not any more.
func (p *Plane) SetNode(ctx context.Context, n lb.Node) error {
	if err := p.usable(ctx); err != nil {
		return fmt.Errorf("hns: set node: %w", err)
	}
	before := p.st.nodePorts()
	p.st.node = n
	if p.st.nodePorts() == before {
		return nil
	}
	var ports []lb.Change
	for key, row := range p.st.rows {
		if key.IsNodePort() {
			ports = append(ports, lb.Change{Key: key, New: row})
		}
	}
	if _, err := p.Apply(ctx, ports); err != nil {
		p.st = nil // which rows are not as the node asks for, only a Reset finds out
		return fmt.Errorf("hns: set node: %w: %w", err, plane.ErrStateLost)
	}
	return nil
}

// Probe makes an endpoint at an address for documentation, and deletes it.
func (p *Plane) Probe(ctx context.Context) error {
	if err := p.usable(ctx); err != nil {
		return fmt.Errorf("hns: probe: %w", err)
	}
	a := netip.MustParseAddr("198.51.100.0")
	if p.cfg.Family == lb.IPv6 {
		a = netip.MustParseAddr("2001:db8::")
	}
	for p.st.endpoints[a] != nil {
		a = a.Next()
	}
	e, _ := p.st.remoteEndpoint(a)
	made, err := p.hns.CreateEndpoint(ctx, e)
	if err == nil {
		err = p.hns.DeleteEndpoint(ctx, made.ID)
	}
	return p.ended(ctx, "probe", err)
}

// Drift has a value when HNS answered as if somebody else had changed our objects: it tells of no changes by itself.
func (p *Plane) Drift() <-chan struct{} { return p.drift }

// Pace is as many calls of HNS as take pieceTime, by what calls that write have taken of late; 1 to 64.
func (p *Plane) Pace() int {
	took := time.Duration(p.hns.writes.Load())
	return int(max(1, min(pace, pieceTime/max(1, took))))
}

// piece is how many new load balancers a Reset or an audit writes.
func (p *Plane) piece() int {
	if n := p.Pace(); n < pace {
		return min(n, p.step)
	}
	return p.step
}

// Close does nothing: the plane holds nothing of this process, and what it wrote stays.
func (p *Plane) Close() error { return nil }
