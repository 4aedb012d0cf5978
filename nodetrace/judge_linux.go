package nodetrace

import (
	"fmt"
	"slices"
	"strings"

	"kube-proxy/lb"
	"kube-proxy/nodetrace/internal/hooks"
	"kube-proxy/trace"
)

// maxHarmed is how many backends an answer names.
const maxHarmed = 8

// judge sums up where the ways ended. The culprit is the obstacle that most connections meet.
func (w *walk) judge() trace.Node {
	n := trace.Node{Verdict: trace.Delivered, Warnings: w.warnings}
	shares, shown, retries := map[stop]float64{}, end{}, w.retries()
	var worst stop
	for i, e := range w.ends {
		uncertain := false
		for _, d := range e.doubts {
			if d.verdict == trace.Delivered && (e.by == "" || strings.HasSuffix(e.stop.stage, atPort)) {
				continue
			}
			w.doubt("%s", d.what)
			uncertain = uncertain || d.verdict != e.verdict
		}
		if uncertain && e.by != "" { // the packet may end otherwise
			w.doubt("unless these decide otherwise, it is %s by %s", e.verdict, e.by)
			e.by = ""
		}
		if e.by == "" {
			if len(shown.steps) == 0 || e.masq && !shown.masq {
				shown = e
			}
			continue
		}
		if retries && w.notices(e.stop) && e.backend.IsValid() {
			text := fmt.Sprintf("The proxy does not reach %s, and takes another backend: %s.", e.backend, e.by)
			if e.verdict == trace.Dropped { // it waits for an answer first
				text += " A connection may wait some seconds for that."
			}
			n.Warnings = append(n.Warnings, text)
			continue
		}
		if e.verdict == trace.Rejected && e.proxys && w.q.Packet.Proto == lb.UDP {
			e.verdict = trace.Dropped // the error comes to the proxy's socket
			w.ends[i] = e
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
	n.Steps, n.Sees = shown.steps, w.sees()
	return n
}

// sees is what backends see as the source, if no way to one agrees with the table.
func (w *walk) sees() trace.Sees {
	k, t := w.q.Kernel, w.q.Table
	if w.own() || w.q.Mode.Holds || t.Verdict != trace.Balance || k != nil && k.Connected {
		return ""
	}
	reached := 0
	for _, e := range w.ends {
		if e.by != "" || !e.backend.IsValid() || e.toHere {
			continue
		}
		reached++
		hairpin := e.backend.Addr() == w.q.Packet.From.Addr()
		if hairpin || (e.masq || e.proxys) == t.Masquerade || len(e.doubts) > 0 {
			return ""
		}
	}
	switch {
	case reached == 0:
		return ""
	case t.Masquerade:
		return trace.SeesClient
	}
	return trace.SeesAnother
}

// notices reports whether the proxy notices that a backend is not reached. It does not if another
// program answers, or if a datagram or what follows a handshake is lost, but sending a datagram
// fails where a hook of its own packets drops it.
func (w *walk) notices(s stop) bool {
	if strings.HasPrefix(s.stage, nextPackets) || s.verdict == trace.Translated {
		return false
	}
	own := s.stage == hooks.Output.String() || s.stage == hooks.Postrouting.String()
	return w.q.Packet.Proto != lb.UDP || s.verdict != trace.Dropped || own
}

// retries reports whether the proxy itself connects to backends and reaches at least one, so that
// no client notices the others.
func (w *walk) retries() bool {
	return w.q.Mode.Terminates && slices.ContainsFunc(w.ends, func(e end) bool { return e.by == "" })
}
