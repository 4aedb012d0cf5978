package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"kube-proxy/config"
	"kube-proxy/debug/api"
	"kube-proxy/debug/inspect"
	"kube-proxy/event"
	"kube-proxy/health"
	"kube-proxy/internal/sockets"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/policy"
	"kube-proxy/status"
)

// servers are the HTTP servers, and the watchers of Services' ports.
type servers struct {
	health   *health.Server
	services *health.Services
	metrics  *status.Metrics
	status   *status.Server
	admin    *api.Server
	sockets  *sockets.Watcher // nil where the kernel does not report sockets
}

// newMetrics makes the counters of the families. It comes after the choice of the mode, and before
// the families.
func (p *proxy) newMetrics() {
	cfg := p.config()
	mc := status.MetricsConfig{
		Modes: p.modes, Mode: p.choice.Mode.Name, Configured: p.choice.Configured, Version: cfg.Version,
		ShowHidden: cfg.Servers.ShowHiddenMetricsFor != "",
		Changes: func() (uint64, uint64) {
			c := p.store.Changes()
			return c.Services, c.Slices
		},
		EventsDropped: func() uint64 { return p.dropped() },
		Overridden:    func() bool { return p.overridden.Load() != nil },
		Connected:     func() bool { return p.connected() },
		NodeProblems:  p.countNodeProblems,
		Conntrack:     conntrackUse,
		Snapshot:      p.snapshotStats,
		NotOK:         p.notOK,
		Failover:      p.failoverCounts,
		Refused:       func(fam string) int { return int(p.refused.of(fam).Load()) },
		PortsTaken: func() (int, int) {
			if p.servers.sockets == nil {
				return 0, 0
			}
			return p.servers.sockets.Taken()
		},
	}
	mc.Reason = p.reason()
	for _, g := range cfg.GateStages() {
		mc.Gates = append(mc.Gates, status.Gate(g))
	}
	p.servers.metrics = status.NewMetrics(mc)
	p.servers.services = health.NewServices(health.ServicesConfig{
		Healthy:   func() bool { return p.servers.health.Healthy() && p.notReady() == "" },
		Addresses: p.healthCheckAddrs,
		OnListenFailed: func(service string, port uint16, err error) {
			p.publish(event.FailedToStartServiceHealthcheck(service, cfg.NodeName, port, err))
		},
		Log: p.log,
	})
	var err error
	p.servers.sockets, err = newSockets(sockets.Config{Collides: p.collides, Serves: p.answersNodePorts,
		Local: func() ([]netip.Addr, error) { return localAddrs("") }, Log: p.log})
	if err != nil {
		p.log.Warn("Cannot detect port conflicts between Services and programs on this node", "err", err)
	}
}

// notOK reports the states of Services to the metrics.
func (p *proxy) notOK(most int, each func(namespace, state, severity string, n int)) {
	p.inspector.Tally(most, func(namespace string, s inspect.State, v inspect.Severity, n int) {
		each(namespace, string(s), string(v), n)
	})
}

// overrides is the reason why the node is not ready though its rules are in force: programs of
// another mode decide first. Connections from other hosts meet the rules, so health checks of load
// balancers do not fail.
func (p *proxy) overrides() string {
	if why := p.overridden.Load(); why != nil {
		return *why
	}
	return ""
}

// reason is why the mode that runs is not the configured one or the default; "" if it is.
func (p *proxy) reason() string {
	var steps []string
	if p.choice.Annotated != "" {
		steps = append(steps, "the Node's annotation "+mode.Annotation+" names the mode "+p.choice.Annotated)
	}
	for _, s := range p.choice.Steps {
		steps = append(steps, s.String())
	}
	return strings.Join(steps, "; ")
}

// newServers makes the servers for the families.
func (p *proxy) newServers() {
	cfg := p.config()
	hc := health.Config{
		Families:     map[lb.Family]func() health.State{},
		SyncPeriod:   func() time.Duration { return p.config().Resolved.Tables.SyncPeriod },
		NodeEligible: p.nodeEligible,
		NotReady:     func() string { return cmp.Or(p.notReady(), p.overrides()) },
		Waiting:      func() (time.Time, string) { return p.writer.waiting() },
		Answered:     p.servers.metrics.HealthAnswered,
		OnListenFailed: func(at netip.AddrPort, err error) {
			if p.config().Servers.HardFail && !p.reloaded.Load() { // a reload does not end the process
				p.publish(event.FailedToStartProxierHealthcheck(cfg.NodeName, at.String(), err))
			}
		},
		Log: p.log,
	}
	for _, f := range p.families {
		hc.Families[f.name] = func() health.State {
			s := f.engine.Stats()
			return health.State{QueuedSince: s.QueuedSince, LastSuccess: s.LastSuccess, Begun: s.Begun}
		}
		p.servers.metrics.AddFamily(f.name.String(), f.engine.Stats, func(emit mode.Emit) { p.measure(f, emit) })
	}
	p.servers.health = health.New(hc)
	p.inspector = p.newInspector()
	p.servers.admin = api.NewServer(api.NewHandler(p.inspector), cfg.Servers.AdminSocket, p.log)
	var off []string
	for gate, path := range map[string]string{"ComponentFlagz": "/flagz", "ComponentStatusz": "/statusz",
		"ComponentSLIs": "/metrics/slis"} {
		if on, known := cfg.Gates[gate]; known && !on {
			off = append(off, path)
		}
	}
	p.servers.status = status.NewServer(status.ServerConfig{
		Off: off, Machine: map[string]string{"Machine id": cfg.MachineID, "Boot id": cfg.BootID},
		Metrics: p.servers.metrics, Mode: p.choice.Mode.Name, Version: cfg.Version, Health: p.healthToo,
		Config:    func() (any, error) { return p.config().Configz() },
		Flags:     p.flagz,
		Verbosity: func() int { return int(p.verbosity.Load()) }, SetVerbosity: p.setVerbosity,
		Node:      cfg.NodeName,
		Profiling: cfg.Servers.Profiling, Addr: cfg.Servers.Metrics, HardFail: cfg.Servers.HardFail, Log: p.log,
	})
}

// listenHealth opens the listener of the health server. Its address may end the process only if we
// have the writer lock: before, it belongs to the proxy that has the lock.
func (p *proxy) listenHealth(ours bool) {
	cfg := p.config()
	p.servers.health.Listen(healthAddr(cfg.Config), ours && cfg.Servers.HardFail)
}

// runHealth serves until ctx ends. An error is that of an address that cannot be bound, if that is
// fatal.
func (p *proxy) runHealth(ctx context.Context, fail func(error)) {
	if err := p.servers.health.Run(ctx); err != nil {
		fail(fmt.Errorf("%s: %w", p.config().Name("healthzBindAddress"), err))
	}
}

// runServers runs all others, like runHealth.
func (p *proxy) runServers(ctx context.Context, fail func(error)) {
	cfg := p.config()
	var running sync.WaitGroup
	running.Go(func() {
		if err := p.servers.status.Run(ctx); err != nil {
			p.publish(event.FailedToStartMetricServer(cfg.NodeName, cfg.Servers.Metrics.String(), err))
			fail(fmt.Errorf("%s: %w", cfg.Name("metricsBindAddress"), err))
		}
	})
	running.Go(func() { p.servers.services.Run(ctx) })
	running.Go(func() { p.servers.admin.Run(ctx) })
	if p.servers.sockets != nil {
		running.Go(func() { p.servers.sockets.Run(ctx) })
	}
	running.Wait()
}

// healthAddr returns the listen address of the health server: none if the metrics server has the
// same address. v1.5 had only one server, on the current port of metrics, and command lines of that
// time have the port for both (G1).
func healthAddr(cfg *config.Config) netip.AddrPort {
	if cfg.Servers.Healthz == cfg.Servers.Metrics {
		return netip.AddrPort{}
	}
	return cfg.Servers.Healthz
}

// healthToo is the health server where the metrics server has to answer for it.
func (p *proxy) healthToo() http.Handler {
	if cfg := p.config(); healthAddr(cfg.Config) == cfg.Servers.Healthz {
		return nil
	}
	return p.servers.health
}

// nodeEligible reports whether load balancers may use this node (HT-06). A folder of manifests need
// not have a Node.
func (p *proxy) nodeEligible() (known, eligible bool) {
	known, eligible = p.store.NodeEligible()
	if p.notReady() != "" {
		return false, false
	}
	if !known && p.config().Manifests != "" {
		return true, true
	}
	return known, eligible
}

// nodePortPrefixes are the prefixes of addresses that answer NodePorts, of all families that are
// served.
func (p *proxy) nodePortPrefixes() []netip.Prefix {
	var prefixes []netip.Prefix
	facts := p.store.Facts()
	for _, f := range p.families {
		prefixes = append(prefixes, policy.ResolveNode(facts, p.settings(f.name)).NodePorts...)
	}
	return prefixes
}

// healthCheckAddrs returns the addresses of this machine on which healthCheckNodePorts answer
// (HT-14).
func (p *proxy) healthCheckAddrs() []netip.Addr {
	local, err := localAddrs("")
	if err != nil {
		p.log.Error("Failed to list local addresses; health check ports listen on wildcard addresses only", "err", err)
	}
	return health.ListenAddrs(p.nodePortPrefixes(), local)
}

// localAddrs returns the addresses of this machine, except those of one device; "" for all.
func localAddrs(but string) ([]netip.Addr, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list this machine's addresses: %w", err)
	}
	var spared []net.Addr
	if device, err := net.InterfaceByName(but); but != "" && err == nil {
		spared, err = device.Addrs()
		if err != nil {
			return nil, fmt.Errorf("list the addresses of %s: %w", but, err)
		}
	}
	var local []netip.Addr
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok || slices.ContainsFunc(spared, func(s net.Addr) bool { return s.String() == a.String() }) {
			continue
		}
		if addr, ok := netip.AddrFromSlice(n.IP); ok {
			local = append(local, addr.Unmap())
		}
	}
	return local, nil
}

// answersNodePorts reports whether NodePorts answer at an address of this machine. In some modes
// those of the loopback interface may.
func (p *proxy) answersNodePorts(a netip.Addr) bool {
	switch m := p.config().Resolved; {
	case m.LocalhostProxy && a == lb.FamilyOf(a).Loopback():
		return true // answered, or rejected
	case a.IsLoopback() && !(a.Is4() && m.LocalhostNodePorts):
		return false
	}
	return lb.Within(p.nodePortPrefixes(), a)
}

// collides reports a port of this node that a Service takes from a program or from another Service
// (PN-60).
func (p *proxy) collides(c sockets.Collision) {
	if !p.collisions.Allow(event.Service(c.Service).Namespace) {
		return
	}
	node := p.config().NodeName
	at, m := c.Listener.Addr(), p.config().Resolved
	kept := m.LocalhostProxy && c.Key.Proto == lb.TCP && policy.Localhost(m.NodePorts.Prefixes,
		lb.FamilyOf(at)) == at
	e := event.NodePortInUse(c.Service, node, c.Key.Port, c.Key.Proto.String(), c.Listener, kept)
	if !c.Key.IsNodePort() {
		e = event.NodeAddressTaken(c.Service, node, c.Key.String(), c.Listener, c.NodePort, c.More)
	}
	p.log.Warn("Service port is in use on this node", "service", c.Service, "note", e.Note)
	p.publish(e)
}

// flagz returns the flags of the command line with their values.
func (p *proxy) flagz() map[string]string {
	flags := map[string]string{}
	for _, line := range p.config().Flags {
		name, value, _ := strings.Cut(strings.TrimPrefix(line, "FLAG: --"), "=")
		flags[name] = strings.Trim(value, `"`)
	}
	return flags
}

// setVerbosity changes how much is logged.
func (p *proxy) setVerbosity(v int) {
	p.verbosity.Store(int64(v))
	p.logs.SetVerbosity(v)
}
