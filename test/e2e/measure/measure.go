// Package measure takes the times of issue 2 that need an API server: a write there until a connection reaches the changed
// endpoint, a new service until it answers, the start of the process until the last service answers, and the processor time and
// memory that all this costs. Command measure (cmd/measure) prints them; bench/ runs that command.
package measure

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/controlplane"
	"kube-proxy/test/e2e/testbed"
)

// Config says what to measure.
type Config struct {
	Services  int  // load services in the cluster
	Endpoints int  // of each load service
	Changes   int  // how many endpoint changes, and how many new services, are timed
	Keep      bool // keep the filled etcd in bin/ and use it the next time
	Logf      func(format string, args ...any)
}

// Result is what a proxy took. Times of changes count from just before the write to the API server until a connection has
// reached the endpoint, so they include what the API server and etcd take; Write is that part, measured by itself.
type Result struct {
	Services  int `json:"services"`
	Endpoints int `json:"endpoints"`
	Changes   int `json:"changes"`

	Write        Times         `json:"write"`        // the update of a slice, as its writer sees it
	Change       Times         `json:"change"`       // an updated slice until its endpoint is reached
	New          Times         `json:"new"`          // a new service with its slice until it answers
	Start        time.Duration `json:"start"`        // start of the process on an empty kernel until the last service answers
	Restart      time.Duration `json:"restart"`      // the same on the rules that are already there, until a change made meanwhile is in
	CPUPerChange time.Duration `json:"cpuPerChange"` // processor time of the proxy for one change, its share of idling included
	CPUOfStart   time.Duration `json:"cpuOfStart"`   // processor time of the proxy until the last service answered
	PeakMemory   int64         `json:"peakMemory"`   // largest resident size of the first process, bytes
}

// Times are a distribution; of few values the 99th percentile is the largest.
type Times struct {
	P50 time.Duration `json:"p50"`
	P99 time.Duration `json:"p99"`
	Max time.Duration `json:"max"`
}

func times(took []time.Duration) Times {
	slices.Sort(took)
	rank := func(percent int) time.Duration { return took[(len(took)*percent+99)/100-1] }
	return Times{P50: rank(50), P99: rank(99), Max: rank(100)}
}

// probes is how many of the services have pods that answer; they are spread evenly among the load. The time of a start is that
// of the last of them.
const probes = 20

// patience is how long to wait for one answer; a start with 100,000 services needs its time.
const patience = 2 * time.Minute

// Run measures on a test bed of its own.
func Run(ctx context.Context, config Config) (result *Result, err error) {
	if config.Services < 1 || config.Endpoints < 1 || config.Changes < 1 {
		return nil, fmt.Errorf("measure: %d services, %d endpoints, %d changes: each must be at least 1", config.Services, config.Endpoints, config.Changes)
	}
	if config.Logf == nil {
		config.Logf = func(string, ...any) {}
	}
	r := &run{config: config, result: &Result{Services: config.Services, Endpoints: config.Endpoints, Changes: config.Changes}}
	if err := r.prepare(ctx); err != nil {
		return nil, fmt.Errorf("measure: prepare: %w", err)
	}
	defer func() { err = errors.Join(err, r.bed.Close()) }()
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"start", r.start}, {"changes", r.changes}, {"new services", r.newServices}, {"memory", r.memory}, {"restart", r.restart},
	} {
		config.Logf("measuring %s", step.name)
		if err := step.do(ctx); err != nil {
			return nil, fmt.Errorf("measure: %s: %w\n%s", step.name, err, r.proxy.LogTail(10))
		}
	}
	return r.result, nil
}

// run is one measurement on its way.
type run struct {
	config Config
	result *Result
	bed    *testbed.Bed
	proxy  *testbed.Proxy
	probes []netip.AddrPort
}

// prepare starts a bed with the load and the probes in it.
func (r *run) prepare(ctx context.Context) error {
	root, err := controlplane.Root()
	if err != nil {
		return err
	}
	kept := filepath.Join(root, "bin", fmt.Sprintf("etcd-%dx%d", r.config.Services, r.config.Endpoints))
	options := testbed.Options{Logf: r.config.Logf}
	if _, err := os.Stat(kept); err == nil && r.config.Keep {
		options.Snapshot = kept
	}
	if r.bed, err = testbed.New(ctx, options); err != nil {
		return err
	}
	if options.Snapshot == "" {
		err = r.fill(ctx, kept)
	}
	if err == nil {
		err = r.findProbes(ctx)
	}
	if err != nil {
		return errors.Join(err, r.bed.Close())
	}
	return nil
}

// fill creates the load, a probe after each 1/20 of it.
func (r *run) fill(ctx context.Context, kept string) error {
	for i := range probes {
		from, to := r.config.Services*i/probes, r.config.Services*(i+1)/probes
		if err := r.bed.API.CreateLoad(ctx, from, to, r.config.Endpoints); err != nil {
			return err
		}
		r.config.Logf("%d of %d services are there", to, r.config.Services)
		if err := r.bed.API.Create(ctx, controlplane.Service(probeName(i), 80), podSlice(probeName(i), "pod1")); err != nil {
			return err
		}
	}
	if !r.config.Keep {
		return nil
	}
	for _, step := range []func() error{
		r.bed.API.StopAPIServer, r.bed.API.StopEtcd,
		func() error { return r.bed.API.Snapshot(kept) },
		func() error { return r.bed.API.StartEtcd(ctx) },
		func() error { return r.bed.API.StartAPIServer(ctx) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("keep the filled etcd: %w", err)
		}
	}
	return nil
}

func (r *run) findProbes(ctx context.Context) error {
	for i := range probes {
		addr, err := r.bed.API.ClusterIP(ctx, probeName(i))
		if err != nil {
			return err
		}
		r.probes = append(r.probes, netip.AddrPortFrom(addr, 80))
	}
	return nil
}

// start measures the start of a proxy on a kernel without rules. The process stays for the other steps.
func (r *run) start(ctx context.Context) (err error) {
	begin := time.Now()
	if r.proxy, err = r.bed.StartProxy(); err != nil {
		return err
	}
	for _, addr := range r.probes {
		if _, err := r.bed.Await(ctx, netlab.Node1, addr, patience, "pod1"); err != nil {
			return err
		}
	}
	r.result.Start = time.Since(begin)
	r.result.CPUOfStart, err = r.proxy.CPUTime()
	return err
}

// changes measures updates of a probe's slice, one at a time, from the middle of the load.
func (r *run) changes(ctx context.Context) error {
	name, addr := probeName(probes/2), r.probes[probes/2]
	before, err := r.proxy.CPUTime()
	if err != nil {
		return err
	}
	var write, change []time.Duration
	for i := range r.config.Changes {
		pod := fmt.Sprintf("pod%d", 1+(i+1)%2)
		begin := time.Now()
		if err := r.bed.API.Update(ctx, podSlice(name, pod)); err != nil {
			return err
		}
		write = append(write, time.Since(begin))
		if _, err := r.bed.Await(ctx, netlab.Node1, addr, patience, pod); err != nil {
			return err
		}
		took := time.Since(begin)
		change = append(change, took)
		if took > 200*time.Millisecond {
			r.config.Logf("change %d took %v, its write %v, at %v", i, took, write[i], time.Now().Format("15:04:05.000"))
		}
	}
	after, err := r.proxy.CPUTime()
	r.result.Write, r.result.Change = times(write), times(change)
	r.result.CPUPerChange = (after - before) / time.Duration(r.config.Changes)
	return err
}

// newServices measures services that are created with their slice.
func (r *run) newServices(ctx context.Context) error {
	var took []time.Duration
	for i := range r.config.Changes {
		service := controlplane.Service(fmt.Sprintf("new-%06d", i), 80)
		begin := time.Now()
		if err := r.bed.API.Create(ctx, service, podSlice(service.Name, "pod2")); err != nil {
			return err
		}
		addr := netip.AddrPortFrom(netip.MustParseAddr(service.Spec.ClusterIP), 80)
		if _, err := r.bed.Await(ctx, netlab.Node1, addr, patience, "pod2"); err != nil {
			return err
		}
		took = append(took, time.Since(begin))
	}
	r.result.New = times(took)
	return nil
}

func (r *run) memory(context.Context) (err error) {
	r.config.Logf("the end of the proxy's log:\n%s", r.proxy.LogTail(15))
	r.result.PeakMemory, err = r.proxy.PeakMemory()
	return err
}

// restart stops the proxy, makes a change and measures until a new process has it in.
func (r *run) restart(ctx context.Context) (err error) {
	if err := r.proxy.StopInOrder(); err != nil {
		return err
	}
	if err := r.bed.API.Update(ctx, podSlice(probeName(0), "pod3")); err != nil {
		return err
	}
	begin := time.Now()
	if r.proxy, err = r.bed.StartProxy(); err != nil {
		return err
	}
	_, err = r.bed.Await(ctx, netlab.Node1, r.probes[0], patience, "pod3")
	r.result.Restart = time.Since(begin)
	return err
}

func probeName(i int) string { return fmt.Sprintf("probe-%02d", i) }

// podSlice is the slice of a service with one pod of the lab.
func podSlice(service, pod string) *discoveryv1.EndpointSlice {
	host, ok := netlab.HostByName(pod)
	if !ok {
		panic("measure: the lab has no pod " + pod)
	}
	return controlplane.Slice(service, testbed.PodPort, testbed.NodeOf, host.V4)
}
