package inspect

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// Brief is a Service that is not ok, in short.
type Brief struct {
	// Service is "ns/name".
	Service  string   `json:"service"`
	State    State    `json:"state"`
	Severity Severity `json:"severity"`
	Why      string   `json:"why,omitempty"`
}

// odd holds the Services that are neither ok nor not-proxied. Its memory is proportional to their
// number. The time of an update is proportional to the changes since the last query.
type odd struct {
	mu    sync.Mutex
	known bool
	all   map[cluster.Name]Brief
	marks marks     // state up to which all entries are current
	due   time.Time // all Services are not looked at again before
}

// marks are numbers that move when Services may have changed their states; for a change of a single
// Service [Inspector.ServicesSince] returns that Service.
type marks struct {
	newest uint64
	others [2]struct { // of the families
		conflicts             uint64
		contested, unresolved int
		begun                 bool
	}
}

// marks returns the current numbers, and whether changes are owed to a plane: they have no entry
// before they are in force.
func (i *Inspector) marks() (m marks, owed bool) {
	m.newest = i.Newest()
	for k, f := range i.cfg.Families {
		if f.Stats == nil {
			owed = true
			continue
		}
		s := f.Stats()
		o := &m.others[k]
		o.conflicts, o.contested, o.unresolved, o.begun = s.Conflicts, s.Contested, s.Unresolved, s.Begun
		owed = owed || s.Owed != (cluster.Changes{})
	}
	return m, owed
}

// freely is how long an inspection of all Services may take; longer ones are limited to a tenth of
// the time.
const freely = 5 * time.Millisecond

// oddOnes returns the Services that are neither ok nor not-proxied, in no order.
func (i *Inspector) oddOnes() []Brief {
	o := &i.odd
	o.mu.Lock()
	defer o.mu.Unlock()
	now, owed := i.marks()
	again := !o.known || owed || now.others != o.marks.others
	keep := func(s Service) error {
		name := cluster.Name{Namespace: s.Namespace, Name: s.Name}
		if delete(o.all, name); s.State != OK && s.State != NotProxied {
			o.all[name] = Brief{name.String(), s.State, s.Severity, s.Why}
		}
		return nil
	}
	if !again {
		since, _ := i.ServicesSince(o.marks.newest, keep)
		if again = since.Again; !again {
			for _, name := range since.Gone {
				delete(o.all, ParseName(name))
			}
			i.look(o.unsteady(), keep)
			i.look(i.failingNames(), keep)
		}
	}
	if begun := time.Now(); !again || !o.known || !begun.Before(o.due) { // else the answer is as of a moment ago
		if again {
			o.all = map[cluster.Name]Brief{}
			_, _ = i.Services(keep) // keep returns no error
			o.known, o.due = true, time.Now().Add(9*max(0, time.Since(begun)-freely))
		}
		o.marks = now
	}
	return slices.AppendSeq(make([]Brief, 0, len(o.all)), maps.Values(o.all))
}

// look calls each with the current state of these Services.
func (i *Inspector) look(names []cluster.Name, each func(Service) error) {
	if len(names) > 0 {
		_, _ = i.services(names, Since{}, each) // keep returns no error
	}
}

// unsteady are the Services whose state may end without a change of theirs.
func (o *odd) unsteady() (names []cluster.Name) {
	for name, b := range o.all {
		if b.State == Failing || b.State == Waiting {
			names = append(names, name)
		}
	}
	return names
}

// failingNames returns the Services with failing frontends.
func (i *Inspector) failingNames() (names []cluster.Name) {
	for name := range i.failing() {
		names = append(names, ParseName(name))
	}
	return names
}

// bad returns the Services that need attention, the worst first, then by name.
func (i *Inspector) bad() []Brief {
	all := slices.DeleteFunc(i.oddOnes(), func(b Brief) bool { return !b.Severity.Bad() })
	slices.SortFunc(all, func(a, b Brief) int {
		return cmp.Or(b.Severity.Compare(a.Severity), gravity[b.State]-gravity[a.State],
			strings.Compare(a.Service, b.Service))
	})
	return all
}

// Attention lists the Services that need it.
type Attention struct {
	// Node is the node of this answer.
	Node string `json:"node"`
	// Services is how many need attention.
	Services int `json:"services"`
	// Groups are those of one state in one namespace, the worst first; at most [maxGroups].
	Groups []Group `json:"groups"`
	// More is how many Services are in further groups.
	More int `json:"more,omitempty"`
}

// Group is the Services of one namespace that are in the same state.
type Group struct {
	Namespace string   `json:"namespace"`
	State     State    `json:"state"`
	Severity  Severity `json:"severity"`
	Count     int      `json:"count"`
	// First are the first of them by name, at most [maxOfGroup].
	First []Brief `json:"first"`
}

// The bounds of [Attention]. A tenant with very many broken Services fills one group for each
// state.
const (
	maxGroups  = 100
	maxOfGroup = 3
)

// Attention lists the Services that need attention.
func (i *Inspector) Attention() Attention {
	out := Attention{Node: i.Node(), Groups: []Group{}}
	bad := i.bad()
	out.Services = len(bad)
	for _, b := range bad { // sorted by state, then by namespace
		namespace := lb.NamespaceOf(b.Service)
		last := len(out.Groups) - 1
		if last < 0 || out.Groups[last].Namespace != namespace ||
			out.Groups[last].State != b.State || out.Groups[last].Severity != b.Severity {
			if out.More > 0 || last+1 == maxGroups {
				out.More++
				continue
			}
			out.Groups = append(out.Groups, Group{Namespace: namespace, State: b.State, Severity: b.Severity})
			last++
		}
		g := &out.Groups[last]
		if g.Count++; len(g.First) < maxOfGroup {
			g.First = append(g.First, b)
		}
	}
	return out
}

// OtherNamespaces represents all namespaces that [Inspector.Tally] does not name.
const OtherNamespaces = "_others"

// Tally calls each with the number of a namespace's Services that are in a state other than ok and
// not-proxied. It names at most that many namespaces, those with the most; the others are added up
// as [OtherNamespaces].
func (i *Inspector) Tally(most int, each func(namespace string, s State, v Severity, n int)) {
	type kind struct {
		namespace string
		state     State
		severity  Severity
	}
	all, counts := i.oddOnes(), map[string]int{}
	for _, b := range all {
		counts[lb.NamespaceOf(b.Service)]++
	}
	named := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(counts[b]-counts[a], strings.Compare(a, b))
	})
	kinds := map[kind]int{}
	for _, n := range named[min(len(named), most):] {
		counts[n] = 0
	}
	for _, b := range all {
		k := kind{lb.NamespaceOf(b.Service), b.State, b.Severity}
		if counts[k.namespace] == 0 {
			k.namespace = OtherNamespaces
		}
		kinds[k]++
	}
	for k, n := range kinds {
		each(k.namespace, k.state, k.severity, n)
	}
}
