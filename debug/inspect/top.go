package inspect

import (
	"cmp"
	"context"
	"slices"
	"time"

	"kube-proxy/debug/flows"
	"kube-proxy/lb"
	"kube-proxy/trace"
)

// Top has the number of new connections of each Service, and of each of its frontends, the busiest
// first.
type Top struct {
	// Node is the node of this answer.
	Node  string    `json:"node"`
	Since time.Time `json:"since"`
	At    time.Time `json:"at"`
	// Span is the number of seconds in which New was counted.
	Span      float64   `json:"spanSeconds"`
	Services  []TopLine `json:"services"`
	Frontends []TopLine `json:"frontends"`
	// Elsewhere are connections in Span to addresses and ports that no Service has.
	Elsewhere uint64 `json:"elsewhere"`
	// Missed is how many messages of the kernel were lost in Span. AtLeast: the other numbers are
	// then lower bounds.
	Missed  uint64 `json:"missed,omitempty"`
	AtLeast bool   `json:"atLeast,omitempty"`
	// MoreFrontends is the number of other frontends with connections, fewer than the listed ones.
	MoreFrontends int `json:"moreFrontends,omitempty"`
	// Counted are connections and bytes per second by the kernel's counters, of each Service
	// ("ns/name") that has metrics of its own (--service-metrics); null where nothing is counted.
	Counted map[string][2]float64 `json:"counted"`
	// Note says why counters could not be read; "" if they could.
	Note string `json:"note,omitempty"`
}

// count adds what the counters of the modes say.
func (t *Top) count(ctx context.Context, families []Family) {
	for _, f := range families {
		if f.Counted == nil {
			continue
		}
		if t.Counted == nil {
			t.Counted = map[string][2]float64{}
		}
		if err := f.Counted(ctx, func(service string, connections, bytes float64) {
			c := t.Counted[service]
			t.Counted[service] = [2]float64{c[0] + connections, c[1] + bytes}
		}); err != nil {
			t.Note = err.Error()
		}
	}
}

// TopLine is one Service ("ns/name:port"), or one of its frontends.
type TopLine struct {
	Service   string  `json:"service"`
	Key       string  `json:"key,omitempty"`
	Family    string  `json:"family,omitempty"`
	New       uint64  `json:"new"`
	PerSecond float64 `json:"perSecond"`
	Total     uint64  `json:"total"`
}

// maxWatching is how many may have connections counted at a time: each costs some 5 µs of CPU a
// connection.
const maxWatching = 4

// Top calls each every second with the connections that were opened to Services, until it returns
// false or ctx ends.
func (i *Inspector) Top(ctx context.Context, each func(*Top) bool) error {
	if i.cfg.Offline {
		return Problemf(Unavailable, "no connections offline: query a running proxy")
	}
	select {
	case i.watching <- struct{}{}:
		defer func() { <-i.watching }()
	default:
		return Problemf(Unavailable, "%d commands already count connections: end one of them (top)", maxWatching)
	}
	t, err := flows.Listen(i.tables())
	if err != nil {
		return Problemf(Unavailable, "%v", err)
	}
	t.Each(ctx, func(r *flows.Rates) bool {
		answer := top(r)
		answer.Node = i.Node()
		answer.count(ctx, i.cfg.Families)
		return each(answer)
	})
	return ctx.Err()
}

func top(r *flows.Rates) *Top {
	out := &Top{Since: r.Since, At: r.At, Span: r.Span.Seconds(), Services: []TopLine{}, Frontends: []TopLine{},
		Elsewhere: r.Elsewhere, Missed: r.Missed, AtLeast: r.AtLeast(), MoreFrontends: r.Others}
	by := map[string]int{}
	for _, x := range r.Frontends {
		line := TopLine{x.Frontend.Service, x.Frontend.Key.String(), x.Family.String(), x.New, x.PerSecond, x.Total}
		out.Frontends = append(out.Frontends, line)
		at, known := by[line.Service]
		if !known {
			at = len(out.Services)
			by[line.Service] = at
			out.Services = append(out.Services, TopLine{Service: line.Service})
		}
		s := &out.Services[at]
		s.New, s.PerSecond, s.Total = s.New+line.New, s.PerSecond+line.PerSecond, s.Total+line.Total
	}
	slices.SortStableFunc(out.Services, func(a, b TopLine) int {
		return cmp.Or(cmp.Compare(b.New, a.New), cmp.Compare(b.Total, a.Total), cmp.Compare(a.Service, b.Service))
	})
	return out
}

// tables returns a function for the frontends of all families. It reads them again only if the
// engine has resolved something.
func (i *Inspector) tables() func() []flows.Table {
	now, at := make([]flows.Table, len(i.cfg.Families)), make([]uint64, len(i.cfg.Families))
	return func() []flows.Table {
		now = slices.Clone(now) // the previous one is still being read
		for n, f := range i.cfg.Families {
			resolved := uint64(0)
			if f.Stats != nil {
				resolved = f.Stats().Resolved
			}
			t := &now[n]
			if t.Frontends == nil || resolved != at[n] {
				t.Family, t.Frontends, at[n] = f.Family, i.inForce(f), resolved
			}
			f.Query(func(table *lb.Table) { t.NodePorts = table.Node.NodePorts })
		}
		return now
	}
}

// inForce returns the frontends of a family that are in force, read one Service after the other.
func (i *Inspector) inForce(f Family) []*lb.Frontend {
	out := []*lb.Frontend{}
	for _, name := range i.Names() {
		o := f.owned(name)
		for _, row := range o.rows {
			if _, lost := o.lost[row.Key]; !lost {
				out = append(out, row)
			}
		}
	}
	return out
}

// maxConnections is how many connections a trace names.
const maxConnections = 20

// connectionsWait limits the time of reading conntrack's table. A kernel with filters needs a tenth
// of a second for a million entries.
const connectionsWait = 2 * time.Second

// connections adds those of the packet's source and destination in conntrack.
func (i *Inspector) connections(ctx context.Context, p trace.Packet, a *TraceAnswer) {
	if i.cfg.Offline || !p.From.IsValid() || p.Proto == trace.ICMPv4 || p.Proto == trace.ICMPv6 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, connectionsWait)
	defer cancel()
	found, err := flows.Find(ctx, flows.Query{Proto: p.Proto, From: p.From, To: p.To, Most: maxConnections})
	if err != nil {
		a.Notes = append(a.Notes, "cannot list open connections: "+err.Error())
		return
	}
	a.connected(found)
}

// connected adds the connections of conntrack.
func (a *TraceAnswer) connected(found flows.Found) {
	for _, f := range found.Flows {
		a.Conntrack = append(a.Conntrack, Connection{From: f.From, To: f.To, Backend: f.By, Sees: f.Client,
			Proto: f.Proto.String(), State: f.State, Answered: f.Answered, Offloaded: f.Offloaded, Mark: f.Mark,
			Timeout: int(f.Timeout.Seconds())})
	}
	a.ConntrackEnded, a.ConntrackMore = found.Ended, found.More
	switch {
	case found.More && len(found.Flows) == maxConnections:
		a.Notes = append(a.Notes, "more connections are open")
	case found.More:
		a.Notes = append(a.Notes, "more connections may be open: the conntrack table is too large to read completely")
	}
}
