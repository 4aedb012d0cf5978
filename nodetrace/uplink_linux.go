package nodetrace

import (
	"fmt"
	"math"

	"kube-proxy/trace"
)

// maxUplinks bounds the interfaces that are tried in place of the one that is assumed.
const maxUplinks = 8

// compareUplinks follows the packet of a client elsewhere through the other uplinks too: the
// interface that it comes in through is assumed. An answer that differs there is undecided. whole
// is a walk with its verdict.
func (w *walk) compareUplinks(n *trace.Node, whole func(*walk) (trace.Node, error)) error {
	if w.own() || w.q.Packet.In != "" || w.q.ClientHere || len(w.in) == 0 || n.Verdict == trace.Undecided {
		return nil
	}
	assumed := w.link(w.in[0])
	if !w.uplink(assumed) {
		return nil
	}
	tried := 0
	for _, l := range w.links {
		if l.Index == assumed.Index || !w.uplink(l) || tried == maxUplinks {
			continue
		}
		tried++
		other := &walk{facts: w.facts, q: w.q}
		other.q.Packet.In = l.Name
		is, err := whole(other)
		if err != nil {
			return err
		}
		if is.Verdict == n.Verdict && math.Abs(is.Share-n.Share) < 0.001 {
			continue
		}
		end := string(is.Verdict)
		switch {
		case is.By != "":
			end += " by " + is.By
		case len(is.NotEvaluated) > 0:
			end += ": " + is.NotEvaluated[0]
		}
		if n.By != "" {
			n.NotEvaluated = append(n.NotEvaluated, fmt.Sprintf("unless these decide otherwise, it is %s by %s",
				n.Verdict, n.By))
		}
		n.NotEvaluated = append(n.NotEvaluated, fmt.Sprintf("whether the packet comes in through %s, as assumed: "+
			"through %s, it is %s: say --in", assumed.Name, l.Name, end))
		n.Verdict, n.By, n.Do, n.Own, n.Stage, n.Share, n.Backends = trace.Undecided, "", "", false, "", 0, nil
		return nil
	}
	return nil
}
