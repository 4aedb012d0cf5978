package main

import (
	"context"
	"flag"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/engine"
	"kube-proxy/internal/netlab"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/plane/iptables"
	"kube-proxy/plane/nftables"
	"kube-proxy/policy"
	"kube-proxy/test/adversary"
	"kube-proxy/test/fake"
)

// oddScale divides the adversarial workloads.
var oddScale = flag.Int("scale", 1, "divide the adversarial workloads by this")

// BenchmarkOdd measures one tenant's adversarial workloads from an event to the kernel: each at a
// start, and then a change of another tenant's Service. It needs root.
func BenchmarkOdd(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("network namespaces need root")
	}
	for _, mode := range []struct {
		name string
		new  func() (engine.Plane, error)
	}{
		{"fake", func() (engine.Plane, error) { return fake.New(lb.IPv4), nil }},
		{"nftables", func() (engine.Plane, error) { return nftables.New(nftables.Config{Family: lb.IPv4}) }},
		{"iptables", func() (engine.Plane, error) {
			return iptables.New(iptables.Config{Family: lb.IPv4, Backend: xtables.NFT})
		}},
	} {
		for _, shape := range adversary.Odd(*oddScale) {
			b.Run(mode.name+"/"+strings.ReplaceAll(strings.ReplaceAll(shape.Name, ",", ""), " ", "-"),
				func(b *testing.B) {
					for b.Loop() {
						if err := netlab.Isolated(0, func() error { return odd(b, shape, mode.new) }); err != nil {
							b.Fatal(err)
						}
					}
				})
		}
	}
}

// odd starts an engine on a shape, and then changes another Service.
func odd(b *testing.B, shape adversary.Shape, newPlane func() (engine.Plane, error)) error {
	p, err := newPlane()
	if err != nil {
		return err
	}
	if c, ok := p.(io.Closer); ok {
		defer c.Close()
	}
	store := cluster.NewStore("node1")
	e := engine.New(engine.Config{
		Family: lb.IPv4, Plane: p, Store: store, Log: slog.New(slog.DiscardHandler),
		Settings: policy.Settings{Family: lb.IPv4, ClusterCIDRs: []netip.Prefix{
			netip.MustParsePrefix("100.64.0.0/10")}},
	})
	name := cluster.Name{Namespace: "other", Name: "web"}
	other := &cluster.Service{Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80}}}
	slice := func(n byte) *cluster.Slice {
		return &cluster.Slice{Name: name, Service: name,
			Ports: []cluster.SlicePort{{Name: "http", Protocol: cluster.TCP, Port: 8080}},
			Endpoints: cluster.EndpointsOf(cluster.Endpoint{Addr: netip.AddrFrom4([4]byte{100, 127, 0, n}), Ready: true,
				Serving: true})}
	}
	const changes = 10
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	measured := make(chan struct{})
	go func() {
		defer close(measured)
		defer cancel()
		begin := time.Now()
		e.Mark(store.Fold(cluster.ServicesListed{Services: append(shape.Services, other)}))
		e.Mark(store.Fold(cluster.SlicesListed{Slices: append(shape.Slices, slice(1))}))
		settled(e)
		b.ReportMetric(float64(time.Since(begin).Milliseconds()), "start-ms")
		begin = time.Now()
		for i := range changes {
			e.Mark(store.Fold(cluster.SliceSet{Slice: slice(byte(2 + i))}))
			settled(e)
		}
		b.ReportMetric(float64(time.Since(begin).Microseconds())/1000/changes, "change-ms")
	}()
	err = e.Run(ctx)
	<-measured
	return err
}

// settled waits until everything is in force except refused frontends.
func settled(e *engine.Engine) {
	for {
		if s := e.Stats(); s.Settled || s.Begun && s.Pending > 0 && s.Pending == len(s.Failing) {
			return
		}
		time.Sleep(100 * time.Microsecond)
	}
}
