package convert

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"kube-proxy/cluster"
)

// ReasonIncorrectIPVersion is the reason of the Warning event for an address of the wrong family
// (EV-06).
const ReasonIncorrectIPVersion = "KubeProxyIncorrectIPVersion"

// Problem is a fault in an object of the user: the fault, its place, and its effect. It is
// comparable.
type Problem struct {
	// File and Line are the place of the object; "" and 0 if it came from an API server.
	File string
	Line int
	// Kind and Name identify the object; Kind is "" for a problem of a whole file. Name.Namespace
	// is "" for Nodes and ServiceCIDRs.
	Kind string
	Name cluster.Name
	// Field is the path of the field, such as "spec.ports[1].port"; Value is its value. Either may
	// be "".
	Field, Value string
	// What is the fault, for example "is not an IP address", and Then its effect: "it is ignored".
	What, Then string
	// Reason is the reason of the Warning event to send about the object; "" for no event.
	Reason string
	// Refused: an API server would have rejected the object, and it cannot be used. A source
	// without an API server should leave it out.
	Refused bool
}

// String returns the problem as one line: "shop.yaml:12: Service shop/web: spec.ports[0].port: 0 is
// ...".
func (p Problem) String() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File)
		if p.Line > 0 {
			b.WriteString(":" + strconv.Itoa(p.Line))
		}
		b.WriteString(": ")
	}
	switch {
	case p.Kind == "":
	case p.Name.Namespace == "":
		b.WriteString(strings.TrimSuffix(p.Kind+" "+p.Name.Name, " ") + ": ")
	default:
		b.WriteString(p.Kind + " " + p.Name.String() + ": ")
	}
	if p.Field != "" {
		b.WriteString(p.Field + ": ")
	}
	if p.Value != "" {
		b.WriteString(strconv.Quote(p.Value) + " ")
	}
	b.WriteString(p.What)
	if p.Then != "" {
		b.WriteString("; " + p.Then)
	}
	return b.String()
}

// An object's problems are reported one by one up to maxAlike of a kind and maxAll in all: a
// slice may have a thousand endpoints with the same fault.
const (
	maxAlike = 3
	maxAll   = 20
)

// problems collects the faults of one object.
type problems struct {
	kind string
	name cluster.Name
	list []Problem
	more int // problems that are not reported
	// moreRefused: one of those would have been refused.
	moreRefused bool
}

func (ps *problems) add(p Problem) {
	alike := 0
	for _, o := range ps.list {
		if o.What == p.What {
			alike++
		}
	}
	if alike >= maxAlike || len(ps.list) >= maxAll {
		ps.more++
		ps.moreRefused = ps.moreRefused || p.Refused
		return
	}
	p.Kind, p.Name = ps.kind, cluster.Name{Namespace: strings.Clone(ps.name.Namespace),
		Name: strings.Clone(ps.name.Name)}
	p.Value = strings.Clone(p.Value)
	ps.list = append(ps.list, p)
}

// done returns the problems; the last one counts those that are not reported.
func (ps *problems) done() []Problem {
	if ps.more > 0 {
		what := fmt.Sprintf("has %d more problems of these sorts", ps.more)
		if ps.more == 1 {
			what = "has 1 more problem of these sorts"
		}
		first := ps.list[0]
		ps.list = append(ps.list, Problem{Kind: first.Kind, Name: first.Name, What: what, Refused: ps.moreRefused})
	}
	return ps.list
}

// Reporter passes problems on once per change: if an object is listed again with the same problems,
// they are not reported again. Its memory is proportional to the number of faulty objects. It is
// safe for concurrent use; [NewReporter] makes one.
type Reporter struct {
	report   func(Problem)
	mu       sync.Mutex
	reported map[object][]Problem
}

type object struct {
	kind string
	name cluster.Name
}

// NewReporter returns a Reporter that calls report for each new problem, from the goroutine that
// found it and without a lock. report must limit how much it writes: tenants decide how often
// their objects change. A nil report drops all problems.
func NewReporter(report func(Problem)) *Reporter {
	return &Reporter{report: report, reported: map[object][]Problem{}}
}

// Report takes all current problems of an object, which may be none.
func (r *Reporter) Report(kind string, name cluster.Name, now []Problem) {
	if r.report == nil || !r.news(object{kind, name}, now) {
		return
	}
	for _, p := range now {
		r.report(p)
	}
}

// news records an object's problems, and reports whether they differ from the previous ones.
func (r *Reporter) news(o object, now []Problem) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case slices.Equal(r.reported[o], now):
		return false
	case len(now) == 0:
		delete(r.reported, o)
	default:
		r.reported[object{o.kind, now[0].Name}] = now
	}
	return true
}

// Keep forgets the objects of a kind that are not among those there. Call it after a complete list.
func (r *Reporter) Keep(kind string, there []cluster.Name) {
	kept := make(map[cluster.Name]bool, len(there))
	for _, name := range there {
		kept[name] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.reported, func(o object, _ []Problem) bool { return o.kind == kind && !kept[o.name] })
}
