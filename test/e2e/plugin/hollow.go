package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"time"

	"kube-proxy/cli/kubectl"
	"kube-proxy/cluster"
	"kube-proxy/debug/api"
	"kube-proxy/debug/changes"
	"kube-proxy/debug/inspect"
	"kube-proxy/engine"
	"kube-proxy/failover"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/policy"
	"kube-proxy/trace"
)

// Hollow is a node whose proxy is an Inspector, with Services and without a kernel. With failing,
// its kernel refuses a frontend, and it does not reach another node.
func Hollow(name string, failing bool) Run {
	store := cluster.NewStore(name)
	store.Fold(cluster.NodeSet{Node: &cluster.Node{Name: name, Addrs: []netip.Addr{netip.MustParseAddr("172.18.0.2")}}})
	web := cluster.Name{Namespace: "shop", Name: "web"}
	service := &cluster.Service{Name: web, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Ports: []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80}}}
	slice := &cluster.Slice{Name: cluster.Name{Namespace: "shop", Name: "web-1"}, Service: web,
		Ports: []cluster.SlicePort{{Name: "http", Protocol: cluster.TCP, Port: 8080}}}
	slice.Endpoints = slice.Endpoints.With(cluster.Endpoint{
		Addr: netip.MustParseAddr("10.1.1.11"), Ready: true, Serving: true,
	})
	store.Fold(cluster.ServicesListed{Services: []*cluster.Service{service}})
	store.Fold(cluster.SlicesListed{Slices: []*cluster.Slice{slice}})
	settings := policy.Settings{Family: lb.IPv4}
	var table lb.Table
	table.Replace(lb.Owner{Name: web.String()}, policy.Resolve(store.View(web), settings))
	now := time.Now()
	stats := engine.Stats{Begun: true, Settled: true, LastSuccess: now}
	if failing {
		key := lb.Key{Addr: service.ClusterIPs[0], Port: 80, Proto: lb.TCP}
		stats.Failing = []engine.Failing{{
			Key: key, Service: "shop/web:http", Err: "no space left on device", Since: now, Tries: 3,
		}}
	}
	var tracer mode.Tracer
	var unreachable failover.Status
	if failing {
		tracer = damaged{}
		unreachable.Nodes = []failover.NodeStatus{{Name: "node-b", For: 12 * time.Second, Endpoints: 41}}
	}
	ring := changes.New()
	ring.Add(changes.Entry{
		Kind: changes.Service, Family: lb.IPv4, Service: web, What: changes.ServiceChanged, Services: 1, Frontends: 1,
		API: changed.Add(-time.Second).UnixNano(), Learned: changed.UnixNano(),
		Done: changed.Add(time.Duration(len(name)) * time.Millisecond).UnixNano(),
	})
	var mu sync.Mutex
	about := inspect.New(inspect.Config{
		Version: "v1.37.2", Started: now.Add(-time.Hour), Mode: mode.Mode{Name: "nftables"},
		Configured: "nftables", Store: store, Changes: ring,
		Failover: func() (failover.Status, string) { return unreachable, "avoid" },
		Families: []inspect.Family{{
			Family: lb.IPv4, Tracer: tracer, Stats: func() engine.Stats { return stats },
			Settings: func(cluster.Name) policy.Settings { return settings },
			Query:    func(f func(*lb.Table)) { mu.Lock(); defer mu.Unlock(); f(&table) },
		}},
	})
	client := api.Local(about)
	return func(ctx context.Context, command []string, in io.Reader, out, errOut io.Writer) error {
		want := []string{"/usr/local/bin/kube-proxy", "connect", "--config=/var/lib/kube-proxy/config.conf"}
		if !slices.Equal(command, want) {
			fmt.Fprintf(errOut, "kube-proxy: unknown command %q\n", command)
			return ExitCode(1)
		}
		conn, err := client.Connect(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		io.WriteString(out, kubectl.Greeting)
		go func() { io.Copy(conn, in); conn.Close() }()
		io.Copy(out, conn)
		return nil
	}
}

// changed is when the Service of hollow nodes changed.
var changed = time.Now().Add(-time.Minute)

// damaged is a kernel that lacks an object. Packets cannot be followed there.
type damaged struct{}

// TracePacket returns an error.
func (damaged) TracePacket(context.Context, trace.Packet, mode.Walk) (trace.Kernel, error) {
	return trace.Kernel{}, errors.New("a hollow node has no kernel")
}

// Differences reports the missing object.
func (damaged) Differences(_ context.Context, _ *lb.Table, each func(trace.Difference) bool) error {
	each(trace.Difference{Object: "map services", Desired: "an element"})
	return nil
}
