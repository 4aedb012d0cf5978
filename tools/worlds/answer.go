package main

import (
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// answer is what this test reads of "kube-proxy trace -o json": the interface for programs, not the
// types of the code that answers.
type answer struct {
	Exit int    `json:"-"`
	Text string `json:"-"`

	Verdict    string    `json:"verdict"`
	Masquerade bool      `json:"masquerade"`
	Backends   []ofShare `json:"backends"`
	Kernel     *struct {
		Verdict    string    `json:"verdict"`
		Backends   []ofShare `json:"backends"`
		Masquerade bool      `json:"masquerade"`
	} `json:"kernel"`
	Findings []string `json:"findings"`
	Rest     *rest    `json:"rest"`
	Notes    []string `json:"notes"`
}

type ofShare struct {
	Address netip.AddrPort `json:"address"`
	Share   float64        `json:"share"`
	Hairpin bool           `json:"hairpin"` // the client itself, which is masqueraded
	Here    bool           `json:"here"`    // at an address of the node, and so not masqueraded
}

type rest struct {
	Verdict      string           `json:"verdict"`
	By           string           `json:"by"`
	Own          bool             `json:"own"`
	Stage        string           `json:"stage"`
	Share        float64          `json:"share"`
	Backends     []netip.AddrPort `json:"backends"`
	Elsewhere    string           `json:"elsewhere"`
	Warnings     []string         `json:"warnings"`
	NotEvaluated []string         `json:"notEvaluated"`
	Steps        []struct {
		Text string `json:"text"`
	} `json:"steps"`
}

// outcome is what became of one connection.
type outcome struct {
	kind string         // answered, refused (by an error) or silent
	at   netip.AddrPort // answered: the address that the backend was reached at
	seen netip.Addr     // answered: the client's address as the backend saw it
	host string         // answered: the host of the backend
	note string
}

func (o outcome) String() string {
	if o.kind != "answered" {
		return o.kind + " " + o.note
	}
	return "answered by " + o.host + " at " + o.at.String() + ", which saw " + o.seen.String()
}

// verdict of a comparison.
type verdict struct {
	class string // right, vague, wrong, or unsent: no connection could be made
	why   string // of one that is wrong: what was said, and what happened
}

var (
	right  = verdict{class: "right"}
	vague  = verdict{class: "vague"}
	unsent = verdict{class: "unsent"}
)

func wrong(why string) verdict { return verdict{"wrong", why} }

// hedge is a warning that says what is not known.
var hedge = regexp.MustCompile(`\b(need not|may|might|guess|guesses|assumed|not known|unknown|cannot)\b`)

// judge compares an answer with what happened.
func (w *world) judge(q query, a answer, seen []outcome) verdict {
	switch {
	case slices.ContainsFunc(seen, func(o outcome) bool { return o.kind == "unsent" }):
		return unsent
	case a.Exit == 1 || a.Exit < 0:
		return wrong("not answered: the command failed")
	case a.Exit >= 3 || a.Rest == nil || a.Rest.Verdict == "unknown":
		return vague
	}
	v := w.compare(q, a, seen)
	if v.class == "wrong" && a.Rest.Verdict == "delivered" && slices.ContainsFunc(a.Rest.Warnings,
		hedge.MatchString) {
		return vague
	}
	if v.class == "wrong" && a.Rest.partial() && len(a.Rest.NotEvaluated) > 0 {
		return vague // the others are not decided
	}
	return v
}

func (w *world) compare(q query, a answer, seen []outcome) verdict {
	count := map[string]int{}
	for _, o := range seen {
		count[o.kind]++
	}
	failed := count["silent"] + count["refused"]
	switch a.Rest.Verdict {
	case "delivered":
		return w.delivered(q, a, seen)
	case "dropped", "rejected":
		all := a.Rest.Share > 0.999 || a.Rest.Own
		want := map[string]string{"dropped": "silent", "rejected": "refused"}[a.Rest.Verdict]
		switch {
		case strings.HasPrefix(a.Rest.Stage, "reply: ") && failed == len(seen) && a.deaf():
			return right // nothing replies but the host, with an error
		case all && count["answered"] > 0:
			return wrong(a.Rest.Verdict + ", but answered")
		case count[want] == 0 && !all && failed == 1 && len(seen) == 1:
			return right // by another obstacle, which the share includes
		case count[want] == 0 && !all && (w.keeps(q) || a.Rest.escapes(len(seen))):
			return w.delivered(q, a, seen) // by the backends that are not harmed
		case failed == 0:
			return wrong(a.Rest.Verdict + " in part, but all answered")
		case count[want] == 0:
			return wrong(a.Rest.Verdict + ", but " + other(want))
		}
		return w.delivered(q, a, answered(seen))
	}
	// A verdict of a later version: exit code 2 says that something stops or diverts the packet.
	switch {
	case a.Exit == 2 && !w.asTabled(q, a, seen):
		return right
	case a.Exit == 2 && a.Rest.Share > 0 && a.Rest.Share <= 0.999 && (w.keeps(q) || a.Rest.escapes(len(seen))):
		return right // by the backends that are not harmed
	case a.Exit == 2:
		return wrong(a.Rest.Verdict + ", but answered as the table says")
	}
	return w.delivered(q, a, seen)
}

// deaf reports whether nothing listens at any backend of the answer.
func (a answer) deaf() bool {
	listens := func(b ofShare) bool { return b.Address.Port() != deaf }
	return len(a.Backends) > 0 && !slices.ContainsFunc(a.Backends, listens)
}

// partial reports whether some connections are stopped, and others are not.
func (r *rest) partial() bool {
	return (r.Verdict == "dropped" || r.Verdict == "rejected") && r.Share <= 0.999 && !r.Own
}

// many is how many connections say something of a share. Fewer are repeated.
const many = 16

// escapes reports whether n connections may all meet backends that are not harmed, by chance.
func (r *rest) escapes(n int) bool {
	return n == 1 || n >= many && r.Share > 0 && math.Pow(1-r.Share, float64(n)) > 1e-4
}

// keeps reports whether the Service keeps a client at a backend.
func (w *world) keeps(q query) bool {
	return slices.ContainsFunc(w.services, func(s service) bool {
		return s.affinity && strings.HasPrefix(q.about, s.name+",")
	})
}

// asTabled reports whether all connections reached a backend of the answer.
func (w *world) asTabled(q query, a answer, seen []outcome) bool {
	return w.delivered(q, a, seen) == right && len(answered(seen)) == len(seen)
}

func answered(seen []outcome) []outcome {
	var all []outcome
	for _, o := range seen {
		if o.kind == "answered" {
			all = append(all, o)
		}
	}
	return all
}

func other(kind string) string {
	if kind == "silent" {
		return "refused"
	}
	return "silent"
}

// delivered judges outcomes of packets that pass this node according to the answer.
func (w *world) delivered(q query, a answer, seen []outcome) verdict {
	said, backends, masquerade := a.Verdict, a.Backends, a.Masquerade
	if k := a.Kernel; k != nil {
		said, masquerade = k.Verdict, k.Masquerade
		if len(k.Backends) > 0 {
			backends = k.Backends
		}
	}
	for _, o := range seen {
		if v := w.one(q, said, backends, masquerade, a, o); v != right {
			return v
		}
	}
	return right
}

func (w *world) one(q query, said string, backends []ofShare, masquerade bool, a answer, o outcome) verdict {
	switch said {
	case "reject":
		if o.kind != "refused" {
			return wrong("the table rejects, but " + o.kind)
		}
		return right
	case "drop":
		if o.kind != "silent" {
			return wrong("the table drops, but " + o.kind)
		}
		return right
	case "pass":
		// Where a packet to an address of no host goes, nothing answers.
		if o.kind == "answered" && (o.host != ownerOf(q.to.Addr()) || o.at.Port() != q.to.Port()) {
			return wrong("passes, but answered by another host or port")
		}
		return right
	}
	for _, b := range backends {
		switch {
		case o.kind == "answered" && o.at == b.Address:
			return source(q, masquerade && !a.says(b.Address, here) || a.says(b.Address, hairpin), a, o)
		case o.kind == "refused" && b.Address.Port() == deaf, o.kind == "silent" && w.mute(b.Address.Addr()):
			return right
		case o.kind == "refused" && w.mode == "userspace" && w.mute(b.Address.Addr()):
			return right // by the proxy, which waits for it
		case o.kind == "silent" && q.udp && w.mode == "userspace" && b.Address.Port() == deaf:
			return right // the error comes to the proxy's socket, and no client learns of it
		}
	}
	if o.kind == "answered" {
		return wrong("delivered, but answered by an address that is no backend of the answer")
	}
	return wrong("delivered, but " + o.kind)
}

func hairpin(b ofShare) bool { return b.Hairpin }
func here(b ofShare) bool    { return b.Here }

// says reports what the answer says of a backend.
func (a answer) says(at netip.AddrPort, what func(ofShare) bool) bool {
	return slices.ContainsFunc(a.Backends, func(b ofShare) bool { return b.Address == at && what(b) })
}

// source judges the client's address that a backend saw.
func source(q query, masquerade bool, a answer, o outcome) verdict {
	own := o.seen == q.source() || q.from == "node1" && ownerOf(o.seen) == "node1"
	translated := ownerOf(o.seen) == "node1"
	if masquerade && translated || !masquerade && own {
		return right
	}
	for _, s := range a.Rest.Steps {
		if strings.Contains(s.Text, o.seen.String()) || strings.Contains(s.Text, "masquerade") {
			return right
		}
	}
	if masquerade {
		return wrong("masqueraded, but the backend saw the client")
	}
	return wrong("not masqueraded, but the backend saw another address")
}

// mute reports whether the host of an address drops what arrives.
func (w *world) mute(addr netip.Addr) bool {
	host := ownerOf(addr)
	return slices.ContainsFunc(w.mutations, func(m mutation) bool { return m.kind == "pod drops" && m.host == host })
}

// details are what differs between answers of one cause.
var details = regexp.MustCompile(`"[^"]*"|[0-9a-f]*:[0-9a-f:]+|\d[\d.]*`)

// hedge is the first reason of a vague answer.
func (a answer) hedge() string {
	reason := "exit code 3 without a reason"
	switch {
	case a.Rest != nil && len(a.Rest.NotEvaluated) > 0:
		reason = a.Rest.NotEvaluated[0]
	case a.Rest != nil && len(a.Rest.Warnings) > 0:
		reason = a.Rest.Warnings[0]
	case len(a.Notes) > 0:
		reason = a.Notes[0]
	case a.Text != "":
		reason = a.Text
	}
	reason = details.ReplaceAllString(strings.TrimSpace(reason), "_")
	return reason[:min(len(reason), 120)]
}
