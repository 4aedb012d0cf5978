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
	"kube-proxy/plane/ownwrites"
	"kube-proxy/trace"
)

// ErrAsked says that a host has the mode, but nothing of the name that the configuration asks of it. Who wrote that name wants to
// be told: in another mode it would mean nothing.
var ErrAsked = errors.New("not available on this host")

// Mode is all that the proxy knows of one mode. Its folder below plane returns it; plane/all has the list.
type Mode struct {
	// Name is the value of --proxy-mode.
	Name string
	// Doc says in one sentence how the mode serves, for docs/configuration.md.
	Doc string
	// OS is the only operating system that has the mode; "" for no such bound.
	OS string
	// Gate is the feature gate without which nobody may ask for it; "" for none.
	Gate string

	// FallsBackTo is the mode that runs where this one was asked for and cannot (S0 to S2); "" for none: a mode that
	// nobody could take for another fails instead (G7).
	FallsBackTo string
	// Unasked is the operating system on which the mode is tried where none is asked for, in the order of the list; "" for none.
	Unasked string
	// Refuses says why the mode may not take the place of another (TN-51), or returns nil. Nil where it always may.
	Refuses func(Settings) error
	// Caution says in a sentence what a node's administrator must know of the mode before it takes the place of another;
	// "" for nothing.
	Caution string
	// Annotated modes may be asked for by the Node's annotation (S0).
	Annotated bool

	// Options makes the mode's section of the configuration: its values with their defaults, flags, and checks; nil for none.
	Options func() option.Section
	// Block is the block of the file that has the masquerade bit and the periods of the mode. A mode without one has the usual bit, and
	// its planes are compared as often as the engine likes.
	Block string
	// Periods is the block that has the periods, where Block has others (CF-62).
	Periods string
	// Networks and Addresses return what its section says of those, by field: what is of the wrong IP family is told (CF-63). Nil for
	// none.
	Networks  func(option.Blocks) map[string][]netip.Prefix
	Addresses func(option.Blocks) map[string]netip.Addr
	// Reads are blocks and fields of the configuration that do nothing in modes that do not name them.
	Reads []string
	// Inherits are fields that take the value of another's flag where their own flag is not given: the other, by
	// their path.
	Inherits map[string]string
	// NodePortsPrimary: where no addresses are asked for, NodePorts answer on the node's primary ones, and not on all.
	NodePortsPrimary bool
	// LocalhostNodePorts: NodePorts can answer on 127.0.0.1.
	LocalhostNodePorts bool
	// LocalhostGate is the feature gate with which TCP NodePorts answer at [lb.Node.Localhost], by connections of this process, and
	// those of other protocols are rejected there; "" for none.
	LocalhostGate string

	// Terminates: connections end at the proxy, so that the kernel need not forward.
	Terminates bool
	// DrainTimeout is how long connections that end at the proxy go on when the process is asked to end. Nil where none do.
	DrainTimeout func(option.Blocks) time.Duration
	// Sysctls returns what the host must be set to; nil for nothing.
	Sysctls func(Settings) []Sysctl
	// RunsIPTables: programs of iptables write its rules. They need CAP_NET_RAW where anybody's rules name ipsets.
	RunsIPTables bool
	// Load loads the modules that have these sysctls; nil for none.
	Load func() error

	// Metrics are the metrics of the mode, beside those that every mode has.
	Metrics []Metric

	// Weigh returns what says how many objects a plane writes at most for a Service, on any node. An object is some 128 bytes of the
	// kernel's memory, or of HNS's or this process's where they serve packets; what is larger counts as several. The number grows in
	// proportion to each part of the size. Nil where objects are not counted.
	Weigh func(Settings) func(lb.Size) int

	// Able says why the mode cannot serve the family on this host, or returns nil. It changes nothing, but that the kernel may
	// load modules. Of the settings it has those that are the same whichever mode runs. An error that wraps [ErrAsked] is one
	// of what was asked for: no other mode takes its place.
	Able func(Settings) error
	// Lacks says what the node lacks for the mode to serve, which may come while the proxy waits; nil for nothing. It changes nothing.
	Lacks func(context.Context, Settings) []error
	// Modules names those modules, for who must not load any; nil for none.
	Modules func(Settings) []string
	// New makes the plane of a family, in the network namespace of the calling thread.
	New func(Settings) (Plane, error)
	// Loader names the programs that load what Render returns.
	Loader string
	// Render returns what a new plane would write to an empty kernel. It needs no kernel. An error that comes with a
	// text is of rows that are left out. Nil where that would mean nothing to another program.
	Render func(Settings, *lb.Table) ([]byte, error)

	// Show and Flush are commands by which people see and break what it has written for IPv4.
	Show, Flush string
	// AddressDevice is the network device by which the node has every service address itself (PN-43); "" where it has them not.
	AddressDevice string
	// HairpinsByNode: a backend that is its own client is not masqueraded where the API says that it runs on another node (SV-60).
	HairpinsByNode bool
	// Served returns what the mode makes of rows, where it cannot keep all as they are: [trace.Mode.Served]. Nil: it keeps all.
	Served func(Settings) func(lb.Node, *lb.Frontend, trace.Packet) (kept *lb.Frontend, why string)
	// PassesUnknown: a packet to an address or port of the service network that no Service has passes untouched (SV-62, SV-63).
	PassesUnknown bool

	// Rules names the kind of rules that the mode writes. Modes with the same kind cannot tell theirs apart, and so
	// leave each other's alone.
	Rules string
	// Among is the kind of rules of another mode among which this one has its own, some by the same names: of those, what it does not
	// have itself, its RemoveStale removes, and the other's Remove is not called. "" for none.
	Among string
	// Remove removes what the mode leaves in the kernel; nil if it leaves nothing. It is not called where a mode with
	// the same Rules runs.
	Remove func(context.Context, Removal) (Report, error)
	// RemoveStale removes, where the mode itself runs, what its planes do not write any more; nil if there is no such thing.
	RemoveStale func(context.Context, Removal) (Report, error)
}

// Plane is a data plane of one family that runs.
type Plane interface {
	plane.Plane
	// Notices returns what has come up and somebody should know, each once. It is called when no write is under way:
	// before the first, and after each.
	Notices() []Notice
	// Measure tells the values of the mode's metrics. It may be called at any time from any goroutine. An error says which
	// could not be read; the others are told.
	Measure(Emit) error
	// Close gives back what the plane holds of this process. What it wrote stays in force.
	Close() error
}

// Drainer is a plane at which connections end, which therefore end with the process.
type Drainer interface {
	// StopAccepting takes no more connections, so that another process can listen where this one did. No write is under
	// way, and only Drain, Measure and Close are called after it.
	StopAccepting()
	// Drain returns when the connections that are open have ended. What is left when ctx ends it ends, and says how many.
	Drain(ctx context.Context) (left int)
}

// Answerer is a plane at which flows end. It knows where they do.
type Answerer interface {
	// Answers reports whether clients of the row are answered from that address and port, as far as writes that have
	// returned say. It may be called from any goroutine.
	Answers(row lb.Key, from netip.AddrPort) bool
}

// Notice is a line of the log, as a warning, and perhaps an event. Whoever logs it says of which family it is.
type Notice struct {
	Text string
	Args []any // keys and values
	// Event returns the event about the Node of that name; nil for none.
	Event func(node string) event.Event
}

// Settings is what the configuration asks of a mode, for one family.
type Settings struct {
	Family lb.Family
	// MasqueradeBit is the bit of the packet mark that asks for masquerading, 0 to 31.
	MasqueradeBit int
	// LocalhostNodePorts: NodePorts answer on 127.0.0.1, if one of NodePorts, the prefixes of addresses that answer them,
	// covers that.
	LocalhostNodePorts bool
	NodePorts          []netip.Prefix
	// LocalhostProxy: the feature gate [Mode.LocalhostGate] is on.
	LocalhostProxy bool
	// TCPIdle returns after how long without a byte a TCP connection that ends at the proxy is closed, as the configuration of
	// now says (conntrack.tcpEstablishedTimeout); 0 is never. Nil: never.
	TCPIdle func() time.Duration
	// ExternalIPsBounded reports whether the configuration of now says which external IPs Services may have
	// (--external-ip-cidrs); nil: it does not.
	ExternalIPsBounded func() bool
	// HealthzPort is the port of /healthz, by which load balancers check nodes for Services that have no healthCheckNodePort; 0 if
	// nothing listens.
	HealthzPort uint16
	// Blocks are what the configuration says in the modes' sections, each mode's own among them.
	Blocks option.Blocks
	// CountServices asks planes that can to count traffic by row ([TrafficCounter]).
	CountServices bool
	// Writes is shared by the planes of this process in one network namespace. Nil means that there is no other.
	Writes *ownwrites.Ledger
	// Log takes what happens beside the calls of a plane, such as a shortage; nil for none. It says the family already.
	Log *slog.Logger
}

// MasqueradeBit is the bit of the packet mark where nobody asks for another (G3).
const MasqueradeBit = 14

// Sysctl is a setting of the host.
type Sysctl struct {
	Name, Value string
	// Asks names the flag and the field that ask for it; "" means that the mode does.
	Asks string
	// From and Before are the kernels that need it, as major and minor version; zero for no bound.
	From, Before [2]int
	// Optional: not every kernel has it, and those that have not do without.
	Optional bool
	// InitOnly: a plane makes it when that is safe; --init-only makes it at once.
	InitOnly bool
}

// Removal says what to remove of a mode.
type Removal struct {
	Families []lb.Family
	// MasqueradeBit is that of the mode ipvs ([Settings]), by which its marks are known.
	MasqueradeBit int
	// Blocks are as in [Settings].
	Blocks option.Blocks
	// Beside: another mode runs, and goes on to need settings of the host that both make.
	Beside bool
	// Drain is how long connections that would be cut off may go on at most.
	Drain time.Duration
}

// Report is what became of a removal, a sentence for each kind of thing. It is for the log.
type Report struct {
	// Removed is what was there and is gone.
	Removed []string
	// Left is what stays though it is ours, or may be, and why.
	Left []string
}

// Count notes that n things were removed; of none nothing is told.
func (r *Report) Count(n int, format string, args ...any) {
	if n > 0 {
		r.Removed = append(r.Removed, fmt.Sprintf("%d %s", n, fmt.Sprintf(format, args...)))
	}
}

// Leave notes that something stays.
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

// Metric says that a mode has a metric. One without Help is one of package status, or of another mode, that this mode has
// too.
type Metric struct {
	// Name is the name without the prefix.
	Name string
	// Row is that of the behaviour book; EXT: ours, upstream has none.
	Row  string
	Kind Kind
	// Labels are "ip_family", whose value the family gives, and then what [Emit] is given. Without ip_family the value
	// is the host's, and the first plane that tells it counts.
	Labels []string
	Help   string
}

// Emit is told a value of a metric, with one value for each label but ip_family.
type Emit func(metric string, value float64, labels ...string)

// List is the list of all modes, in the order in which they are tried and documented.
type List []Mode

// Built reports whether this program contains the mode. Of one of another operating system it may know the facts alone.
func (m Mode) Built() bool { return m.New != nil }

// Here reports whether the mode is for this operating system.
func (m Mode) Here() bool { return m.On(runtime.GOOS) }

// On reports whether the mode is for an operating system, as [runtime.GOOS] names it.
func (m Mode) On(system string) bool { return m.OS == "" || m.OS == system }

// ReadsField reports whether the mode is one of those that alone read the field.
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

// Names returns the names of the modes that is says yes to.
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

// Chain returns the modes to try where one is asked for, the first first: itself and those that it falls back to.
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
