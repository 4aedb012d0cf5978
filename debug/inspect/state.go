package inspect

import (
	"cmp"
	"fmt"

	"kube-proxy/lb"
)

// State is the state of a Service on this node.
type State string

// The states.
const (
	// Failing: the kernel refuses a frontend, or its frontends cannot be computed.
	Failing State = "failing"
	// NoBackends: a port has no usable endpoint and is rejected.
	NoBackends State = "no-backends"
	// Refused: an address or an endpoint is not served: it is not allowed, or there are too many.
	Refused State = "refused"
	// Contested: another Service has one of its addresses.
	Contested State = "conflict"
	// Terminating: no endpoint is ready, and terminating ones still serve.
	Terminating State = "terminating"
	// NoLocalBackends: a traffic policy is Local, and all usable endpoints are on other nodes.
	NoLocalBackends State = "no-local-backends"
	// Waiting: the proxy has not written its frontends yet.
	Waiting State = "waiting"
	// NotProxied: it has no address (headless, ExternalName), so the proxy does nothing for it.
	NotProxied State = "not-proxied"
	// OK: all is as it should be.
	OK State = "ok"
)

// Severity is the urgency for the operator. Commands, page and metrics use it.
type Severity string

// The severities.
const (
	// Fine: no action is needed.
	Fine Severity = "ok"
	// Info: clients may notice, but the configuration requests it, for example an external traffic
	// policy of Local.
	Info Severity = "info"
	// Warning: clients are not served as expected, because of the objects or the node.
	Warning Severity = "warning"
	// Error: the node does not do what the objects specify.
	Error Severity = "error"
)

// The order of severities, and of states.
var (
	ranks   = map[Severity]int{Fine: 0, Info: 1, Warning: 2, Error: 3}
	gravity = map[State]int{
		Failing: 8, NoBackends: 7, Refused: 6, Contested: 5, Terminating: 4, NoLocalBackends: 3, Waiting: 2,
		NotProxied: 1, OK: 0,
	}
)

// severities maps states to severities. NoLocalBackends and Terminating are Info if they concern
// outside traffic alone.
var severities = map[State]Severity{
	Failing: Error, NoBackends: Warning, Refused: Warning,
	Contested: Warning, Terminating: Warning, NoLocalBackends: Warning,
	Waiting: Info, NotProxied: Fine, OK: Fine,
}

// Bad reports whether the severity is one that needs attention: a Warning or an Error.
func (s Severity) Bad() bool { return ranks[s] >= ranks[Warning] }

// Compare orders severities, the least first.
func (s Severity) Compare(o Severity) int { return ranks[s] - ranks[o] }

// compare orders states, the least grave first; the severity counts first.
func (s *Service) compare(state State, severity Severity) int {
	return cmp.Or(s.Severity.Compare(severity), gravity[s.State]-gravity[state])
}

// judged gathers the gravest state of a Service.
type judged struct{ *Service }

// is records that the Service is in a state.
func (j judged) is(s State, format string, args ...any) { j.as(s, severities[s], format, args...) }

func (j judged) as(s State, v Severity, format string, args ...any) {
	if j.compare(s, v) < 0 {
		j.State, j.Severity, j.Why = s, v, fmt.Sprintf(format, args...)
	}
}

// row judges the treatment of packets by a frontend in force.
func (j judged) row(row *lb.Frontend) {
	which, outside := "internal", Warning
	if row.Kind != lb.ClusterIP {
		which, outside = "external", Info
	}
	for _, r := range row.Routes {
		switch {
		case r.Do == lb.Reject:
			j.is(NoBackends, "%s has no backends: connections are rejected", row.Service)
		case r.Do == lb.Drop:
			j.as(NoLocalBackends, outside, "%s has no endpoints on this node, and its %s traffic policy is Local: "+
				"%s is dropped from %s", row.Service, which, row.Key, r.From)
		case r.To == nil || !r.To.Backends.At(0).Draining: // all drain, or none does
		case r.To.ID.Scope == lb.Local:
			j.as(Terminating, outside,
				"%s has only terminating endpoints on this node, and its %s traffic policy is Local",
				row.Service, which)
		default:
			j.is(Terminating, "%s has only terminating endpoints: they serve until they end", row.Service)
		}
	}
}
