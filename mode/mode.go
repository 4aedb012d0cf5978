package mode

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"time"

	"kube-proxy/config/option"
	"kube-proxy/event"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/selfwrites"
	"kube-proxy/trace"
)

// ErrAsked means that the host supports the mode, but not an item in the configuration, such as an
// IPVS scheduler. It is an error and no reason for a fallback: in another mode the item would have
// no meaning.
var ErrAsked = errors.New("not available on this host")

// ErrOverrides means that objects of another mode remain that decide about connections before the
// rules of the running mode do.
var ErrOverrides = errors.New("they override the rules of other modes")

// Mode describes one mode. Its folder below plane returns it; plane/all has the list.
type Mode struct {
	// Name is the value of --proxy-mode.
	Name string
	Texts
	Selection
	Config
	Host
	Planes
	Deviations
	Objects
}

// Texts describe a mode to people.
type Texts struct {
	// Doc describes in one sentence how the mode serves, for docs/configuration.md.
	Doc string
	// Caution is a sentence that a node's administrator must read before switching to the mode; ""
	// for none.
	Caution string
	// Loader names the programs that load the output of Render.
	Loader string
	// Show and Flush are commands that list and delete what the plane has written for IPv4, for
	// hints and demonstrations.
	Show, Flush string
}

// Selection decides where a mode runs, and what runs in its place (see [List.Choose]).
type Selection struct {
	// OS is the only operating system that has the mode; "" for no such bound.
	OS string
	// Gate is the feature gate that the mode requires; "" for none.
	Gate string
	// Unasked is the operating system on which the mode is tried if none is configured, in the
	// order of the list; "" for none.
	Unasked string
	// FallsBackTo is the mode that runs if this one is configured and cannot run (S0 to S2); "" for
	// none: then startup fails (G7).
	FallsBackTo string
	// Refuses returns the reason why the mode may not replace another (TN-51), or nil. A nil
	// function means that it always may.
	Refuses func(Settings) error
	// Annotated modes may be chosen by the Node's annotation (S0).
	Annotated bool
	// Able returns the reason why the mode cannot serve the family on this host, or nil. It changes
	// nothing, except that the kernel may load modules. It receives the settings that do not depend
	// on the mode. If the error wraps [ErrAsked], no other mode is tried.
	Able func(Settings) error
	// Reduced says what the mode does without on this host, because the kernel lacks it; nil for
	// nothing. It changes nothing, and is called if Able returns nil. Nil if no part can lack.
	Reduced func(Settings) error
	// Lacks returns the missing requirements of the mode that the node may still get while the
	// proxy waits; nil for none. It changes nothing.
	Lacks func(context.Context, Settings) []error
	// Modules returns the names of those modules, for checks, which load none; nil for none.
	Modules func(Settings) []string
}

// Config is the part of the configuration that a mode reads.
type Config struct {
	// Options makes the mode's section of the configuration: its values with their defaults, flags,
	// and checks; nil for none.
	Options func() option.Section
	// Block is the block of the file that has the masquerade bit and the periods of the mode. A
	// mode without one has the default bit, and the engine chooses how often to compare its planes.
	Block string
	// Periods is the block that has the periods, where Block has others (CF-62).
	Periods string
	// Networks and Addresses return those of its section, by field: values of the wrong IP family
	// are reported (CF-63). Nil for none.
	Networks  func(option.Blocks) map[string][]netip.Prefix
	Addresses func(option.Blocks) map[string]netip.Addr
	// Reads lists blocks and fields of the configuration that have no effect in modes that do not
	// list them.
	Reads []string
	// Inherits maps fields to the field whose flag supplies the value if their own flag is not
	// given, by path.
	Inherits map[string]string
	// NodePortsPrimary: if no addresses are configured, NodePorts answer on the node's primary
	// ones, and not on all.
	NodePortsPrimary bool
	// LocalhostNodePorts: NodePorts can answer on 127.0.0.1.
	LocalhostNodePorts bool
	// LocalhostGate is the feature gate with which TCP NodePorts answer at [lb.Node.Localhost], by
	// connections of this process, and those of other protocols are rejected there; "" for none.
	LocalhostGate string
}

// Host is what a mode needs and has beside its rules.
type Host struct {
	// Sysctls returns the host settings that the mode needs; nil for none.
	Sysctls func(Settings) []Sysctl
	// Load loads the modules that have these sysctls; nil for none.
	Load func() error
	// RunsIPTables: programs of iptables write its rules. They need CAP_NET_RAW if any rules of the
	// host name ipsets.
	RunsIPTables bool
	// AddressDevice is the network device that has every service address (PN-43); "" for none.
	AddressDevice string
}

// Planes makes the planes of a mode.
type Planes struct {
	// New makes the plane of a family, in the network namespace of the calling thread.
	New func(Settings) (Plane, error)
	// Render returns the rules that a new plane would write to an empty kernel. It needs no kernel.
	// An error with a text concerns frontends that were left out. Nil if no other program could
	// load the text.
	Render func(Settings, *lb.Table) ([]byte, error)
	// Metrics are the metrics of the mode, beside those that every mode has.
	Metrics []Metric
	// Weigh returns a function: how many objects a plane writes at most for a Service, on any node.
	// An object is some 128 bytes of the memory of the kernel, HNS or this process, whichever
	// serves packets; a larger one counts as several. The number is proportional to each part of
	// the size. Nil where objects are not counted.
	Weigh func(Settings) func(lb.Size) int
	// Terminates: connections end at the proxy, so that the kernel need not forward.
	Terminates bool
	// DrainTimeout is how long connections that end at the proxy continue after SIGTERM. Nil where
	// none do.
	DrainTimeout func(option.Blocks) time.Duration
}

// Deviations are how packets fare in a mode other than in the table, for package trace.
type Deviations struct {
	// HairpinsByNode: a backend that is its own client is not masqueraded if the API places it on
	// another node (SV-60).
	HairpinsByNode bool
	// Served returns how the mode changes frontends that it cannot serve unchanged:
	// [trace.Mode.Served]. Nil: it changes none.
	Served func(Settings) func(lb.Node, *lb.Frontend, trace.Packet) (kept *lb.Frontend, why string)
	// PassesUnknown: a packet to an address or port of the service network that no Service has
	// passes untouched (SV-62, SV-63).
	PassesUnknown bool
	// LocalhostSockets: programs of the node reach NodePorts at loopback addresses without
	// LocalhostGate, because their sockets are connected to endpoints.
	LocalhostSockets bool
}

// Objects are the objects that a mode writes, for other modes and for --cleanup.
type Objects struct {
	// Rules names the kind of rules that the mode writes. Modes with the same kind cannot
	// distinguish their rules, and so do not remove each other's.
	Rules string
	// Among is the kind of rules of another mode whose tables and names this one shares:
	// RemoveStale removes the other's rules that this mode does not have, and the other's Remove is
	// not called. "" for none.
	Among string
	// Overrides: the mode has objects that decide about connections before any rules do, and serves
	// without them. --init-only of another mode removes them, with its rights.
	Overrides bool
	// Remove removes the mode's objects from the kernel; nil if it leaves none. It is not called
	// where a mode with the same Rules runs.
	Remove func(context.Context, Removal) (Report, error)
	// RemoveStale removes, while the mode runs, objects that its planes no longer write; nil if
	// none exist.
	RemoveStale func(context.Context, Removal) (Report, error)
}

// Plane is a running data plane of one family.
type Plane interface {
	plane.Plane
	// Notices returns new problems for the operator, each once. It is called when no write is in
	// progress: before the first, and after each.
	Notices() []Notice
	// Measure emits the values of the mode's metrics. It may be called at any time from any
	// goroutine. An error names the metrics that could not be read; the others are emitted.
	Measure(Emit) error
	// Close releases the plane's resources in this process. The rules that it wrote stay in force.
	Close() error
}

// Drainer is a plane at which connections end, which therefore end with the process.
type Drainer interface {
	// StopAccepting closes the listeners, so that another process can listen at the same ports. No
	// write is in progress, and only Drain, Measure and Close are called after it.
	StopAccepting()
	// Drain returns when the open connections have ended. When ctx ends, it closes the rest and
	// returns their number.
	Drain(ctx context.Context) (left int)
}

// Configurable is a plane that follows changes of its section of the configuration, of the fields
// that need no new process.
type Configurable interface {
	// Configure takes the present configuration. It may be called at any time from any goroutine.
	Configure(option.Blocks) error
}

// Successor is a plane that begins part of its work only when the rules of other modes are removed.
type Successor interface {
	// OthersGone begins that work. It is called once, from any goroutine, after the first attempt
	// to remove the rules of other modes, whatever is left.
	OthersGone() error
}

// SocketServer is a plane whose programs connect sockets to endpoints before its rules see packets.
type SocketServer interface {
	// Sockets returns the state of the programs. It may be called at any time from any goroutine.
	Sockets() Sockets
}

// Sockets is the state of programs that connect sockets to endpoints.
type Sockets struct {
	// Serving: the programs serve new connections. Else Off is the reason, and Configured is true
	// if that is the configuration.
	Serving    bool
	Off        string
	Configured bool
	// Heartbeat is the age of the last sign of life of the proxy, from which the programs stop at
	// Timeout; 0 for never.
	Heartbeat, Timeout time.Duration
	// Known is how many sockets the programs keep a destination of, and Limit its bound. Ended is
	// how many this process ended with their endpoint.
	Known, Limit int
	Ended        uint64
	// Passed is the number of calls to frontends that the programs passed to the rules, by reason;
	// without reasons that no call had.
	Passed map[string]uint64
}

// Answerer is a plane at which flows end. It has the endpoint of each flow.
type Answerer interface {
	// Answers reports whether clients of the frontend get answers from that address and port,
	// according to the finished writes. It may be called from any goroutine.
	Answers(row lb.Key, from netip.AddrPort) bool
}

// Notice is a line of the log, as a warning, and perhaps an event. The caller adds the family.
type Notice struct {
	Text string
	Args []any // keys and values
	// Event returns the event on the Node of that name; nil for none.
	Event func(node string) event.Event
}

// Settings are the settings of a mode for one family.
type Settings struct {
	Family lb.Family
	// MasqueradeBit is the bit of the packet mark for masquerading, 0 to 31.
	MasqueradeBit int
	// LocalhostNodePorts: NodePorts answer on 127.0.0.1, if one of NodePorts, the prefixes of
	// addresses that answer them, covers that.
	LocalhostNodePorts bool
	NodePorts          []netip.Prefix
	// LocalhostProxy: the feature gate [Mode.LocalhostGate] is on.
	LocalhostProxy bool
	// TCPIdle returns the present idle timeout of TCP connections that end at the proxy
	// (conntrack.tcpEstablishedTimeout); 0 is never. Nil: never.
	TCPIdle func() time.Duration
	// ExternalIPsBounded reports whether the present configuration limits the external IPs of
	// Services (--external-ip-cidrs); nil: it does not.
	ExternalIPsBounded func() bool
	// HealthzPort is the port of /healthz, which load balancers check for Services without a
	// healthCheckNodePort; 0 for none.
	HealthzPort uint16
	// Blocks are the modes' sections of the configuration.
	Blocks option.Blocks
	// CountServices makes planes that can count traffic by frontend ([TrafficCounter]).
	CountServices bool
	// Writes is shared by the planes of this process in one network namespace. Nil means that there
	// are no other planes.
	Writes *selfwrites.Ledger
	// Log is for problems outside the calls of a plane, such as a shortage; nil for none. It has
	// the family already.
	Log *slog.Logger
}

// MasqueradeBit is the default bit of the packet mark (G3).
const MasqueradeBit = 14

// Sysctl is a setting of the host.
type Sysctl struct {
	Name, Value string
	// Asks names the flag and the field that configure it; "" means that the mode needs it.
	Asks string
	// From and Before are the kernels that need it, as major and minor version; zero for no bound.
	From, Before [2]int
	// Optional: not every kernel has it, and the mode works without.
	Optional bool
	// InitOnly: a plane makes it when that is safe; --init-only makes it at once.
	InitOnly bool
}

// Removal describes what to remove of a mode.
type Removal struct {
	Families []lb.Family
	// MasqueradeBit is that of the mode ipvs ([Settings]); it identifies its marks.
	MasqueradeBit int
	// Blocks are as in [Settings].
	Blocks option.Blocks
	// Served returns some UDP frontends of the running mode that have endpoints; nil if none runs.
	Served func(lb.Family) []netip.AddrPort
	// Beside: another mode runs, and still needs the host settings that both make.
	Beside bool
	// Drain is how long connections that the removal would cut off may continue at most.
	Drain time.Duration
}

// Report is the result of a removal, a sentence for each kind of object. It is for the log.
type Report struct {
	// Removed are the objects that were removed.
	Removed []string
	// Left are objects of this proxy, or possibly of it, that were not removed, and why.
	Left []string
}

// Count records that n objects were removed; nothing if n is 0.
func (r *Report) Count(n int, format string, args ...any) {
	if n > 0 {
		r.Removed = append(r.Removed, fmt.Sprintf("%d %s", n, fmt.Sprintf(format, args...)))
	}
}

// Leave notes that something was not removed.
func (r *Report) Leave(format string, args ...any) {
	r.Left = append(r.Left, fmt.Sprintf(format, args...))
}

// Kind is the type of a metric, as Prometheus names it.
type Kind string

// The kinds of metrics.
const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Histogram Kind = "histogram"
)

// Metric is a metric of a mode. One without Help is also one of package status or of another mode,
// which describes it.
type Metric struct {
	// Name is the name without the prefix.
	Name string
	// Row is the row of the specification; EXT: an extension, not in upstream.
	Row  string
	Kind Kind
	// Labels are "ip_family", whose value is the family, and then the arguments of [Emit]. Without
	// ip_family the value is the host's, and that of the first plane is used.
	Labels []string
	Help   string
}

// ConntrackMetrics are the metrics of deleted conntrack entries, of modes whose packets conntrack
// translates.
var ConntrackMetrics = []Metric{
	{Name: "conntrack_reconciler_sync_duration_seconds"},
	{Name: "conntrack_reconciler_deleted_entries_total"},
	{Name: "conntrack_reconciler_dumps_total"},
}

// Emit receives a value of a metric, with one value for each label but ip_family.
type Emit func(metric string, value float64, labels ...string)

// List is the list of all modes, in the order in which they are tried and documented.
type List []Mode

// Built reports whether this program contains the mode. For other operating systems it may have
// only the description.
func (m Mode) Built() bool { return m.New != nil }

// Here reports whether the mode is for this operating system.
func (m Mode) Here() bool { return m.On(runtime.GOOS) }

// On reports whether the mode is for an operating system, as [runtime.GOOS] names it.
func (m Mode) On(system string) bool { return m.OS == "" || m.OS == system }

// ReadsField reports whether the mode is one of those that read a field that others ignore.
func (m Mode) ReadsField(path string) bool {
	return slices.ContainsFunc(m.Reads, func(r string) bool { return path == r || strings.HasPrefix(path, r+".") })
}

// Find returns the mode of that name.
func (l List) Find(name string) (Mode, bool) {
	i := slices.IndexFunc(l, func(m Mode) bool { return m.Name == name })
	if i < 0 {
		return Mode{}, false
	}
	return l[i], true
}

// Names returns the names of the modes for which is returns true.
func (l List) Names(is func(Mode) bool) []string {
	var names []string
	for _, m := range l {
		if is(m) {
			names = append(names, m.Name)
		}
	}
	return names
}

// Reading returns the names of the modes that alone read the field; none if all do.
func (l List) Reading(path string) []string {
	return l.Names(func(m Mode) bool { return m.ReadsField(path) })
}

// Chain returns the modes to try for a configured one, in order: itself and its fallbacks.
func (l List) Chain(name string) List {
	var chain List
	for {
		m, ok := l.Find(name)
		if !ok || slices.ContainsFunc(chain, func(c Mode) bool { return c.Name == name }) {
			return chain
		}
		chain = append(chain, m)
		name = m.FallsBackTo
	}
}
