package measure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/controlplane"
	"kube-proxy/test/e2e/testbed"
)

// probes is the number of services with pods that answer; they are spread evenly among the load.
// The time of a start is that of the last of them.
const probes = 20

// slow is the time from which a change gets a log line.
const slow = 100 * time.Millisecond

// Session is a test bed with the load in it, and at most one kube-proxy.
type Session struct {
	config  Config
	bed     *testbed.Bed
	standIn *standIn       // instead of the API server of the bed, or nil
	proxy   *testbed.Proxy // nil before the first Start
	probes  []netip.AddrPort
	late    bool   // the last Start took longer than Config.Patience
	changed int    // how many Changes
	created int    // how many Creates
	placed  int    // number of services in the stand-in
	limit   []byte // of the machine's conntrack entries, before it was raised
}

// Open starts a test bed with Config.Services services. On error it leaves nothing running.
func Open(ctx context.Context, config Config) (*Session, error) {
	if config.Services < 1 || config.Endpoints < 1 {
		return nil, fmt.Errorf("measure: %d services, %d endpoints: each must be at least 1", config.Services,
			config.Endpoints)
	}
	if config.Patience == 0 {
		config.Patience = 20 * time.Minute // a peer's start with thousands of Services takes some
	}
	if config.Logf == nil {
		config.Logf = func(string, ...any) {}
	}
	s := &Session{config: config}
	if err := s.prepare(ctx); err != nil {
		err = fmt.Errorf("measure: prepare %d services: %w", config.Services, err)
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close ends all processes and removes the test bed.
func (s *Session) Close() error {
	var errs []error
	if s.standIn != nil {
		errs = append(errs, s.standIn.close())
	}
	if s.bed != nil {
		errs = append(errs, s.bed.Close())
	}
	errs = append(errs, s.restoreLimit())
	return errors.Join(errs...)
}

func (s *Session) prepare(ctx context.Context) error {
	root, err := controlplane.Root()
	if err != nil {
		return err
	}
	kept := filepath.Join(root, "bin", fmt.Sprintf("etcd-%dx%d", s.config.Services, s.config.Endpoints))
	options := testbed.Options{Mode: s.config.Mode, Binary: s.config.Peer, NoAPI: s.config.StandIn, Logf: s.config.Logf}
	if s.config.Peer != "" {
		options.Args = testbed.PeerArgs
	}
	if _, err := os.Stat(kept); err == nil && s.config.Keep && !s.config.StandIn {
		options.Snapshot = kept
	}
	if s.bed, err = testbed.New(ctx, options); err != nil {
		return err
	}
	switch {
	case s.config.StandIn:
		if err := s.fillStandIn(); err != nil {
			return err
		}
		return s.buildProxy()
	case options.Snapshot == "":
		if err := s.fill(ctx, kept); err != nil {
			return err
		}
	}
	for i := range probes {
		addr, err := s.bed.API.ClusterIP(ctx, probeName(i))
		if err != nil {
			return err
		}
		s.probes = append(s.probes, netip.AddrPortFrom(addr, 80))
	}
	return s.buildProxy()
}

// buildProxy has the program built, which the first start does, and read into memory, before a
// start is timed.
func (s *Session) buildProxy() error {
	p, err := s.bed.StartProxy("--version")
	if err != nil {
		return err
	}
	if code := p.ExitCode(); code != 0 {
		return fmt.Errorf("kube-proxy --version: status %d:\n%s", code, p.LogTail(10))
	}
	return nil
}

// fill creates the load, a probe after each 1/20 of it.
func (s *Session) fill(ctx context.Context, kept string) error {
	for i := range probes {
		from, to := s.config.Services*i/probes, s.config.Services*(i+1)/probes
		if err := s.bed.API.CreateLoad(ctx, from, to, s.config.Endpoints); err != nil {
			return err
		}
		s.config.Logf("%d of %d services are there", to, s.config.Services)
		if err := s.bed.API.Create(ctx, controlplane.Service(probeName(i), 80),
			s.probeSlice(i, "pod1")); err != nil {
			return err
		}
	}
	if !s.config.Keep {
		return nil
	}
	for _, step := range []func() error{
		s.bed.API.StopAPIServer, s.bed.API.StopEtcd,
		func() error { return s.bed.API.Snapshot(kept) },
		func() error { return s.bed.API.StartEtcd(ctx) },
		func() error { return s.bed.API.StartAPIServer(ctx) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("keep the filled etcd: %w", err)
		}
	}
	return nil
}

// fillStandIn starts a stand-in with the same load.
func (s *Session) fillStandIn() error {
	var err error
	if s.standIn, err = newStandIn(s.bed.Lab); err != nil {
		return err
	}
	host, _ := netlab.HostByName(netlab.Node1)
	if err := s.standIn.put("nodes", controlplane.Node(netlab.Node1, host.V4, netlab.Node1Pods4.String())); err != nil {
		return err
	}
	for i := range s.config.Services {
		service := controlplane.Service(controlplane.LoadName(i), 80)
		service.Namespace = s.namespace(i * probes / s.config.Services)
		if err := s.putStandIn(service, s.loadSlice(i, s.loadAddrs(i))); err != nil {
			return err
		}
		if at := i * probes / s.config.Services; (i+1)*probes/s.config.Services > at {
			service := controlplane.Service(probeName(at), 80)
			service.Namespace = s.namespace(at)
			if err := s.putStandIn(service, s.probeSlice(at, "pod1")); err != nil {
				return err
			}
			s.probes = append(s.probes, netip.AddrPortFrom(netip.MustParseAddr(service.Spec.ClusterIP), 80))
		}
	}
	s.config.Logf("the stand-in has %d services", s.placed)
	return nil
}

// namespace is that of a probe and of the load services before it. In a real API server all are in
// one. The stand-in holds more services than one namespace may have: 17,000 of mode iptables reach
// the default of --max-namespace-objects.
func (s *Session) namespace(probe int) string {
	if s.standIn == nil {
		return metav1.NamespaceDefault
	}
	return fmt.Sprintf("load-%02d", probe)
}

// loadAddrs are the endpoints of load service i.
func (s *Session) loadAddrs(i int) []netip.Addr {
	addrs := make([]netip.Addr, s.config.Endpoints)
	for j := range addrs {
		addrs[j] = controlplane.LoadAddr(i, j, s.config.Endpoints)
	}
	return addrs
}

// loadSlice is the slice of load service i with those endpoints.
func (s *Session) loadSlice(i int, addrs []netip.Addr) *discoveryv1.EndpointSlice {
	slice := controlplane.Slice(controlplane.LoadName(i), 8080, nil, addrs...)
	slice.Namespace = s.namespace(i * probes / s.config.Services)
	return slice
}

// putStandIn creates a service with its slice at the stand-in.
func (s *Session) putStandIn(service *corev1.Service, slice *discoveryv1.EndpointSlice) error {
	s.placed++
	s.standIn.place(service, s.placed)
	if err := s.standIn.put("endpointslices", slice); err != nil {
		return err
	}
	return s.standIn.put("services", service)
}

// startProxy starts the program against the API server or the stand-in.
func (s *Session) startProxy() (*testbed.Proxy, error) {
	if s.standIn == nil {
		return s.bed.StartProxy()
	}
	kubeconfig, err := s.standIn.kubeconfig(s.bed.Dir)
	if err != nil {
		return nil, err
	}
	if s.config.Peer != "" {
		// It has the wait of mode iptables in mode nftables too, a second by default.
		return s.bed.StartProxy("--kubeconfig="+kubeconfig, "--iptables-min-sync-period=10ms")
	}
	return s.bed.StartProxy("--kubeconfig="+kubeconfig, "--admin-socket="+s.adminSocket())
}

func (s *Session) running() bool {
	select {
	case <-s.proxy.Done():
		return false
	default:
		return true
	}
}

func (s *Session) adminSocket() string { return filepath.Join(s.bed.Dir, "admin.sock") }

func (s *Session) update(ctx context.Context, slice *discoveryv1.EndpointSlice) error {
	if s.standIn != nil {
		return s.standIn.put("endpointslices", slice)
	}
	return s.bed.API.Update(ctx, slice)
}

func (s *Session) create(ctx context.Context, service *corev1.Service, slice *discoveryv1.EndpointSlice) error {
	if s.standIn != nil {
		return s.putStandIn(service, slice)
	}
	return s.bed.API.Create(ctx, service, slice)
}

// Clean stops the proxy, if one runs, and takes its rules out of the kernel.
func (s *Session) Clean(ctx context.Context) error {
	if s.proxy != nil {
		if err := s.stopProxy(); err != nil {
			return err
		}
		s.proxy = nil
	}
	return s.bed.CleanNode(ctx)
}

// stopProxy ends the proxy in order; its current write of 100,000 services takes some time.
func (s *Session) stopProxy() error {
	if err := s.proxy.Stop(time.Minute); err != nil {
		return fmt.Errorf("%w; the end of its log:\n%s", err, s.proxy.LogTail(10))
	}
	// Upstream's has no handler for the signal (PR-07).
	if code := s.proxy.ExitCode(); code != 0 && s.config.Peer == "" {
		return fmt.Errorf("kube-proxy ended with status %d after SIGTERM; the end of its log:\n%s", code,
			s.proxy.LogTail(10))
	}
	return nil
}

// Start starts a proxy, which must not run, on a kernel without rules, see Clean, and returns the
// time until the last probe was answered.
func (s *Session) Start(ctx context.Context) (took time.Duration, err error) {
	begin := time.Now()
	if s.proxy, err = s.startProxy(); err != nil {
		return 0, err
	}
	for _, addr := range s.probes {
		if err := s.await(ctx, addr, ""); err != nil {
			s.late = s.running() && time.Since(begin) > s.config.Patience
			return 0, err
		}
	}
	return time.Since(begin), nil
}

// Restart stops the proxy, changes the first probe and returns how long a new process needs until
// it serves the change. It finds the rules of the old process in the kernel.
func (s *Session) Restart(ctx context.Context) (took time.Duration, err error) {
	if err := s.stopProxy(); err != nil {
		return 0, err
	}
	s.changed++
	pod := fmt.Sprintf("pod%d", 2+s.changed%2)
	if err := s.update(ctx, s.probeSlice(0, pod)); err != nil {
		return 0, err
	}
	begin := time.Now()
	if s.proxy, err = s.startProxy(); err != nil {
		return 0, err
	}
	err = s.await(ctx, s.probes[0], pod)
	return time.Since(begin), err
}

// Timing is one change: its start, the time of its write to the API server, and the total time
// until a connection reached the endpoint.
type Timing struct {
	What        string
	Begin       time.Time
	Write, Took time.Duration
}

// String is a line for a log; its time can be looked up in the log of the proxy.
func (t Timing) String() string {
	return fmt.Sprintf("%s: %v, its write %v, begun at %s", t.What, t.Took.Round(time.Microsecond),
		t.Write.Round(time.Microsecond), t.Begin.UTC().Format("15:04:05.000"))
}

// Change updates the slice of a service in the middle of the load, and waits until the new endpoint
// is reached.
func (s *Session) Change(ctx context.Context) (t Timing, err error) {
	s.changed++
	pod := fmt.Sprintf("pod%d", 1+s.changed%2)
	t = Timing{What: fmt.Sprintf("change %d", s.changed), Begin: time.Now()}
	if err := s.update(ctx, s.probeSlice(probes/2, pod)); err != nil {
		return t, err
	}
	t.Write = time.Since(t.Begin)
	err = s.await(ctx, s.probes[probes/2], pod)
	t.Took = time.Since(t.Begin)
	return t, err
}

// OwnShares returns the proxy's own time for its last changes of the service that Change updates:
// from the event of the API server until the kernel had accepted the write. It needs a stand-in.
func (s *Session) OwnShares(ctx context.Context) ([]time.Duration, error) {
	name := s.namespace(probes/2) + "/" + probeName(probes/2)
	out, err := s.bed.Command(ctx, netlab.Node1, s.proxy.Binary, "events", name, "-o", "json", "--admin-socket",
		s.adminSocket())
	if err != nil {
		return nil, err
	}
	var answer struct {
		Changes []struct {
			Took *float64 `json:"sinceLearnedMilliseconds"`
		}
	}
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		return nil, fmt.Errorf("decode the answer of kube-proxy events: %w", err)
	}
	var took []time.Duration
	for _, c := range answer.Changes {
		if c.Took != nil {
			took = append(took, time.Duration(*c.Took*float64(time.Millisecond)))
		}
	}
	return took, nil
}

// Beside changes one endpoint of a load service rate times a second until stop is called, which
// reports failures.
func (s *Session) Beside(ctx context.Context, rate int) (stop func() error) {
	return s.keepWriting(ctx, rate, func(n int) error {
		i := n * 7919 % s.config.Services
		addrs := s.loadAddrs(i)
		addrs[0] = netip.AddrFrom4([4]byte{100, 127, byte(n >> 8), byte(n)})
		return s.update(ctx, s.loadSlice(i, addrs))
	})
}

// The load of a hostile tenant: Services, endpoints of each, and Services rewritten each second.
const (
	hostileServices  = 100
	hostileEndpoints = 500
	hostileRate      = 50
)

// Hostile replaces all endpoints of one Service of another namespace after the other, until stop is
// called, which reports failures.
func (s *Session) Hostile(ctx context.Context) (stop func() error) {
	return s.keepWriting(ctx, hostileRate, func(n int) error {
		addrs := make([]netip.Addr, hostileEndpoints)
		for j := range addrs { // those of the second half of the range, which the load does not reach
			addrs[j] = controlplane.LoadAddr(1<<12+n%(2*hostileServices), j, hostileEndpoints)
		}
		service := controlplane.Service(fmt.Sprintf("hostile-%03d", n%hostileServices), 80)
		slice := controlplane.Slice(service.Name, 8080, nil, addrs...)
		service.Namespace, slice.Namespace = "hostile", "hostile"
		if n < hostileServices {
			return s.create(ctx, service, slice)
		}
		return s.update(ctx, slice)
	})
}

// keepWriting calls write rate times a second, with the number of the call, until stop is called.
func (s *Session) keepWriting(ctx context.Context, rate int, write func(n int) error) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				done <- nil
				return
			case <-tick.C:
			}
			if err := write(n); err != nil {
				done <- fmt.Errorf("write beside the measured change: %w", err)
				return
			}
		}
	}()
	return func() error { cancel(); return <-done }
}

// Create creates a slice and its service, and waits until that answers.
func (s *Session) Create(ctx context.Context) (t Timing, err error) {
	s.created++
	service := controlplane.Service(fmt.Sprintf("new-%06d", s.created), 80)
	t = Timing{What: "new service " + service.Name, Begin: time.Now()}
	if err := s.create(ctx, service, podSlice(service.Name, "pod2")); err != nil {
		return t, err
	}
	t.Write = time.Since(t.Begin)
	err = s.await(ctx, netip.AddrPortFrom(netip.MustParseAddr(service.Spec.ClusterIP), 80), "pod2")
	t.Took = time.Since(t.Begin)
	return t, err
}

// setUps are the times to set up a connection from a pod through a service: the fastest and the
// slowest of those spread among the load. In a list of rules they are the first and the last of
// some thousands.
type setUps struct{ first, last time.Duration }

// ConnectTimes connects rounds times through each of the probes. The value for a probe is the 10th
// percentile of its connection times: other work on the machine can only make them slower.
func (s *Session) ConnectTimes(ctx context.Context, rounds int) (u setUps, err error) {
	took, err := s.bed.ConnectTimes(ctx, "pod3", s.probes, rounds)
	if err != nil {
		return u, err
	}
	for i, of := range took {
		slices.Sort(of)
		t := of[len(of)/10]
		if i == 0 || t < u.first {
			u.first = t
		}
		u.last = max(u.last, t)
	}
	return u, nil
}

// await waits until a pod, or any if it is "", answers the node.
func (s *Session) await(ctx context.Context, addr netip.AddrPort, pod string) error {
	want := []string{pod}
	if pod == "" {
		want = []string{"pod1", "pod2", "pod3"}
	}
	if _, err := s.bed.Await(ctx, netlab.Node1, addr, s.config.Patience, want...); err != nil {
		return fmt.Errorf("%w; the end of the log of kube-proxy:\n%s", err, s.proxy.LogTail(10))
	}
	return nil
}

func probeName(i int) string { return fmt.Sprintf("probe-%02d", i) }

// probeSlice is the slice of a probe with one pod of the lab.
func (s *Session) probeSlice(probe int, pod string) *discoveryv1.EndpointSlice {
	slice := podSlice(probeName(probe), pod)
	slice.Namespace = s.namespace(probe)
	return slice
}

// podSlice is the slice of a service with one pod of the lab.
func podSlice(service, pod string) *discoveryv1.EndpointSlice {
	host, ok := netlab.HostByName(pod)
	if !ok {
		panic("measure: the lab has no pod " + pod)
	}
	return controlplane.Slice(service, testbed.PodPort, testbed.NodeOf, host.V4)
}
