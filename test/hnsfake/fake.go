package hnsfake

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"time"

	"kube-proxy/plane/hns"
)

// Call is a call to HNS.
type Call struct {
	// Name is the method, "CreateLoadBalancer".
	Name string
	// N counts all calls, from 1.
	N int
}

// Fault is how a call fails.
type Fault struct {
	// Code is the Windows code, or 0.
	Code uint32
	// Kind is an error of package hns; nil for the meaning of Code.
	Kind error
	// Done: the call takes effect, and fails.
	Done bool
	// Hangs: the call returns hns.ErrTimeout when its context ends.
	Hangs bool
	// Late, if not 0: the call returns hns.ErrTimeout at once, and takes effect after that many
	// further calls.
	Late int
}

// Everything are the features of the newest HNS, 15.5 and later.
var Everything = hns.Features{V2: true, DSR: true, SessionAffinity: true, IPv6DualStack: true, ModifyLoadbalancer: true,
	RemoteSubnet: true}

// Fake is an in-memory HNS, see [New]. It is safe for concurrent use.
//
// Ids are GUIDs in any case. Answers have an object's own id in upper case, and the endpoints of
// load balancers in lower case, so that callers who compare text fail.
type Fake struct {
	mu        sync.Mutex
	facts     Facts
	slow      bool
	deletes   int // deletes so far
	services  []netip.Prefix
	networks  map[string]hns.Network
	endpoints map[string]*endpoint
	at        map[place][]string // endpoints by address
	balancers map[string]*hns.LoadBalancer
	keys      map[Key]string // load balancers by key
	reserved  map[Key]bool
	foreign   map[string]bool // objects of other programs, by ID
	touched   []string        // calls that changed them
	made      int             // ids so far
	fault     func(Call) *Fault
	late      []late
	calls     int
	counts    map[string]int
}

// late is a returned call that is still to take effect.
type late struct {
	at int // takes effect before that call
	do func()
}

// place is an address in a network.
type place struct {
	network string
	addr    netip.Addr
}

type endpoint struct {
	hns.Endpoint
	addrs []netip.Addr
	uses  int // load balancers that use it
}

// Key identifies a load balancer. Addr is invalid for the node's own addresses.
type Key struct {
	Addr  netip.Addr
	Six   bool
	Port  uint16
	Proto uint32
}

// New returns the newest build of Windows with those features, without networks.
func New(f hns.Features) *Fake {
	facts := Assumed(Builds[len(Builds)-1])
	f.Build = facts.Build
	facts.Features = f
	return With(facts)
}

// With returns the build of Windows of a transcript, without networks.
func With(facts Facts) *Fake {
	return &Fake{
		facts: facts, networks: map[string]hns.Network{}, endpoints: map[string]*endpoint{}, at: map[place][]string{},
		balancers: map[string]*hns.LoadBalancer{}, keys: map[Key]string{}, reserved: map[Key]bool{},
		foreign: map[string]bool{}, counts: map[string]int{},
	}
}

// FailWith sets a function that returns how a call fails, nil for success.
func (f *Fake) FailWith(fault func(Call) *Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

// SetFeatures changes the version, as an update of Windows does.
func (f *Fake) SetFeatures(features hns.Features) {
	f.mu.Lock()
	defer f.mu.Unlock()
	features.Build = f.facts.Build
	f.facts.Features = features
}

// SetSlow makes calls take the time of the transcript, for tests with synctest.
func (f *Fake) SetSlow() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.slow = true
}

// wait waits for the time of a call; f.mu is not held.
func (f *Fake) wait() {
	f.mu.Lock()
	ms, slow := f.facts.CallMillis+f.facts.ObjectMillis*float64(len(f.endpoints)+len(f.balancers)), f.slow
	f.mu.Unlock()
	if slow {
		time.Sleep(time.Duration(ms * float64(time.Millisecond)))
	}
}

// Counts returns the calls since the last Counts, by method.
func (f *Fake) Counts() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.counts
	f.counts = map[string]int{}
	return out
}

// call makes one call: it fails as configured, counts, and runs do.
func call[T any](ctx context.Context, f *Fake, name, object string, do func() (T, *hns.Error)) (T, error) {
	var zero T
	f.mu.Lock()
	f.calls++
	c, fault := Call{name, f.calls}, f.fault
	f.mu.Unlock()
	refuse := func(err *hns.Error) error {
		err.Call, err.Object = name, object
		return err
	}
	if err := ctx.Err(); err != nil {
		return zero, refuse(&hns.Error{Kind: hns.ErrTimeout, Text: err.Error()})
	}
	var how *Fault
	if fault != nil {
		how = fault(c)
	}
	if how != nil && how.Hangs && !how.Done {
		<-ctx.Done()
	}
	f.wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.catchUp(f.calls)
	f.counts[name]++
	if how == nil || how.Done {
		got, err := do()
		if err != nil {
			return zero, refuse(err)
		}
		if how == nil {
			return got, nil
		}
	}
	switch {
	case how.Late > 0:
		f.late = append(f.late, late{f.calls + how.Late, func() { _, _ = do() }}) // the caller does not get the result
		return zero, refuse(&hns.Error{Kind: hns.ErrTimeout, Text: "the call is late"})
	case how.Hangs:
		return zero, refuse(&hns.Error{Kind: hns.ErrTimeout, Text: "the call hangs"})
	case how.Kind != nil:
		return zero, refuse(&hns.Error{Kind: how.Kind, Code: how.Code})
	}
	return zero, refuse(bad(how.Code, "injected"))
}

// catchUp runs the late calls that are due.
func (f *Fake) catchUp(calls int) {
	var rest []late
	for _, l := range f.late {
		if l.at > calls {
			rest = append(rest, l)
		} else {
			l.do()
		}
	}
	f.late = rest
}

// CatchUp runs all late calls.
func (f *Fake) CatchUp() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.catchUp(math.MaxInt)
}

func bad(code uint32, format string, args ...any) *hns.Error {
	return &hns.Error{Kind: hns.KindOf(code), Code: code, Text: fmt.Sprintf(format, args...)}
}

func (f *Fake) id() string {
	f.made++
	return fmt.Sprintf("%08X-0000-4000-ABCD-00155D%06X", 0xA0000000+f.made, f.made&0xffffff)
}

// Features is part of hns.HNS, as are the next methods.
func (f *Fake) Features(ctx context.Context) (hns.Features, error) {
	return call(ctx, f, "Features", "", func() (hns.Features, *hns.Error) { return f.facts.Features, nil })
}

// Networks compares names exactly.
func (f *Fake) Networks(ctx context.Context, name string) ([]hns.Network, error) {
	return call(ctx, f, "Networks", name, func() ([]hns.Network, *hns.Error) {
		var out []hns.Network
		for _, id := range slices.Sorted(maps.Keys(f.networks)) {
			if f.networks[id].Name == name {
				out = append(out, f.networks[id])
			}
		}
		return out, f.known()
	})
}

// known refuses calls of schema version 2 if the version does not support it.
func (f *Fake) known() *hns.Error {
	if !f.facts.Features.V2 {
		return bad(hns.CodeNotImplemented, "schema version 2")
	}
	return nil
}

// Endpoints of an unknown network are none, because HNS only filters.
func (f *Fake) Endpoints(ctx context.Context, network string) ([]hns.Endpoint, error) {
	return call(ctx, f, "Endpoints", network, func() ([]hns.Endpoint, *hns.Error) {
		var out []hns.Endpoint
		for _, id := range f.ofNetwork(network) {
			out = append(out, clone(f.endpoints[id].Endpoint))
		}
		return out, f.known()
	})
}

func (f *Fake) ofNetwork(network string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(f.endpoints)), func(id string) bool {
		return f.endpoints[id].HostComputeNetwork != strings.ToUpper(network)
	})
}

// EndpointsAt filters as in the transcript.
func (f *Fake) EndpointsAt(ctx context.Context, network, address string) ([]hns.Endpoint, error) {
	return call(ctx, f, "EndpointsAt", address, func() ([]hns.Endpoint, *hns.Error) {
		addr, err := netip.ParseAddr(address)
		if err != nil {
			return nil, bad(hns.CodeInvalidAddress, "%v", err)
		}
		ids := f.at[place{strings.ToUpper(network), addr}]
		switch f.facts.Filter {
		case "nothing":
			ids = nil
		case "everything":
			ids = f.ofNetwork(network)
		}
		var out []hns.Endpoint
		for _, id := range ids {
			out = append(out, clone(f.endpoints[id].Endpoint))
		}
		return out, f.known()
	})
}

// CreateEndpoint is part of hns.HNS.
func (f *Fake) CreateEndpoint(ctx context.Context, e hns.Endpoint) (hns.Endpoint, error) {
	return call(ctx, f, "CreateEndpoint", describe(e), func() (hns.Endpoint, *hns.Error) {
		if err := f.known(); err != nil {
			return hns.Endpoint{}, err
		}
		return f.createEndpoint(e)
	})
}

func describe(e hns.Endpoint) string {
	var addrs []string
	for _, c := range e.IPConfigurations {
		addrs = append(addrs, c.IPAddress)
	}
	return strings.Join(addrs, ",")
}

func (f *Fake) createEndpoint(e hns.Endpoint) (hns.Endpoint, *hns.Error) {
	e.HostComputeNetwork = strings.ToUpper(e.HostComputeNetwork)
	addrs, err := f.checkEndpoint(e)
	if err != nil {
		return hns.Endpoint{}, err
	}
	e = clone(e)
	e.ID = f.id()
	for _, t := range f.facts.PoliciesAdded {
		e.Policies = append(e.Policies, hns.Policy{Type: t, Settings: []byte("{}")})
	}
	f.endpoints[e.ID] = &endpoint{Endpoint: e, addrs: addrs}
	for _, a := range addrs {
		at := place{e.HostComputeNetwork, a}
		f.at[at] = append(f.at[at], e.ID)
	}
	return clone(e), nil
}

// deleteFails refuses one delete in so many without a reason.
func (f *Fake) deleteFails() *hns.Error {
	f.deletes++
	if f.facts.DeletesFail > 0 && f.deletes%f.facts.DeletesFail == 0 {
		return bad(0x80004005, "unspecified error")
	}
	return nil
}

// DeleteEndpoint is part of hns.HNS.
func (f *Fake) DeleteEndpoint(ctx context.Context, id string) error {
	id = strings.ToUpper(id)
	_, err := call(ctx, f, "DeleteEndpoint", id, func() (struct{}, *hns.Error) {
		e := f.endpoints[id]
		switch {
		case e == nil:
			return struct{}{}, bad(hns.CodeEndpointNotFound, "no endpoint has this ID")
		case e.uses > 0:
			return struct{}{}, bad(hns.CodeHasReferences, "%d load balancers send to it", e.uses)
		}
		if err := f.deleteFails(); err != nil {
			return struct{}{}, err
		}
		f.touch("DeleteEndpoint", id)
		f.dropEndpoint(id)
		return struct{}{}, nil
	})
	return err
}

func (f *Fake) dropEndpoint(id string) {
	e := f.endpoints[id]
	for _, a := range e.addrs {
		at := place{e.HostComputeNetwork, a}
		f.at[at] = slices.DeleteFunc(f.at[at], func(other string) bool { return other == id })
	}
	delete(f.endpoints, id)
}

// LoadBalancers is part of hns.HNS.
func (f *Fake) LoadBalancers(ctx context.Context) ([]hns.LoadBalancer, error) {
	return call(ctx, f, "LoadBalancers", "", func() ([]hns.LoadBalancer, *hns.Error) {
		var out []hns.LoadBalancer
		for _, id := range slices.Sorted(maps.Keys(f.balancers)) {
			out = append(out, reported(*f.balancers[id]))
		}
		return out, f.known()
	})
}

// CreateLoadBalancer is part of hns.HNS.
func (f *Fake) CreateLoadBalancer(ctx context.Context, l hns.LoadBalancer) (hns.LoadBalancer, error) {
	return call(ctx, f, "CreateLoadBalancer", describeBalancer(l), func() (hns.LoadBalancer, *hns.Error) {
		if err := f.known(); err != nil {
			return hns.LoadBalancer{}, err
		}
		return f.createBalancer(l)
	})
}

func (f *Fake) createBalancer(l hns.LoadBalancer) (hns.LoadBalancer, *hns.Error) {
	if l.ID != "" {
		return l, bad(hns.CodeInvalidPolicy, "ID %s: HNS makes the IDs", l.ID)
	}
	l = noticed(l)
	keys, err := f.checkBalancer(l)
	if err != nil {
		return l, err
	}
	for _, k := range keys {
		if other, ok := f.keys[k]; ok {
			return l, bad(codeOf(k), "load balancer %s has it", other)
		}
		if f.portTaken(k) {
			return l, bad(hns.CodePortExists, "another program of the node has the port")
		}
	}
	l.ID = f.id()
	f.balancers[l.ID] = &l
	for _, k := range keys {
		f.keys[k] = l.ID
	}
	f.use(l.HostComputeEndpoints, 1)
	return reported(l), nil
}

// portTaken reports whether a program listens on the port, or the dynamic range has it.
func (f *Fake) portTaken(k Key) bool {
	r := f.facts.ReservedPorts
	if !k.Addr.IsValid() {
		return f.reserved[k] || r[0] <= k.Port && k.Port <= r[1]
	}
	k.Addr = netip.Addr{}
	return f.facts.ListenerConflict && f.reserved[k]
}

// codeOf is the code for a used key; both were seen (kubernetes/kubernetes#139519, #137530).
func codeOf(k Key) uint32 {
	if k.Addr.IsValid() {
		return hns.CodeAlreadyExists
	}
	return hns.CodePortExists
}

func (f *Fake) use(endpoints []string, n int) {
	for _, id := range endpoints {
		f.endpoints[id].uses += n
	}
}

func describeBalancer(l hns.LoadBalancer) string {
	s := strings.Join(l.FrontendVIPs, ",")
	for _, m := range l.PortMappings {
		s += fmt.Sprintf(":%d/%d", m.ExternalPort, m.Protocol)
	}
	return s
}

// ModifyLoadBalancer is part of hns.HNS.
func (f *Fake) ModifyLoadBalancer(ctx context.Context, l hns.LoadBalancer) (hns.LoadBalancer, error) {
	return call(ctx, f, "ModifyLoadBalancer", l.ID, func() (hns.LoadBalancer, *hns.Error) {
		if !f.facts.Features.ModifyLoadbalancer {
			return l, bad(hns.CodeNotImplemented, "this version cannot modify load balancers")
		}
		l := noticed(l)
		old := f.balancers[l.ID]
		if old == nil {
			return l, bad(hns.CodeElementNotFound, "no load balancer has this ID")
		}
		if _, err := f.checkBalancer(l); err != nil {
			return l, err
		}
		// Undocumented; the test of hnslib (TestCreateUpdateDeleteLoadBalancer) changes endpoints.
		if !sameBut(*old, l) {
			return l, bad(hns.CodeInvalidPolicy, "only the endpoints of a load balancer may change in place")
		}
		f.touch("ModifyLoadBalancer", l.ID)
		f.use(old.HostComputeEndpoints, -1)
		f.use(l.HostComputeEndpoints, 1)
		old.HostComputeEndpoints = slices.Clone(l.HostComputeEndpoints)
		return reported(*old), nil
	})
}

// sameBut reports whether two load balancers are equal but for their endpoints.
func sameBut(a, b hns.LoadBalancer) bool {
	return a.SourceVIP == b.SourceVIP && a.Flags == b.Flags && slices.Equal(a.FrontendVIPs, b.FrontendVIPs) &&
		slices.Equal(a.PortMappings, b.PortMappings)
}

// DeleteLoadBalancer is part of hns.HNS.
func (f *Fake) DeleteLoadBalancer(ctx context.Context, id string) error {
	id = strings.ToUpper(id)
	_, err := call(ctx, f, "DeleteLoadBalancer", id, func() (struct{}, *hns.Error) {
		if f.balancers[id] == nil {
			return struct{}{}, bad(hns.CodeElementNotFound, "no load balancer has this ID")
		}
		if err := f.deleteFails(); err != nil {
			return struct{}{}, err
		}
		f.touch("DeleteLoadBalancer", id)
		f.dropBalancer(id)
		return struct{}{}, nil
	})
	return err
}

func (f *Fake) dropBalancer(id string) {
	l := f.balancers[id]
	f.use(l.HostComputeEndpoints, -1)
	for _, k := range keysOf(*l) {
		delete(f.keys, k)
	}
	delete(f.balancers, id)
}

func (f *Fake) touch(call, id string) {
	if f.foreign[id] {
		f.touched = append(f.touched, call+" "+id)
	}
}

func clone(e hns.Endpoint) hns.Endpoint {
	e.IPConfigurations = slices.Clone(e.IPConfigurations)
	e.Policies = slices.Clone(e.Policies)
	for i := range e.Policies {
		e.Policies[i].Settings = slices.Clone(e.Policies[i].Settings)
	}
	return e
}

// noticed converts a stored load balancer to the case of answers.
func noticed(l hns.LoadBalancer) hns.LoadBalancer { return cased(l, strings.ToUpper) }

func reported(l hns.LoadBalancer) hns.LoadBalancer { return cased(l, strings.ToLower) }

func cased(l hns.LoadBalancer, endpoints func(string) string) hns.LoadBalancer {
	l = cloneBalancer(l)
	l.ID = strings.ToUpper(l.ID)
	for i, id := range l.HostComputeEndpoints {
		l.HostComputeEndpoints[i] = endpoints(id)
	}
	return l
}

func cloneBalancer(l hns.LoadBalancer) hns.LoadBalancer {
	l.HostComputeEndpoints = slices.Clone(l.HostComputeEndpoints)
	l.FrontendVIPs = slices.Clone(l.FrontendVIPs)
	l.PortMappings = slices.Clone(l.PortMappings)
	return l
}
