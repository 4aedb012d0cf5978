package scale

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/controlplane"
	"kube-proxy/test/e2e/testbed"
)

// Rollout is a deployment whose pods are all replaced while nodes use its Service.
type Rollout struct {
	Endpoints int           // of the deployment, a multiple of 100
	Over      time.Duration // the replacement
	Grace     time.Duration // from a pod's end, when it is marked as terminating, to its death
	Rest      time.Duration // between two connections of a node
}

// Rolled is the rollout as the nodes saw it.
type Rolled struct {
	Nodes, Connections int
	// Lost are the connections that were refused, reset or not answered.
	Lost []error
	// First is the time from a pod's readiness, when its slice is written, until a node's kernel
	// can send a packet to it; Last is the time from its end until the kernel no longer does. Both
	// have each pod on each node, in order.
	First, Last []time.Duration
	// Late is the longest time after a pod's end at which a connection still reached it.
	Late time.Duration
}

// Of returns a percentile of sorted times.
func Of(times []time.Duration, percent int) time.Duration {
	return times[max(0, (len(times)*percent+99)/100-1)]
}

// The slices of the deployment, and how many of their endpoints are replaced at a time.
const (
	perSlice = 100
	perStep  = 10
)

// pods are the endpoints of the deployment; the lab's sink has all of them.
type pods struct {
	mu    sync.Mutex
	ready map[netip.Addr]time.Time
	ended map[netip.Addr]time.Time
	dead  map[netip.Addr]bool
	late  time.Duration
}

// Roll starts three real proxies in the lab's namespaces and replaces the pods of a deployment
// under traffic.
func Roll(ctx context.Context, bed *testbed.Bed, r Rollout) (result Rolled, err error) {
	hosts := []string{netlab.Node1, netlab.Node2, netlab.Client}
	client, _ := netlab.HostByName(netlab.Client)
	if err := bed.API.PutNode(ctx, controlplane.Node(netlab.Client, client.V4, "10.1.3.0/24")); err != nil {
		return result, err
	}
	p := &pods{ready: map[netip.Addr]time.Time{}, ended: map[netip.Addr]time.Time{}, dead: map[netip.Addr]bool{}}
	listener, err := p.listen(ctx, bed)
	if err != nil {
		return result, err
	}
	defer listener.Close()
	deployment, err := p.deploy(ctx, bed, r.Endpoints)
	if err != nil {
		return result, err
	}
	var views []*view
	for _, host := range hosts {
		proxy, err := bed.StartProxyOn(host)
		if err != nil {
			return result, err
		}
		defer func() { err = errors.Join(err, proxy.Kill()) }()
		v := newView(host)
		monitor, _, err := bed.FollowRules(ctx, host, func(line string) { v.take(line, time.Now()) })
		if err != nil {
			return result, err
		}
		defer func() { err = errors.Join(err, monitor.Kill()) }()
		views = append(views, v)
	}
	for _, v := range views {
		if _, err := bed.Await(ctx, v.host, deployment.at, time.Minute, answer); err != nil {
			return result, err
		}
	}
	flow, end := context.WithCancel(ctx)
	defer end()
	var using sync.WaitGroup
	var mu sync.Mutex
	for _, v := range views {
		using.Go(func() {
			n, lost := use(flow, bed, v.host, deployment.at, r.Rest)
			mu.Lock()
			defer mu.Unlock()
			result.Connections, result.Lost = result.Connections+n, append(result.Lost, lost...)
		})
	}
	err = p.replace(ctx, bed, deployment, r)
	end()
	using.Wait()
	if err != nil {
		return result, err
	}
	result.Nodes, result.Late = len(views), p.late
	for _, v := range views {
		first, last, err := v.compare(ctx, p)
		if err != nil {
			return result, err
		}
		result.First, result.Last = append(result.First, first...), append(result.Last, last...)
	}
	slices.Sort(result.First)
	slices.Sort(result.Last)
	return result, nil
}

// answer is a living pod's answer, in the format of a responder of the lab.
const answer = "deployment"

// listen gives the sink all addresses of the deployment; it answers as long as a pod lives.
func (p *pods) listen(ctx context.Context, bed *testbed.Bed) (net.Listener, error) {
	sink, _ := netlab.HostByName(netlab.Sink)
	for _, c := range [][]string{
		{netlab.Sink, "ip", "route", "replace", "local", "100.64.0.0/10", "dev", "lo"},
		{netlab.Client, "ip", "route", "replace", "100.64.0.0/10", "via", sink.V4.String()},
	} {
		if _, err := bed.Command(ctx, c[0], c[1], c[2:]...); err != nil {
			return nil, err
		}
	}
	var listener net.Listener
	err := bed.Lab.Do(netlab.Sink, func() (err error) {
		listener, err = net.Listen("tcp4", fmt.Sprintf(":%d", testbed.PodPort))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen for the pods: %w", err)
	}
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go p.serve(c.(*net.TCPConn))
		}
	}()
	return listener, nil
}

// serve answers as the lab's responders do; a dead pod resets the connection.
func (p *pods) serve(c *net.TCPConn) {
	defer c.Close()
	now := time.Now()
	addr := c.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	p.mu.Lock()
	dead := p.dead[addr]
	if at, ended := p.ended[addr]; ended {
		p.late = max(p.late, now.Sub(at))
	}
	p.mu.Unlock()
	if dead {
		_ = c.SetLinger(0)
		return
	}
	_, _ = fmt.Fprintf(c, "%s %s %s\n", answer, c.RemoteAddr(), c.LocalAddr())
	_, _ = io.Copy(io.Discard, c)
}

// deployment is a Service and its slices.
type deployment struct {
	at     netip.AddrPort
	slices []*discoveryv1.EndpointSlice
}

func (p *pods) deploy(ctx context.Context, bed *testbed.Bed, endpoints int) (*deployment, error) {
	d := &deployment{}
	for i := range endpoints / perSlice {
		var addrs []netip.Addr
		for j := range perSlice {
			addrs = append(addrs, controlplane.LoadAddr(0, i*perSlice+j, 0))
		}
		slice := controlplane.Slice("deployment", testbed.PodPort, nil, addrs...)
		slice.Name = fmt.Sprintf("deployment-%03d", i)
		d.slices = append(d.slices, slice)
	}
	service := controlplane.Service("deployment", 80)
	if err := bed.API.Create(ctx, service, d.slices...); err != nil {
		return nil, err
	}
	addr, err := netip.ParseAddr(service.Spec.ClusterIP)
	d.at = netip.AddrPortFrom(addr, 80)
	return d, err
}

// replace replaces all pods, a step at a time: new ones are ready when old ones are marked, which
// die after the grace period.
func (p *pods) replace(ctx context.Context, bed *testbed.Bed, d *deployment, r Rollout) error {
	steps := r.Endpoints / perStep
	ticker := time.NewTicker(r.Over / time.Duration(steps))
	defer ticker.Stop()
	type death struct {
		slice *discoveryv1.EndpointSlice
		pods  []string
		at    time.Time
	}
	var dying []death
	bury := func(all bool) error {
		for len(dying) > 0 && (all || time.Now().After(dying[0].at)) {
			d := dying[0]
			dying = dying[1:]
			if err := sleep(ctx, time.Until(d.at)); err != nil {
				return err
			}
			p.kill(d.pods)
			d.slice.Endpoints = slices.DeleteFunc(d.slice.Endpoints, func(e discoveryv1.Endpoint) bool {
				return slices.Contains(d.pods, e.Addresses[0])
			})
			if err := bed.API.Update(ctx, d.slice); err != nil {
				return err
			}
		}
		return nil
	}
	for step := range steps {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		slice := d.slices[step%len(d.slices)]
		old := p.turn(slice, step, r.Endpoints)
		if err := bed.API.Update(ctx, slice); err != nil {
			return err
		}
		dying = append(dying, death{slice, old, time.Now().Add(r.Grace)})
		if err := bury(false); err != nil {
			return err
		}
	}
	return bury(true)
}

// turn marks a step's old pods of a slice as terminating, adds as many ready ones, and returns the
// old ones.
func (p *pods) turn(slice *discoveryv1.EndpointSlice, step, endpoints int) (old []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	yes, no := true, false
	var fresh []netip.Addr
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		addr := netip.MustParseAddr(e.Addresses[0])
		if _, made := p.ready[addr]; made || !*e.Conditions.Ready || len(old) == perStep {
			continue
		}
		e.Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
		p.ended[addr] = now
		old = append(old, e.Addresses[0])
		next := controlplane.LoadAddr(0, endpoints+step*perStep+len(fresh), 0)
		p.ready[next] = now
		fresh = append(fresh, next)
	}
	slice.Endpoints = append(slice.Endpoints, controlplane.Slice("", testbed.PodPort, nil, fresh...).Endpoints...)
	return old
}

func (p *pods) kill(addrs []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range addrs {
		p.dead[netip.MustParseAddr(a)] = true
	}
}

// use connects repeatedly from a host to the deployment until ctx ends.
func use(ctx context.Context, bed *testbed.Bed, host string, to netip.AddrPort, rest time.Duration) (
	connections int, lost []error,
) {
	for ; ctx.Err() == nil; connections++ {
		if _, err := bed.Ask(host, to, 5*time.Second); err != nil {
			lost = append(lost, fmt.Errorf("%s: %w", host, err))
		}
		_ = sleep(ctx, rest)
	}
	return connections, lost
}

// view is the state of a node's rules in the kernel.
type view struct {
	host string

	mu          sync.Mutex
	first, last map[netip.Addr]time.Time       // when a pod's address was added, and when it was removed last
	rules       map[string]map[netip.Addr]bool // the pods in the last rule of a chain that has pods
}

func newView(host string) *view {
	return &view{host: host, first: map[netip.Addr]time.Time{}, last: map[netip.Addr]time.Time{},
		rules: map[string]map[netip.Addr]bool{}}
}

// take notes a line of the monitor. Ours adds and deletes elements. Upstream replaces the rule of a
// Service that has all its pods; chains of pods that no rule uses any longer are deleted later.
func (v *view) take(line string, now time.Time) {
	fields := strings.SplitN(line, " ", 6) // verb, kind, family, table, name, content
	if len(fields) < 6 {
		return
	}
	has := podsIn(fields[5])
	v.mu.Lock()
	defer v.mu.Unlock()
	gone := map[netip.Addr]bool{}
	switch what := fields[0] + " " + fields[1]; {
	case what == "delete element":
		has, gone = gone, has
	case what == "add rule" && len(has) > 0:
		gone, v.rules[fields[4]] = v.rules[fields[4]], has
	case what != "add element":
		return
	}
	for addr := range gone {
		if !has[addr] {
			v.last[addr] = now
		}
	}
	for addr := range has {
		if v.first[addr].IsZero() {
			v.first[addr] = now
		}
	}
}

// podsIn returns the addresses of pods in a text, wherever they stand in a name.
func podsIn(text string) map[netip.Addr]bool {
	pods := map[netip.Addr]bool{}
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r != '.' && (r < '0' || r > '9') }) {
		if addr, err := netip.ParseAddr(word); err == nil && loadRange.Contains(addr) {
			pods[addr] = true
		}
	}
	return pods
}

// loadRange has the addresses of [controlplane.LoadAddr].
var loadRange = netip.MustParsePrefix("100.64.0.0/10")

// compare returns the delays between each pod's readiness and its address, and between its end and
// the removal, once all are complete.
func (v *view) compare(ctx context.Context, p *pods) (first, last []time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		v.mu.Lock()
		p.mu.Lock()
		first, last = behind(p.ready, v.first), behind(p.ended, v.last)
		missing := len(p.ready) + len(p.ended) - len(first) - len(last)
		p.mu.Unlock()
		v.mu.Unlock()
		if missing == 0 {
			return first, last, nil
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return nil, nil, fmt.Errorf("%s: nft monitor lacks %d changes of pods: %w", v.host, missing, err)
		}
	}
}

// behind returns the delay of each effect after its cause.
func behind(causes, effects map[netip.Addr]time.Time) (took []time.Duration) {
	for addr, at := range causes {
		if then := effects[addr]; then.After(at) {
			took = append(took, then.Sub(at))
		}
	}
	return took
}
