package inspect

import (
	"fmt"
	"net/netip"
	"strings"

	"kube-proxy/internal/fold"
	"kube-proxy/internal/plural"
	"kube-proxy/lb"
	"kube-proxy/trace"
)

// Report is the answer for people, as "kube-proxy trace" prints it: the verdict in the first line,
// on one screen of [fold.Width] columns, or, wide, with all backends and all of the kernel's way.
// What comes from others is escaped, see [lb.Printable].
func (a *TraceAnswer) Report(wide bool) string {
	if wide {
		return a.report(true)
	}
	return fold.Text(a.report(false), fold.Width)
}

func (a *TraceAnswer) report(wide bool) string {
	var b strings.Builder
	b.WriteString(a.lead())
	if b.Len() == 0 {
		b.WriteString(lb.Printable(a.asPromised()) + "\n")
	}
	if a.Rest != nil && a.Rest.Elsewhere != "" {
		b.WriteString(lb.Printable(a.Rest.Elsewhere) + "\n")
	}
	if a.Packet.Pod != "" {
		fmt.Fprintf(&b, "pod %s is at %s\n", lb.Printable(a.Packet.Pod), lb.Printable(a.Packet.From))
	}
	if p := a.Packet.Packet(); wide {
		b.WriteString(a.Wide(p))
	} else {
		b.WriteString(a.Text(p))
	}
	if a.Rest != nil {
		b.WriteString("\n" + a.Rest.Text(wide))
	}
	if a.Live != nil {
		b.WriteString("\n" + a.Live.Text(wide))
	}
	if len(a.Conntrack) > 0 || a.ConntrackEnded > 0 {
		b.WriteString("\nconnections\n")
	}
	for _, c := range a.Conntrack {
		b.WriteString("  " + lb.Printable(connectionText(c)) + "\n")
	}
	if n := a.ConntrackEnded; n > 0 {
		b.WriteString("  " + endedText(n, len(a.Conntrack) > 0, a.ConntrackMore) + "\n")
	}
	if len(a.Notes) > 0 {
		b.WriteByte('\n')
		for _, n := range a.Notes {
			b.WriteString("note: " + lb.Printable(n) + "\n")
		}
	}
	return b.String()
}

// lead returns what stops connections, or may, and what differs, in the order of urgency; else "".
func (a *TraceAnswer) lead() string {
	var b strings.Builder
	if a.Live != nil && a.Live.Differs != "" {
		b.WriteString("LIVE: " + lb.Printable(a.Live.Differs) + "\n")
	}
	return b.String() + a.Rest.Lead() + a.Lead()
}

// asPromised is the verdict of an answer without a difference and without an obstacle.
func (a *TraceAnswer) asPromised() string {
	ends, to := a.Rest != nil && a.Rest.Verdict == trace.Delivered, ""
	if a.Verdict == trace.Balance {
		to = a.Service + ", " + plural.Count(len(a.Backends), "backend", "backends")
	}
	switch {
	case a.Verdict == trace.Balance && ends:
		return "DELIVERED and answered: " + to
	case a.Verdict == trace.Balance && a.Rest != nil: // kube-proxy's own rules stop it, as the table says
		return strings.ToUpper(string(a.Rest.Verdict)) + " by kube-proxy: " + a.Rest.By
	case a.Verdict == trace.Balance:
		return "BALANCED, rest of the node not checked: " + to
	case a.Verdict == trace.Reject:
		return "REJECTED by kube-proxy: " + a.Decides
	case a.Verdict == trace.Drop:
		return "DROPPED by kube-proxy: " + a.Decides
	case ends:
		return "NOT TRANSLATED, but delivered and answered: " + a.Decides
	}
	return "NOT TRANSLATED: " + a.Decides
}

// endedText reports connections that have ended: others than those above it, at least so many.
func endedText(n int, others, atLeast bool) string {
	s := plural.Count(n, "ended one", "ended ones")
	if atLeast {
		s = "at least " + s
	}
	if others {
		return "and " + s
	}
	return "none is open; " + s
}

func connectionText(c Connection) string {
	s := strings.TrimSpace(c.Proto+" "+c.State) + " " + c.From.String()
	if c.Backend.IsValid() && c.Backend != c.To {
		if c.Answered {
			s += ", answered by " + c.Backend.String()
		} else {
			s += ", sent to " + c.Backend.String()
		}
	}
	if c.Sees.IsValid() && c.Sees != c.From {
		s += ", which sees " + c.Sees.String()
	}
	if !c.Answered {
		s += ", no reply yet"
	}
	return fmt.Sprintf("%s; idle timeout %ds", s, c.Timeout)
}

// Packet reads a packet back; what cannot be read is not there.
func (t PacketText) Packet() trace.Packet {
	p := trace.Packet{In: t.In, Host: t.Node, From: addrPort(t.From), To: addrPort(t.To)}
	p.Proto, _ = lb.ParseProto(t.Proto)
	if t.Proto == "icmp" {
		p.Proto = trace.ICMPv4
	}
	return p
}

func addrPort(s string) netip.AddrPort {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.AddrPortFrom(a, 0)
	}
	at, _ := netip.ParseAddrPort(s)
	return at
}
