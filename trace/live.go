package trace

import (
	"fmt"
	"net/netip"
	"strings"

	"kube-proxy/lb"
)

// Live is what the kernel did with a real packet, as it reported itself. Its JSON is part of
// "kube-proxy trace --live -o json": fields may be added.
type Live struct {
	// Seen: a packet came. Sent: this command sent it.
	Seen bool `json:"seen"`
	Sent bool `json:"sent,omitempty"`
	// From is the client with its port, To the destination of the packet.
	From netip.AddrPort `json:"from,omitzero"`
	To   netip.AddrPort `json:"to,omitzero"`
	// Backend answers according to conntrack, and sees Sees as its client.
	Backend netip.AddrPort `json:"backend,omitzero"`
	Sees    netip.AddrPort `json:"sees,omitzero"`
	// Verdict is [Delivered] if the packet left or was received; then Answered says whether a reply
	// came. It is [Undecided] if no packet came.
	Verdict  NodeVerdict `json:"verdict"`
	Answered bool        `json:"answered,omitempty"`
	// By is the chain that dropped packet or reply: "table inet firewall, chain c"; Handle is that
	// of the rule, 0 for the policy. "" if no chain of nftables did.
	By     string `json:"by,omitempty"`
	Handle uint64 `json:"handle,omitempty"`
	// Lost says where the packet or its reply was last seen if it disappeared without a rule.
	Lost string `json:"lost,omitempty"`
	// Differs says how this differs from the prediction; "" if it does not.
	Differs string `json:"differs,omitempty"`
	// Steps are the rules that the packet and its reply met, in order.
	Steps []string `json:"steps,omitempty"`
	// Notes say what was not observed, and why.
	Notes []string `json:"notes,omitempty"`
}

// Stopped reports whether something stopped the packet or its reply.
func (l *Live) Stopped() bool { return l.Verdict == Dropped || l.Verdict == Rejected }

// Compare sets Differs, and gives the answer of the rest of the node the verdict of the real
// packet.
func (l *Live) Compare(n *Node) {
	switch {
	case n == nil || !l.Seen:
	case l.Stopped() && n.By == "":
		l.Differs = fmt.Sprintf("predicted %s, but it was %s%s", n.Verdict, l.Verdict, l.where())
	case l.By != "" && !strings.HasPrefix(n.By, l.By+","):
		l.Differs = fmt.Sprintf("predicted %s by %s, but it was %s%s", n.Verdict, n.By, l.Verdict, l.where())
	case !l.Stopped() && l.Answered && n.By != "" && n.Share > 1-1e-6:
		l.Differs = fmt.Sprintf("predicted %s by %s, but it was delivered to %s", n.Verdict, n.By, l.Backend)
	}
}

func (l *Live) where() string {
	switch {
	case l.By != "" && l.Handle == 0:
		return fmt.Sprintf(" by %s, policy", l.By)
	case l.By != "":
		return fmt.Sprintf(" by %s, rule with handle %d", l.By, l.Handle)
	case l.Lost != "":
		return " " + l.Lost
	}
	return ""
}

// Text says what was observed; with the rules that were met if wide.
func (l *Live) Text(wide bool) string {
	var b strings.Builder
	line := func(format string, args ...any) { b.WriteString(lb.Printable(fmt.Sprintf(format, args...)) + "\n") }
	who := map[bool]string{false: "a packet of a client", true: "a packet of this command"}[l.Sent]
	switch {
	case !l.Seen:
		line("live: no such packet came: start the client, and ask again; a waiting client repeats its SYN "+
			"after 1, 2 and 4 s (--live=%s)", "8s")
	case l.Stopped():
		line("live: %s, %s → %s, was %s%s", who, l.From, l.To, l.Verdict, l.where())
	default:
		answer := map[bool]string{false: "no reply came in that time", true: "the reply passed"}[l.Answered]
		line("live: %s, %s → %s, was delivered to %s; %s", who, l.From, l.To, l.Backend, answer)
	}
	switch {
	case l.Differs != "":
		line("  NOT as predicted: %s", l.Differs)
	case l.Seen:
		line("  as predicted")
	}
	for _, n := range l.Notes {
		line("  note: %s", n)
	}
	if wide {
		for _, s := range l.Steps {
			line("  %s", s)
		}
	}
	return b.String()
}
