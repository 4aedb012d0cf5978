package scale

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"time"

	"kube-proxy/test/e2e/controlplane"
	"kube-proxy/test/e2e/testbed"
)

// Harness is a test bed with a cluster for hollow nodes.
type Harness struct {
	Bed  *testbed.Bed
	Logf func(format string, args ...any)

	access access
	marks  int
}

// The services that every cluster of the harness has.
const (
	services  = 200
	endpoints = 10
)

// New fills the cluster of a test bed. The bed remains the caller's.
func New(ctx context.Context, bed *testbed.Bed, logf func(string, ...any)) (*Harness, error) {
	h := &Harness{Bed: bed, Logf: logf}
	if err := bed.API.CreateLoad(ctx, 0, services, endpoints); err != nil {
		return nil, err
	}
	service := controlplane.Service(marker, 80)
	if err := bed.API.Create(ctx, service, controlplane.Slice(marker, 8080, nil, mark(0))); err != nil {
		return nil, err
	}
	var err error
	if h.access.kubeconfig, err = bed.API.Kubeconfig("hollow", controlplane.ProxyUser, nil); err != nil {
		return nil, err
	}
	h.access.config = bed.API.RESTConfig(controlplane.ProxyUser)
	return h, nil
}

// mark is the address number i of the marker; LoadAddr ends far below it.
func mark(i int) netip.Addr { return netip.AddrFrom4([4]byte{100, 127, byte(i >> 8), byte(i)}) }

// Mark changes the marker, tries until the API server accepts that, and returns the address that
// nodes must see.
func (h *Harness) Mark(ctx context.Context) (string, error) {
	h.marks++
	addr := mark(h.marks)
	for {
		err := h.Bed.API.Update(ctx, controlplane.Slice(marker, 8080, nil, addr))
		if err == nil {
			return addr.String(), nil
		}
		if ended := sleep(ctx, 100*time.Millisecond); ended != nil {
			return "", errors.Join(err, ended)
		}
	}
}

// Population is nodes that run the same client.
type Population struct {
	Name  string
	h     *Harness
	meter *meter
	nodes []*node
}

// The clients of populations: this product, and client-go's informers on the resources that
// upstream watches.
var Clients = []Client{{"ours", ours}, {"upstream's informers", informing}}

// Client is the program of a node.
type Client struct {
	Name string
	run  client
}

// Population makes n nodes, which are not started.
func (h *Harness) Population(ctx context.Context, c Client, n int) (*Population, error) {
	m := &meter{dial: h.access.config.Dial, start: time.Now(), kinds: map[string]int{}}
	p := &Population{Name: c.Name, h: h, meter: m}
	for i := range n {
		p.nodes = append(p.nodes, &node{name: fmt.Sprintf("hollow-%05d", i), link: newLink(p.meter), run: c.run})
	}
	return p, h.Bed.API.Each(ctx, "hollow Nodes", n, func(ctx context.Context, i int) error {
		addr := netip.AddrFrom4([4]byte{172, 19, byte(i >> 8), byte(i)})
		return h.Bed.API.PutNode(ctx, controlplane.Node(p.nodes[i].name, addr, "10.200.0.0/24"))
	})
}

// Start starts all nodes at once.
func (p *Population) Start(ctx context.Context) {
	for _, n := range p.nodes {
		n.start(ctx, p.h.access)
	}
}

// Stop ends all nodes.
func (p *Population) Stop() error {
	for _, n := range p.nodes {
		n.stop()
	}
	var errs []error
	for _, n := range p.nodes {
		errs = append(errs, <-n.done)
	}
	return errors.Join(errs...)
}

// Await waits until all nodes have seen the marker's address.
func (p *Population) Await(ctx context.Context, addr string) error {
	for {
		n := len(p.nodes) - len(p.since(addr, time.Time{}))
		if n == 0 {
			return nil
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("%d of %d nodes (%s) have not seen the marker: %w", n, len(p.nodes), p.Name, err)
		}
	}
}

// since returns the times after start at which the nodes received the marker, in order, without
// those that have not.
func (p *Population) since(addr string, start time.Time) (took []time.Duration) {
	for _, n := range p.nodes {
		if s := n.sign.Load(); s != nil && s.addr == addr {
			took = append(took, s.at.Sub(start))
		}
	}
	slices.Sort(took)
	return took
}

// heap returns the memory in use by this process, after a collection.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
