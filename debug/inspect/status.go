package inspect

import (
	"time"

	"kube-proxy/lb"
)

// Status returns the state of the proxy.
func (i *Inspector) Status() Status {
	cfg := &i.cfg
	facts := cfg.Store.Facts()
	s := Status{
		Version: cfg.Version, Node: facts.NodeName, Mode: cfg.Mode.Name, Configured: cfg.Configured, Reason: cfg.Reason,
		Started: when(cfg.Started),
		Offline: cfg.Offline, Manifests: cfg.Manifests,
		Newest: i.Newest(), Synced: cfg.Store.Synced(), Services: len(i.Names()),
		Facts:    NodeFacts{Gone: facts.NodeGone, ServiceCIDRs: facts.CIDRs},
		Families: []FamilyStatus{},
	}
	if cfg.Snapshot != nil {
		s.Snapshot = cfg.Snapshot()
	}
	if n := facts.Node; n != nil {
		s.Facts.Known, s.Facts.Zone, s.Facts.Addresses, s.Facts.PodCIDRs, s.Facts.Leaving = true, n.Zone, n.Addrs,
			n.PodCIDRs, n.Leaving
	}
	for _, f := range cfg.Families {
		s.Families = append(s.Families, f.status())
	}
	if cfg.Conntrack != nil {
		if entries, limit, ok := cfg.Conntrack(); ok {
			s.Conntrack = &Conntrack{entries, limit}
		}
	}
	s.LastChange = lastChange(i.recent())
	s.Severity, s.Findings = Fine, i.findings(&s)
	if len(s.Findings) > 0 {
		s.Severity = s.Findings[0].Severity
	}
	return s
}

func (f Family) status() FamilyStatus {
	out := FamilyStatus{Family: f.Family.String()}
	f.Query(func(t *lb.Table) {
		out.Frontends, out.Contested, out.NodePorts = t.Len(), t.Contested(), t.Node.NodePorts
	})
	if f.Sockets != nil {
		s := f.Sockets()
		out.Sockets = &Sockets{s.Serving, s.Off, s.Configured, s.Heartbeat.Seconds(), s.Timeout.Seconds(),
			s.Known, s.Limit, s.Ended, s.Passed}
	}
	if f.Stats == nil {
		return out
	}
	s := f.Stats()
	out.Begun, out.Settled, out.Lost = s.Begun, s.Settled, s.Lost
	out.Pending, out.Unresolved = s.Pending, s.Unresolved
	out.NoLocalInternal, out.NoLocalExternal = s.NoLocal.Internal, s.NoLocal.External
	out.Changes, out.Applies, out.Resets, out.Failures, out.Audits, out.Repaired = s.Changes, s.Applies, s.Resets,
		s.Failures, s.Audits, s.Repaired
	out.LastError, out.LastFailure, out.LastSuccess = s.LastError, when(s.LastFailure), when(s.LastSuccess)
	out.LastQueued, out.LastSynced, out.QueuedSince = when(s.LastQueued), when(s.LastSynced), when(s.QueuedSince)
	for _, row := range s.Failing {
		out.Failing = append(out.Failing, FailingFrontend{row.Key.String(), row.Service, row.Err, when(row.Since),
			row.Tries})
	}
	return out
}

// when converts a time that may be unknown.
func when(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
