package nodetrace

import (
	"fmt"
	"slices"

	"kube-proxy/lb"
	"kube-proxy/trace"
)

// maxHarmed is how many backends an answer names.
const maxHarmed = 8

// judge sums up where the ways ended. The culprit is the obstacle that most connections meet.
func (w *walk) judge() trace.Node {
	n := trace.Node{Verdict: trace.Delivered, Warnings: w.warnings}
	shares, shown, retries := map[stop]float64{}, end{}, w.retries()
	var worst stop
	for _, e := range w.ends {
		uncertain := false
		for _, d := range e.doubts {
			w.doubt("%s", d.what)
			uncertain = uncertain || d.verdict != e.verdict
		}
		if uncertain && e.by != "" { // the packet may end otherwise
			w.doubt("unless these decide otherwise, it is %s by %s", e.verdict, e.by)
			e.by = ""
		}
		if e.by == "" {
			if len(shown.steps) == 0 {
				shown = e
			}
			continue
		}
		lost := w.q.Packet.Proto == lb.UDP && e.verdict == trace.Dropped
		if retries && !lost && e.backend.IsValid() {
			n.Warnings = append(n.Warnings,
				fmt.Sprintf("The proxy does not reach %s, and takes another backend: %s.", e.backend, e.by))
			continue
		}
		n.Share += e.share
		shares[e.stop] += e.share
		if shares[e.stop] > shares[worst] {
			worst = e.stop
		}
		if e.backend.IsValid() && len(n.Backends) < maxHarmed && !slices.Contains(n.Backends, e.backend) {
			n.Backends = append(n.Backends, e.backend)
		}
	}
	n.NotEvaluated = w.doubts
	switch {
	case worst.by != "":
		n.Verdict, n.By, n.Do, n.Own, n.Stage = worst.verdict, worst.by, worst.do, worst.own, worst.stage
		shown = w.ends[slices.IndexFunc(w.ends, func(e end) bool { return e.stop == worst })]
	case len(n.NotEvaluated) > 0:
		n.Verdict = trace.Undecided
	}
	n.Steps = shown.steps
	return n
}

// retries reports whether the proxy itself connects to backends and reaches at least one, so that
// no client notices the others. It does not notice that a datagram is lost.
func (w *walk) retries() bool {
	return w.q.Mode.Terminates && slices.ContainsFunc(w.ends, func(e end) bool { return e.by == "" })
}
