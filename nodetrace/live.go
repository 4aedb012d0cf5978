package nodetrace

import (
	"fmt"
	"net/netip"
	"strings"

	"kube-proxy/lb"
	"kube-proxy/trace"
)

// report is one of the kernel's reports on a traced packet.
type report struct {
	packet uint32 // identifies the packet, but not for long
	table  string // as nft says it
	chain  string
	handle uint64 // of the rule; 0 for a policy
	drop   bool
	text   string // the verdict
	// from and to are the packet's, in reports that have its headers; else not valid.
	from, to netip.AddrPort
}

// liveTable is the table of Live, which the kernel deletes when the command ends.
const liveTable = "kube-proxy-trace"

// Chains of liveTable. Their rules match the packet, or the reply, at the beginning and at the end
// of its way.
const (
	comes     = "request-comes" // and "/" and the hook
	goes      = "request-goes"
	replies   = "reply-comes"
	replyGoes = "reply-goes"
)

// maxReports bounds what is kept of a packet's way.
const maxReports = 2000

// observed sums up the reports on the first connection among them.
func observed(own string, reports []report) trace.Live {
	l := trace.Live{Verdict: trace.Undecided}
	ours := map[uint32]bool{} // packets of this connection
	last, out, back := "", false, false
	for _, r := range reports {
		chain, hook, _ := strings.Cut(r.chain, "/")
		switch {
		case r.table != own && ours[r.packet]:
			if len(l.Steps) < maxLines && (r.handle != 0 || r.drop) {
				l.Steps = append(l.Steps, fmt.Sprintf("%s, chain %s, %s: %s", r.table, r.chain, r.where(), r.text))
			}
			if r.drop && l.By == "" {
				l.By, l.Handle = lb.Printable(r.table+", chain "+r.chain), r.handle
			}
			continue
		case r.table != own || r.handle == 0:
			continue
		case chain == comes && (!l.Seen || r.from == l.From):
			l.Seen, l.From, l.To, last = true, r.from, r.to, "packet last seen at "+hook
		case chain == goes && (ours[r.packet] || r.from == l.From):
			out, l.Backend, l.Sees = true, r.to, r.from
		case chain == replies && (r.to == l.Sees || r.to == l.From):
			back, last = true, "reply last seen at "+hook
		case chain == replyGoes && (ours[r.packet] || r.to == l.From):
			l.Answered = true
		default:
			continue
		}
		ours[r.packet] = true
	}
	const silent = "without a rule of nftables"
	switch {
	case !l.Seen:
	case out && l.Answered, out && l.By == "" && !back:
		l.Verdict, l.By, l.Handle = trace.Delivered, "", 0
	case l.By != "":
		l.Verdict, l.Answered = trace.Dropped, false
	case l.Answered: // by an error of this node
		l.Verdict, l.Answered, l.Lost = trace.Rejected, false, silent
	default:
		l.Verdict = trace.Dropped
		l.Lost = silent + " (" + last + "): by a route, a sysctl or iptables-legacy"
	}
	return l
}

// maxLines bounds the steps of an answer.
const maxLines = 200

func (r report) where() string {
	if r.handle == 0 {
		return "policy"
	}
	return fmt.Sprintf("rule with handle %d", r.handle)
}
