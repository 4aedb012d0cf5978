package inspect

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"kube-proxy/debug/changes"
	"kube-proxy/internal/plural"
)

// Finding is a problem, and the next command to run.
type Finding struct {
	Severity Severity `json:"severity"`
	// About is source, writes, drift, conntrack, node, or the state of Services.
	About string `json:"about"`
	Text  string `json:"text"`
	// Services is how many Services it concerns. First has the first of them, at most
	// [maxOfGroup]. Not all findings have them.
	Services int      `json:"services,omitempty"`
	First    []string `json:"first,omitempty"`
	Next     string   `json:"next"`
}

// OtherRules is what a finding is about if rules of other programs stop a Service's packets, or
// lead them elsewhere.
const OtherRules = "other-rules"

// otherRules are the findings about [OtherRules].
func otherRules(all []Finding) []Finding {
	return slices.DeleteFunc(slices.Clone(all), func(f Finding) bool { return f.About != OtherRules })
}

// OtherRules are the findings about rules of other programs.
func (s *Status) OtherRules() []Finding { return otherRules(s.Findings) }

// findings gathers findings.
type findings []Finding

func (f *findings) add(v Severity, about, next, format string, args ...any) {
	*f = append(*f, Finding{Severity: v, About: about, Text: fmt.Sprintf(format, args...), Next: next})
}

// Thresholds of findings.
const (
	// startTime is how long a normal start may take.
	startTime = time.Minute
	// slowWrite is how long a change may wait for the kernel.
	slowWrite = 30 * time.Second
	// recentDrift is how long repaired drift is a finding.
	recentDrift = 10 * time.Minute
)

// findings returns the problems, the worst first. s has all fields except findings.
func (i *Inspector) findings(s *Status) []Finding {
	var f findings
	now := time.Now()
	i.sourceFindings(&f, s)
	for k := range s.Families {
		s.Families[k].findings(&f, s, now)
	}
	if c := s.Conntrack; c != nil && c.Limit > 0 && c.Entries*10 >= c.Limit*9 {
		v := Warning
		if c.Entries*100 >= c.Limit*99 {
			v = Error
		}
		f.add(v, "conntrack", "kube-proxy top", "the connection table is nearly full: %d of %d entries; "+
			"the kernel drops packets of further connections", c.Entries, c.Limit)
	}
	if n := repaired(now, i.recent()); n != "" {
		f.add(Warning, "drift", "kube-proxy events", "%s", n)
	}
	if i.cfg.NodeProblems != nil && s.Synced {
		f = append(f, i.cfg.NodeProblems()...)
	}
	i.failoverFindings(&f)
	i.serviceFindings(&f)
	slices.SortStableFunc(f, func(a, b Finding) int { return b.Severity.Compare(a.Severity) })
	if f == nil {
		return []Finding{}
	}
	return f
}

func (i *Inspector) sourceFindings(f *findings, s *Status) {
	const next = "kube-proxy check --problems"
	switch {
	case s.Offline:
	case s.Snapshot != nil:
		f.add(Warning, "source", next, "the API server has not answered: the rules come from the snapshot of %s UTC",
			s.Snapshot.UTC().Format(time.DateTime))
	case !s.Synced && s.Started != nil && time.Since(*s.Started) < startTime:
		f.add(Warning, "starting", "kube-proxy status --watch",
			"starting: the API server has not listed all Services and EndpointSlices yet")
	case !s.Synced:
		f.add(Warning, "source", next, "the API server has not listed all Services and EndpointSlices yet")
	case i.cfg.Connected != nil && !i.cfg.Connected():
		f.add(Warning, "source", next, "the API server does not answer: the last known state stays in force")
	}
}

func (f *FamilyStatus) findings(all *findings, s *Status, now time.Time) {
	add := func(v Severity, next, format string, args ...any) {
		all.add(v, "writes", next, "%s: %s", f.Family, fmt.Sprintf(format, args...))
	}
	if x := f.Sockets; x != nil && !x.Serving && !x.Configured {
		all.add(Warning, "sockets", "kube-proxy check --problems",
			"%s: the eBPF programs are off, and rules serve all connections: %s", f.Family, x.Off)
	}
	switch {
	case f.Lost:
		add(Error, "kube-proxy events", "the kernel state is unknown: everything is being written again")
	case f.Failures > 0 && f.QueuedSince != nil && f.LastFailure != nil &&
		(f.LastSuccess == nil || f.LastFailure.After(*f.LastSuccess)):
		add(Error, "kube-proxy events", "the last write failed: %s", f.LastError)
	case len(f.Failing) > 0:
		x := f.Failing[0]
		add(Error, "kube-proxy why "+x.Service, "%s not in force; %s: %s",
			plural.Count(len(f.Failing), "frontend is", "frontends are"), x.Key, x.Error)
	case f.QueuedSince != nil && now.Sub(*f.QueuedSince) > slowWrite:
		add(Warning, "kube-proxy events", "changes wait for the kernel since %s UTC",
			f.QueuedSince.UTC().Format(time.DateTime))
	case s.Synced && !f.Begun && !s.Offline && s.Started != nil && now.Sub(*s.Started) < startTime:
		add(Warning, "kube-proxy status --watch", "starting: the first write is not complete")
	case s.Synced && !f.Begun && !s.Offline:
		add(Warning, "kube-proxy events", "nothing is written yet")
	}
	if f.Unresolved > 0 {
		add(Error, "kube-proxy events", "the frontends of %s cannot be computed",
			plural.Count(f.Unresolved, "Service", "Services"))
	}
}

// recent are the newest entries of the ring.
func (i *Inspector) recent() []changes.Entry {
	newest := i.Newest()
	entries, _ := i.cfg.Changes.After(newest - min(newest, 200))
	return entries
}

// repaired describes recently repaired drift; "" for none.
func repaired(now time.Time, recent []changes.Entry) string {
	for _, e := range slices.Backward(recent) {
		if e.Kind == changes.Repaired && now.Sub(time.Unix(0, e.Done)) < recentDrift {
			return e.Words()
		}
	}
	return ""
}

// serviceFindings has a finding for each state of Services that needs attention.
func (i *Inspector) serviceFindings(f *findings) {
	for bad := i.bad(); len(bad) > 0; {
		n := 1
		for n < len(bad) && bad[n].State == bad[0].State && bad[n].Severity == bad[0].Severity {
			n++
		}
		x := Finding{Severity: bad[0].Severity, About: string(bad[0].State),
			Services: n, First: make([]string, 0, min(n, maxOfGroup)), Next: "kube-proxy why " + bad[0].Service}
		for _, b := range bad[:min(n, maxOfGroup)] {
			x.First = append(x.First, b.Service)
		}
		x.Text = plural.Count(n, "Service", "Services") + ": " + strings.Join(x.First, ", ")
		switch more := n - len(x.First); {
		case n == 1:
			x.Text = bad[0].Why
			if !strings.HasPrefix(x.Text, bad[0].Service) {
				x.Text = bad[0].Service + ": " + x.Text
			}
		case more > 0:
			x.Text += fmt.Sprintf(" and %d more", more)
			x.Next = "kube-proxy why"
		}
		*f = append(*f, x)
		bad = bad[n:]
	}
}

// lastChange returns the newest change in force, of a Service if there is one; nil without a
// record.
func lastChange(recent []changes.Entry) *Change {
	var last *Change
	for _, e := range slices.Backward(recent) {
		if e.Elsewhere || e.Kind == changes.Failed {
			continue
		}
		if c := change(e); e.Kind == changes.Service {
			return &c
		} else if last == nil {
			last = &c
		}
	}
	return last
}
