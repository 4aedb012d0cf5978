package flows

import (
	"fmt"
	"net/netip"
	"time"

	ctwire "kube-proxy/internal/netlink/conntrack"
	"kube-proxy/lb"
)

// Query selects the connections of a client to an address.
type Query struct {
	Proto lb.Proto
	// From is the client. Port 0 means any.
	From netip.AddrPort
	// To is where the client sends to.
	To netip.AddrPort
	// Most is the largest number of flows; 0 means 100.
	Most int
}

// Found is the answer to a [Query].
type Found struct {
	// Flows are open connections, and after them those that one side has ended. Ended ones are
	// listed only if the query has the client's port, because they affect a new connection from
	// that port.
	Flows []Flow
	// Ended is how many others have ended, and are still in the table; if More is set there may be
	// more of them.
	Ended int
	// More: there may be other open ones, since Most was reached or reading was cut short.
	More bool

	read int // entries
}

// Flow is a connection, or for UDP an entry of conntrack.
type Flow struct {
	Proto lb.Proto
	// From and To are as the client sees them.
	From, To netip.AddrPort
	// By is the address that answers: the backend if the flow is translated, the proxy's own if
	// connections end at the proxy, else To.
	By netip.AddrPort
	// Client is the address that By answers to: not From if the flow is masqueraded.
	Client netip.AddrPort
	// State is the state of TCP or SCTP, in the kernel's terms, such as ESTABLISHED; "" for UDP.
	State string
	// Answered: By has sent something.
	Answered bool
	// Offloaded: a flowtable has it, so its packets bypass most hooks.
	Offloaded bool
	// Mark is conntrack's mark.
	Mark uint32
	// Timeout is the time without a packet after which the entry expires, in whole seconds.
	Timeout time.Duration
}

// The states of nf_conntrack_tcp.h and nf_conntrack_sctp.h.
var (
	statesTCP = []string{"NONE", "SYN_SENT", "SYN_RECV", "ESTABLISHED", "FIN_WAIT", "CLOSE_WAIT", "LAST_ACK",
		"TIME_WAIT", "CLOSE", "SYN_SENT2"}
	statesSCTP = []string{"NONE", "CLOSED", "COOKIE_WAIT", "COOKIE_ECHOED", "ESTABLISHED", "SHUTDOWN_SENT",
		"SHUTDOWN_RECD", "SHUTDOWN_ACK_SENT", "HEARTBEAT_SENT", "HEARTBEAT_ACKED"}
)

// stage is how far a flow is.
type stage uint8

const (
	goesOn  stage = iota // or begins
	closing              // one side has ended, and the other may send
	ended
)

// stages maps the states that are not [goesOn], by the kernel's names.
var stages = map[string]stage{
	"FIN_WAIT": closing, "CLOSE_WAIT": closing, "LAST_ACK": ended, "TIME_WAIT": ended, "CLOSE": ended,
	"SHUTDOWN_SENT": closing, "SHUTDOWN_RECD": closing, "SHUTDOWN_ACK_SENT": ended, "CLOSED": ended,
}

func (f Flow) stage() stage { return stages[f.State] }

func stateName(proto lb.Proto, state uint8) string {
	var names []string
	switch proto {
	case lb.TCP:
		names = statesTCP
	case lb.SCTP:
		names = statesSCTP
	default:
		return ""
	}
	if int(state) < len(names) {
		return names[state]
	}
	return fmt.Sprintf("state %d", state)
}

// flowOf converts an entry.
func flowOf(e *ctwire.Entry) Flow {
	proto := lb.Proto(e.Orig.Proto)
	return Flow{Proto: proto, From: e.Orig.From, To: e.Orig.To, By: e.Reply.From, Client: e.Reply.To,
		State:    stateName(proto, e.State),
		Answered: e.Status&ctwire.SeenReply != 0, Offloaded: e.Status&ctwire.Offloaded != 0, Mark: e.Mark,
		Timeout: time.Duration(e.Timeout) * time.Second}
}

// is reports whether the entry matches the query.
func (q Query) is(e *ctwire.Entry) bool {
	return e.Orig.Proto == uint8(q.Proto) && e.Orig.To == q.To && e.Orig.From.Addr() == q.From.Addr() &&
		(q.From.Port() == 0 || e.Orig.From.Port() == q.From.Port())
}
