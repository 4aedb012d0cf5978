package userspace

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"kube-proxy/config/option"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/internal/relay"
	"kube-proxy/plane/userspace/redirect"
)

// Metrics of the mode's planes.
const (
	openConnections = "userspace_connections"
	connections     = "userspace_connections_total"
	refusals        = "userspace_refused_connections_total"
	dialFailures    = "userspace_dial_failures_total"
	retries         = "userspace_retried_connections_total"
	shortages       = "userspace_descriptor_shortages_total"
	bytesMoved      = "userspace_bytes_total"
	failingBackends = "userspace_failing_backends"
	openSessions    = "userspace_udp_sessions"
	sessions        = "userspace_udp_sessions_total"
	droppedPackets  = "userspace_udp_dropped_datagrams_total"
	entriesMetric   = "session_affinity_entries"
	limitMetric     = "session_affinity_entries_limit"
)

// Mode returns the mode userspace.
func Mode() mode.Mode {
	h := modeHost{map[lb.Family]string{}, sync.OnceValue(relay.ProcessGroups)}
	family, proto := []string{"ip_family"}, []string{"ip_family", "protocol"}
	return mode.Mode{
		Name: "userspace",

		Texts: mode.Texts{
			Doc: "connections end at the proxy, which opens others to the endpoints; packets are redirected to it " +
				"by rules of nftables or iptables, on Windows by the service addresses on an interface of the node",
			Caution: "Connections to endpoints originate on the node: its firewall and NetworkPolicies take them for " +
				"the node's own, so that clients reach node ports and pods that these deny them; " +
				"--userspace-fallback=false and --userspace-node-endpoints=false prevent that",
			Show: "nft list table ip kube-proxy-userspace",
		},

		Selection: mode.Selection{
			Unasked: "linux",
			Refuses: func(s mode.Settings) error {
				if *optionsOf(s.Blocks).UserspaceFallback {
					return nil
				}
				return errors.New("not used in place of another mode, because --userspace-fallback " +
					"(userspaceFallback) is false")
			},
			Annotated: true,
			Able:      able,
			// What the kernel may load while the first redirector is tried. Another one is tried
			// only if the first one is known to be unavailable.
			Modules: func(mode.Settings) []string { return []string{"nfnetlink", "nf_tables"} },
		},

		Config: mode.Config{
			Options: options,
			Block:   "iptables",
			Reads: []string{"iptables.masqueradeBit", "iptables.masqueradeAll", "iptables.syncPeriod",
				"iptables.minSyncPeriod", "portRange", "udpIdleTimeout", "userspace", "serviceMetrics"},
			LocalhostNodePorts: true,
		},

		Host: mode.Host{
			Sysctls: sysctls,
		},

		Planes: mode.Planes{
			New: h.open,
			Metrics: slices.Concat([]mode.Metric{
				{Row: "EXT", Name: openConnections, Kind: mode.Gauge, Labels: proto,
					Help: "Open connections, including those that wait for an endpoint"},
				{Row: "EXT", Name: connections, Kind: mode.Counter, Labels: proto, Help: "Accepted client connections"},
				{Row: "EXT", Name: refusals, Kind: mode.Counter, Labels: proto,
					Help: "Client connections that were reset because no endpoint was reachable or allowed"},
				{Row: "EXT", Name: dialFailures, Kind: mode.Counter, Labels: proto,
					Help: "Failed attempts to reach an endpoint"},
				{Row: "EXT", Name: retries, Kind: mode.Counter, Labels: proto,
					Help: "Client connections that tried another endpoint because one was unreachable"},
				{Row: "EXT", Name: shortages, Kind: mode.Counter, Labels: proto,
					Help: "Connections that waited or were refused for lack of a file descriptor"},
				{Row: "EXT", Name: bytesMoved, Kind: mode.Counter, Labels: []string{"ip_family", "protocol", "to"},
					Help: "Forwarded bytes, to endpoints and to clients"},
				{Row: "EXT", Name: failingBackends, Kind: mode.Gauge, Labels: family,
					Help: "Endpoints that were unreachable and are tried last for a while"},
				{Row: "EXT", Name: openSessions, Kind: mode.Gauge, Labels: family, Help: "Open UDP sessions"},
				{Row: "EXT", Name: sessions, Kind: mode.Counter, Labels: family, Help: "Started UDP sessions"},
				{Row: "EXT", Name: droppedPackets, Kind: mode.Counter, Labels: []string{"ip_family", "reason"},
					Help: "Datagrams that were not forwarded, by reason: no endpoint (no_backend), no socket " +
						"(no_socket), malformed, refused by the kernel (send_failed)"},
				{Name: mode.ServiceConnections},
				{Name: entriesMetric},
				{Name: limitMetric},
			}, mode.ConntrackMetrics),
			Weigh:      func(mode.Settings) func(lb.Size) int { return weigh },
			Terminates: true,
			DrainTimeout: func(all option.Blocks) time.Duration {
				return optionsOf(all).Userspace.DrainTimeout.Duration
			},
		},

		Objects: mode.Objects{
			Rules: "userspace",
			Remove: func(ctx context.Context, what mode.Removal) (mode.Report, error) {
				return redirect.Remove(ctx, what.Families, "")
			},
			RemoveStale: h.removeStale,
		},
	}
}

// modeHost is the state of this process for the mode.
type modeHost struct {
	// redirectors are the names of the redirectors of the planes.
	redirectors map[lb.Family]string
	// descriptors limits the descriptors of both families.
	descriptors func() *relay.Groups
}

// removeStale removes rules of a previous process with another redirector.
func (h modeHost) removeStale(ctx context.Context, what mode.Removal) (all mode.Report, err error) {
	for _, f := range what.Families {
		name, runs := h.redirectors[f]
		if !runs {
			continue
		}
		r, e := redirect.Remove(ctx, []lb.Family{f}, name)
		all.Removed, all.Left = append(all.Removed, r.Removed...), append(all.Left, r.Left...)
		err = errors.Join(err, e)
	}
	return all, err
}

// sysctls: after the proxy ends a connection, its port towards the endpoint stays in use for a
// minute. A few hundred connections a second would use up all ports. With tcp_tw_reuse a new
// connection may take one over after a second (RFC 6191).
func sysctls(mode.Settings) []mode.Sysctl {
	if runtime.GOOS != "linux" {
		return nil
	}
	return []mode.Sysctl{{Name: "net.ipv4.tcp_tw_reuse", Value: "1", Optional: true}}
}

// A plane is a mode.Drainer, so that connections can outlive the signal to end, and a
// mode.Answerer, so that conntrack keeps flows with answers under way.
var (
	_ mode.Drainer  = (*Plane)(nil)
	_ mode.Answerer = (*Plane)(nil)
)

// able checks that at least one redirector works.
func able(s mode.Settings) error {
	c, _, err := redirect.Choose(redirect.Config{Family: s.Family})
	if err != nil {
		return err
	}
	return c.Close()
}

func (h modeHost) open(s mode.Settings) (mode.Plane, error) {
	o := optionsOf(s.Blocks)
	first, last, _ := portRange(o.PortRange)
	mark := uint32(1) << s.MasqueradeBit
	c, passed, err := redirect.Choose(redirect.Config{Family: s.Family, Mark: mark,
		LocalhostNodePorts: s.LocalhostNodePorts, Writes: s.Writes})
	if err != nil {
		return nil, fmt.Errorf("userspace: %w", err)
	}
	p, err := New(Config{
		Family: s.Family, Redirector: c, Passed: passed, FirstPort: first, LastPort: last,
		Relay: relay.Config{Log: s.Log, Mark: mark, UDPIdle: o.UDPIdleTimeout.Duration, TCPIdle: s.TCPIdle,
			Grace: o.Userspace.TerminationGracePeriod.Duration},
		LocalhostNodePorts: s.LocalhostNodePorts, ExternalIPsBounded: s.ExternalIPsBounded,
		CountServices: s.CountServices, NoNodeEndpoints: !*o.Userspace.NodeEndpoints, Descriptors: h.descriptors(),
	})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	h.redirectors[s.Family] = c.Name()
	return p, nil
}

// Measure is part of mode.Plane.
func (p *Plane) Measure(emit mode.Emit) error {
	s, b := p.relay.Stats(), p.balance.Stats()
	for _, of := range []struct {
		proto string
		relay.Connections
	}{{"tcp", s.TCP}, {"sctp", s.SCTP}} {
		emit(openConnections, float64(of.Open), of.proto)
		emit(connections, float64(of.Accepted), of.proto)
		emit(refusals, float64(of.Refused), of.proto)
		emit(dialFailures, float64(of.DialsFailed), of.proto)
		emit(retries, float64(of.Retried), of.proto)
		emit(shortages, float64(of.OutOfDescriptors), of.proto)
		emit(bytesMoved, float64(of.ToBackends), of.proto, "endpoints")
		emit(bytesMoved, float64(of.ToClients), of.proto, "clients")
	}
	emit(bytesMoved, float64(s.UDP.ToBackends.Bytes), "udp", "endpoints")
	emit(bytesMoved, float64(s.UDP.ToClients.Bytes), "udp", "clients")
	emit(openSessions, float64(s.UDP.Open))
	emit(sessions, float64(s.UDP.Opened))
	emit(droppedPackets, float64(s.UDP.Dropped.NoBackend), "no_backend")
	emit(droppedPackets, float64(s.UDP.Dropped.NoSocket), "no_socket")
	emit(droppedPackets, float64(s.UDP.Dropped.Malformed), "malformed")
	emit(droppedPackets, float64(s.UDP.Dropped.SendFailed), "send_failed")
	emit(failingBackends, float64(b.Failing))
	emit(entriesMetric, float64(b.Places))
	emit(limitMetric, float64(b.Limit))
	return nil
}

// Memory of this process and the kernel for one of each, in objects of 128 bytes.
const (
	listenerObjects = 32 // its socket, descriptor and reader
	leadObjects     = 24 // the redirect of a frontend: rules, elements, or the address
	backendObjects  = 2
)

// weigh is the mode's Weigh. Each address has a listener if listeners are at service addresses,
// else each set of backends.
func weigh(s lb.Size) int {
	copies := s.Copies(lb.NodePortAddresses)
	return s.Ports*(copies+s.Sets()-1)*listenerObjects + s.Ports*copies*leadObjects +
		s.Sets()*s.Backends*backendObjects + 8*s.Ranged*(s.Ranges+1)
}
