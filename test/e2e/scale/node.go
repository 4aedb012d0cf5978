package scale

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"kube-proxy/cluster"
	"kube-proxy/engine"
	"kube-proxy/lb"
	"kube-proxy/source/convert"
	"kube-proxy/source/kube"
	"kube-proxy/test/fake"
)

// marker is the slice whose only address is a sign: a node that has it has all that was written
// before.
const marker = "scale-marker"

// access is how a node reaches the API server.
type access struct {
	kubeconfig string       // for source/kube
	config     *rest.Config // for informers
}

// client is one node's client of the API server; Run follows it until ctx ends, and calls saw with
// each address of the marker.
type client func(ctx context.Context, name string, a access, l *link, saw func(string)) error

// node is a hollow node.
type node struct {
	name string
	link *link
	run  client

	sign atomic.Pointer[sign]
	stop context.CancelFunc
	done chan error
}

// sign is the marker's address and its time of arrival.
type sign struct {
	addr string
	at   time.Time
}

func (n *node) saw(addr string) {
	if was := n.sign.Load(); was == nil || was.addr != addr {
		n.sign.Store(&sign{addr, time.Now()})
	}
}

func (n *node) start(ctx context.Context, a access) {
	ctx, n.stop = context.WithCancel(ctx)
	n.sign.Store(nil)
	n.done = make(chan error, 1)
	go func() { n.done <- n.run(ctx, n.name, a, n.link, n.saw) }()
}

func (n *node) end() error {
	n.stop()
	return <-n.done
}

// ours runs the product without a kernel: source, store, policy, table and engine of one family.
func ours(ctx context.Context, name string, a access, l *link, saw func(string)) error {
	log := slog.New(slog.DiscardHandler)
	src, err := kube.New(kube.Config{Kubeconfig: a.kubeconfig, NodeName: name, Log: log, UserAgent: "hollow/ours",
		QPS: qps, Burst: burst, Dial: l.dial, Wrap: l.meter.wrap})
	if err != nil {
		return fmt.Errorf("hollow node %s: %w", name, err)
	}
	store := cluster.NewStore(name)
	loop := engine.New(engine.Config{Family: lb.IPv4, Plane: fake.New(lb.IPv4), Store: store, Log: log})
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { loop.Run(ctx) })
	var folding sync.Mutex // no fold may come between another and its Mark
	return src.Run(ctx, func(ev cluster.Event) {
		folding.Lock()
		loop.Mark(store.Fold(ev))
		folding.Unlock()
		switch ev := ev.(type) {
		case cluster.SliceSet:
			sawSlice(ev.Slice, saw)
		case cluster.SlicesListed:
			for _, s := range ev.Slices {
				sawSlice(s, saw)
			}
		}
	})
}

func sawSlice(s *cluster.Slice, saw func(string)) {
	if s.Name.Name == marker && s.Endpoints.Len() == 1 {
		saw(s.Endpoints.At(0).Addr.String())
	}
}

// The defaults of clientConnection, ours and upstream's.
const (
	qps   = 5
	burst = 10
)

// resync is the default of upstream's configSyncPeriod.
const resync = 15 * time.Minute

// informing runs client-go's shared informers on the resources that upstream's kube-proxy watches:
// Services and EndpointSlices by its label selectors, its own Node, and ServiceCIDRs.
func informing(ctx context.Context, name string, a access, l *link, saw func(string)) error {
	config := rest.CopyConfig(a.config)
	config.Dial, config.WrapTransport, config.UserAgent = l.dial, l.meter.wrap, "hollow/informers"
	config.QPS, config.Burst = qps, burst
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	set, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("informers of %s: %w", name, err)
	}
	factory := func(tweak func(*metav1.ListOptions)) informers.SharedInformerFactory {
		return informers.NewSharedInformerFactoryWithOptions(set, resync, informers.WithTweakListOptions(tweak))
	}
	selected := factory(func(o *metav1.ListOptions) { o.LabelSelector = convert.ServiceSelector })
	own := factory(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	})
	ranges := informers.NewSharedInformerFactory(set, resync)
	factories := []informers.SharedInformerFactory{selected, own, ranges}
	slices := selected.Discovery().V1().EndpointSlices().Informer()
	take := func(o any) {
		if s, ok := o.(*discoveryv1.EndpointSlice); ok && s.Name == marker && len(s.Endpoints) == 1 {
			saw(s.Endpoints[0].Addresses[0])
		}
	}
	handler := cache.ResourceEventHandlerFuncs{AddFunc: take, UpdateFunc: func(_, o any) { take(o) }}
	if _, err := slices.AddEventHandler(handler); err != nil {
		return fmt.Errorf("informers of %s: %w", name, err)
	}
	selected.Core().V1().Services().Informer()
	own.Core().V1().Nodes().Informer()
	ranges.Networking().V1().ServiceCIDRs().Informer()
	quiet := klog.NewContext(ctx, logr.Discard())
	for _, f := range factories {
		f.StartWithContext(quiet)
	}
	<-ctx.Done()
	for _, f := range factories {
		f.Shutdown()
	}
	return nil
}
