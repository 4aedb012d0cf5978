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

// Config configures a plane.
type Config struct {
	// Family is the IP family; required.
	Family lb.Family
	// HNS is required. The planes of both families may share it.
	HNS HNS
	// Network is the name of the HNS network; "" means the environment variable KUBE_NETWORK
	// (CF-31).
	Network string
	// SourceVIP replaces the client's address, in overlay networks for clients outside; may be
	// invalid. Planes of the other family ignore it.
	SourceVIP netip.Addr
	// DSR makes backends of cluster IPs answer clients directly, if HNS supports it.
	DSR bool
	// RootEndpoint is the name of the node's own HNS endpoint; "" means cbr0 (CF-32).
	RootEndpoint string
	// ForwardHealthCheckVIP forwards health checks of load-balancer addresses to RootEndpoint
	// (CF-32).
	ForwardHealthCheckVIP bool
	// HealthzPort is their port for Services without a healthCheckNodePort; 0 for none.
	HealthzPort uint16
	// IgnoreSourceRanges serves frontends with source ranges to all clients instead of to none.
	IgnoreSourceRanges bool
}

// Plane holds one family's load balancers in HNS. Only [Plane.Drift] and [Plane.Measure] may be
// called concurrently.
type Plane struct {
	cfg   Config
	hns   *counted
	st    *state // nil before the first Reset and after a loss
	drift chan struct{}
	// suspect: an answer of HNS suggests that other programs changed our objects.
	suspect bool
	notices notices
	// refused are the optional flags of port mappings that this build of Windows refuses.
	refused atomic.Uint32
	// unmodifiable: HNS accepts modifications of load balancers and ignores them.
	unmodifiable atomic.Bool
	// taken are health-check ports on which a program of the node listens, as of the last Reset.
	taken map[uint16]bool
	// filters: HNS can filter endpoints by address.
	filters bool
	shown   atomic.Pointer[sizes]

	// most is the maximum weight of an Apply, and of new frontends in a Reset; tests change it.
	most int
}

// maxBatchWeight suits an HNS that answers in some ten milliseconds. If it is slower, fewer writes
// fill pieceTime.
const (
	maxBatchWeight = 64
	pieceTime      = 2 * time.Second
)

// New creates a plane without calling HNS; the network may appear later.
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
		return nil, fmt.Errorf("hns: no HNS network named: set --network-name (winkernel.networkName) or the "+
			"environment variable %s", networkVariable)
	}
	cfg.RootEndpoint = cfg.root()
	p := &Plane{cfg: cfg, hns: &counted{HNS: cfg.HNS}, drift: make(chan struct{}, 1), most: maxBatchWeight}
	return p, nil
}

// root returns the name of the node's own endpoint.
func (cfg *Config) root() string { return cmp.Or(cfg.RootEndpoint, "cbr0") }

// networkVariable is the environment variable that names the network (CF-31).
const networkVariable = "KUBE_NETWORK"

// Apply writes the load balancers of the changes. A frontend that fails does not stop the others;
// the error joins all failures.
func (p *Plane) Apply(ctx context.Context, changes []lb.Change) (res plane.ApplyResult, err error) {
	if err := p.usable(ctx); err != nil {
		return res, fmt.Errorf("hns: apply %d changes: %w", len(changes), err)
	}
	w := &writer{Plane: p}
	services := map[string]bool{}
	var errs []error
	for _, c := range changes {
		w.note(p.st.rows[c.Key], c.New, services)
		err := w.row(ctx, c.Key, c.New)
		delete(p.st.failed, c.Key)
		if err != nil {
			p.st.failed[c.Key] = true
		}
		errs = append(errs, err)
	}
	errs = append(errs, w.forward(ctx, services))
	if _, err := w.sweep(ctx); err != nil {
		p.suspected()
	}
	return plane.ApplyResult{Written: w.calls > 0}, p.ended(ctx, fmt.Sprintf("apply %d changes", len(changes)),
		errors.Join(errs...))
}

// usable returns an error if writes are impossible now.
func (p *Plane) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if p.st == nil {
		return plane.ErrNotSetUp
	}
	return nil
}

// ended handles the outcome of a verb. If HNS does not find an object, the network may be gone or
// replaced, with everything in it.
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

// suspected requests an audit.
func (p *Plane) suspected() {
	p.suspect = true
	select {
	case p.drift <- struct{}{}:
	default:
	}
}

// lost returns an error if the network is gone or replaced; nil if HNS does not answer.
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
	return fmt.Errorf("the HNS network %q (%s) and its load balancers are gone: %w", p.cfg.Network, p.st.id,
		plane.ErrStateLost)
}

// SetNode writes or removes NodePorts if the node's addresses require it.
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
		p.st = nil // only a Reset can find the wrong frontends
		return fmt.Errorf("hns: set node: %w: %w", err, plane.ErrStateLost)
	}
	return nil
}

// Probe creates and deletes an endpoint at a documentation address.
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

// Drift has a value when an answer of HNS suggests that other programs changed our objects; HNS
// reports no changes itself.
func (p *Plane) Drift() <-chan struct{} { return p.drift }

// MaxBatchWeight returns the number of writes that fit into pieceTime at the recent speed, 1 to 64.
func (p *Plane) MaxBatchWeight() int {
	took := time.Duration(p.hns.writes.Load())
	return max(1, min(p.most, int(pieceTime/max(1, took))))
}

// Close does nothing: load balancers outlive the process.
func (p *Plane) Close() error { return nil }
