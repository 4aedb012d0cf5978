package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"kube-proxy/event"
	"kube-proxy/internal/kernel"
	"kube-proxy/internal/netlink"
	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane"
	"kube-proxy/plane/internal/unanswered"
)

// Mode returns the mode ipvs.
func Mode() mode.Mode { return ModeIn(map[lb.Family]xtables.Backend{}) }

// ModeIn returns the mode for planes that already keep their chains with these back ends.
func ModeIn(backends map[lb.Family]xtables.Backend) mode.Mode {
	h := &host{backends: backends}
	m := facts()
	m.Sysctls, m.Load = sysctls, kernel.LoadIPVS
	m.Able, m.Modules, m.New, m.Render = able, modules, h.open, render
	m.Remove, m.RemoveStale = remove, h.removeStale
	return m
}

// host has the state that the planes of this process share.
type host struct {
	// backends are the back ends with which planes keep their chains.
	backends map[lb.Family]xtables.Backend
	// timed: the timeouts of the namespace are set. said: the deprecation is reported.
	timed, said sync.Once
}

// open creates the plane of a family, and opens its connections.
func (h *host) open(s mode.Settings) (_ mode.Plane, err error) {
	p := &modePlane{Watch: unanswered.New(unanswered.Config{Family: s.Family, LateTranslation: true, Writes: s.Writes,
		Log: s.Log})}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("ipvs: %w", err), p.opened.Close())
		}
	}()
	asked := optionsOf(s.Blocks)
	mark, err := plane.MasqueradeMark(&s.MasqueradeBit)
	if err != nil {
		return nil, err
	}
	p.ipvs, err = ipvs.Open()
	if err != nil {
		return nil, unsupported(err, ipvs.ErrNoIPVS)
	}
	p.opened = append(p.opened, p.ipvs)
	if err := checkScheduler(context.Background(), p.ipvs, s.Family, asked.IPVS.Scheduler); err != nil {
		return nil, err
	}
	sticky := stickyScheduler
	if there, err := hasScheduler(context.Background(), p.ipvs, s.Family, sticky); err != nil || !there {
		sticky = "sh" // a kernel before 4.18
	}
	p.sets, err = ipset.Open()
	if err != nil {
		return nil, unsupported(err, ipset.ErrUnsupported)
	}
	p.opened = append(p.opened, p.sets)
	device, err := openDevice(s.Family)
	if err != nil {
		return nil, err
	}
	p.opened = append(p.opened, device)
	p.chains, err = newChains(nodeFacts{family: s.Family, masq: mark, excluded: asked.excluded()}, xtables.Auto,
		s.Writes)
	if err != nil {
		return nil, err
	}
	p.opened = append(p.opened, p.chains)
	counters, err := p.openCounters(s.CountServices)
	if err != nil {
		return nil, err
	}
	h.timed.Do(func() { err = setTimeouts(context.Background(), p.ipvs, s) })
	if err != nil {
		return nil, err
	}
	timeouts, err := p.ipvs.Timeouts(context.Background())
	if err != nil {
		return nil, err
	}
	p.Plane = New(Config{
		Family: s.Family, Masquerade: mark, Scheduler: asked.IPVS.Scheduler, Sticky: sticky, Idle: timeouts.TCP,
		ExcludeCIDRs: asked.excluded(), IPVS: p.ipvs, Sets: p.sets, Device: device, Chains: p.chains,
		Counters: counters,
		View:     func() (*View, error) { return openView(s.Family, ipvs.Open, p.chains.Held) },
	})
	h.backends[s.Family] = p.chains.Backend
	h.said.Do(func() {
		p.first = []mode.Notice{deprecated}
		if s.CountServices && !counting() {
			p.first = append(p.first, notCounting)
		}
	})
	return p, nil
}

// openCounters opens the connection for counters, or returns nil.
func (p *modePlane) openCounters(asked bool) (Counters, error) {
	if !asked {
		return nil, nil
	}
	conn, err := ipvs.Open()
	if err != nil {
		return nil, err
	}
	p.opened = append(p.opened, conn)
	return conn, nil
}

// deprecated is reported once (EV-07).
var deprecated = mode.Notice{Text: "Mode ipvs is deprecated upstream, in favour of nftables; this kube-proxy " +
	"continues to support it", Event: event.IPVSDeprecated}

// notCounting is reported once.
var notCounting = mode.Notice{Text: "Connections are not counted by Service (--service-metrics): the kernel does not " +
	"publish its counters while net.ipv4.vs.run_estimation is 0; set it to 1"}

// setTimeouts sets the configured timeouts (CF-29). Both families share them.
func setTimeouts(ctx context.Context, c *ipvs.Conn, s mode.Settings) error {
	want := timeouts(optionsOf(s.Blocks))
	if want == (ipvs.Timeouts{}) {
		return nil
	}
	have, err := c.Timeouts(ctx)
	if err != nil {
		return err
	}
	if err := c.SetTimeouts(ctx, want); err != nil {
		return fmt.Errorf("%w; configured by --ipvs-tcp-timeout, --ipvs-tcpfin-timeout, --ipvs-udp-timeout "+
			"(ipvs.tcpTimeout, ipvs.tcpFinTimeout, ipvs.udpTimeout)", err)
	}
	now := ipvs.Timeouts{TCP: cmp.Or(want.TCP, have.TCP), TCPFin: cmp.Or(want.TCPFin, have.TCPFin),
		UDP: cmp.Or(want.UDP, have.UDP)}
	if s.Log != nil && now != have {
		s.Log.Info("Set the IPVS timeouts", "tcp", now.TCP, "tcpFin", now.TCPFin, "udp", now.UDP,
			"before", fmt.Sprintf("%s, %s, %s", have.TCP, have.TCPFin, have.UDP))
	}
	return nil
}

// timeouts returns the configured timeouts, rounded up to whole seconds.
func timeouts(o *Options) ipvs.Timeouts {
	seconds := func(d time.Duration) time.Duration { return (d + time.Second - 1).Truncate(time.Second) }
	v := o.IPVS
	return ipvs.Timeouts{TCP: seconds(v.TCPTimeout.Duration), TCPFin: seconds(v.TCPFinTimeout.Duration),
		UDP: seconds(v.UDPTimeout.Duration)}
}

// removeStale removes chains of the iptables back end that a family does not use. The plane takes
// over those of its own.
func (h *host) removeStale(ctx context.Context, what mode.Removal) (mode.Report, error) {
	return xtables.RemoveBeside(ctx, what, func(f lb.Family) (xtables.Backend, *xtables.Layout) {
		keep := chainLayout(f, xtables.Auto, nil)
		return h.backends[f], &keep
	})
}

// vsConntrack makes IPVS leave connections in conntrack too, which masquerades them.
const vsConntrack = "net.ipv4.vs.conntrack"

// sysctls are the settings of DP-30.
func sysctls(s mode.Settings) []mode.Sysctl {
	all := []mode.Sysctl{
		{Name: vsConntrack, Value: "1"},
		// Otherwise a new connection from a recently used port would wait for a second. Later
		// kernels fixed the cause, and earlier ones ignore the setting.
		{Name: "net.ipv4.vs.conn_reuse_mode", Value: "0", From: [2]int{4, 1}, Before: [2]int{5, 9}},
		{Name: "net.ipv4.vs.expire_nodest_conn", Value: "1"},
		{Name: "net.ipv4.vs.expire_quiescent_template", Value: "1", Optional: true},
		{Name: "net.ipv4.ip_forward", Value: "1"},
	}
	if optionsOf(s.Blocks).IPVS.StrictARP {
		const asks = "--ipvs-strict-arp (ipvs.strictARP)"
		all = append(all, mode.Sysctl{Name: "net.ipv4.conf.all.arp_ignore", Value: "1", Asks: asks},
			mode.Sysctl{Name: "net.ipv4.conf.all.arp_announce", Value: "2", Asks: asks})
	}
	return all
}

var _ mode.Tracer = (*modePlane)(nil)

// modePlane is a plane with its connections.
type modePlane struct {
	*Plane
	*unanswered.Watch
	ipvs   *ipvs.Conn
	sets   *ipset.Conn
	chains *chainManager
	opened closers
	// first are notices that do not come from a write.
	first []mode.Notice
	// sent holds the totals at the end of the last write.
	sent atomic.Pointer[sent]
}

// sent counts messages to the kernel.
type sent struct {
	ipvs            netlink.Counters
	sets            netlink.Counters
	restoreFailures uint64
}

// closers are closed in reverse order.
type closers []io.Closer

// Close closes all of them.
func (c closers) Close() (err error) {
	for _, each := range slices.Backward(c) {
		err = errors.Join(err, each.Close())
	}
	return err
}

// Notices implements mode.Plane.
func (p *modePlane) Notices() []mode.Notice {
	p.sent.Store(&sent{p.ipvs.Counters(), p.sets.Counters(), p.chains.Stats().Failures})
	all := append(p.first, p.Plane.Notices()...)
	p.first = nil
	return all
}

// Measure implements mode.Plane with the values at the end of the last write.
func (p *modePlane) Measure(emit mode.Emit) error {
	s := p.Stats()
	emit(virtualServers, float64(s.VirtualServers))
	emit(drainingServers, float64(s.Draining))
	emit(setMembers, float64(s.Members))
	emit(serviceAddresses, float64(s.Addresses))
	if sent := p.sent.Load(); sent != nil {
		emit(messages, float64(sent.ipvs.Messages), "ipvs")
		emit(messages, float64(sent.sets.Messages), "ipset")
		emit(messageBytes, float64(sent.ipvs.Bytes), "ipvs")
		emit(messageBytes, float64(sent.sets.Bytes), "ipset")
		emit(restoreFailures, float64(sent.restoreFailures))
	}
	return nil
}

// Close releases the resources of this process. The kernel keeps the objects.
func (p *modePlane) Close() error { return errors.Join(p.Plane.Close(), p.opened.Close()) }
