package health

import (
	"time"

	"kube-proxy/lb"
)

// State is the state of the writer of one family's rules.
type State struct {
	// QueuedSince is the time of the oldest change that no successful write of the kernel has
	// followed; zero without one. A frontend that the kernel refuses while it accepts others is not
	// a waiting change. If nothing else is to be written, a write that changes nothing shows
	// whether the kernel would accept others (engine.Plane). While the sources have not listed
	// there is nothing to write, so it is zero (HT-04: start-up is healthy).
	QueuedSince time.Time
	// LastSuccess is when the kernel last took a write (DP-62); zero before the first.
	LastSuccess time.Time
	// Begun: the first full sync is done.
	Begun bool
}

// defaultSyncPeriod replaces an unknown period.
const defaultSyncPeriod = 30 * time.Second

// timeout is how long a change may wait for the kernel (HT-04, CF-61).
func (s *Server) timeout() time.Duration {
	if period := s.cfg.SyncPeriod(); period > 0 {
		return 2 * period
	}
	return 2 * defaultSyncPeriod
}

// report is the state of all families at one moment.
type report struct {
	now      time.Time // with the monotonic clock, as all times here: the wall clock may be stepped
	healthy  bool
	last     time.Time // the newest real update of any family
	families map[string]familyReport
	missing  []string // families that have not begun
	waiting  string   // reason of the wait before it writes
	stalled  bool     // it has waited longer than a change may
}

type familyReport struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// look returns the state of all families. A family that has not written yet counts as updated when
// the server was made.
func (s *Server) look() report {
	r := report{now: time.Now(), healthy: true, last: s.made, families: make(map[string]familyReport,
		len(s.cfg.Families))}
	timeout := s.timeout()
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		ask := s.cfg.Families[f]
		if ask == nil {
			continue
		}
		st := ask()
		one := familyReport{LastUpdated: s.made, Healthy: st.QueuedSince.IsZero() ||
			r.now.Sub(st.QueuedSince) < timeout}
		if !st.LastSuccess.IsZero() {
			one.LastUpdated = st.LastSuccess
		}
		if one.LastUpdated.After(r.last) {
			r.last = one.LastUpdated
		}
		r.healthy = r.healthy && one.Healthy
		r.families[f.String()] = one
		if !st.Begun {
			r.missing = append(r.missing, f.String())
		}
	}
	since, on := s.cfg.Waiting()
	r.waiting, r.stalled = on, !since.IsZero() && r.now.Sub(since) >= timeout
	return r
}

// Healthy reports whether the rules of every family are up to date (HT-04). It ignores the state of
// the node.
func (s *Server) Healthy() bool { return s.look().healthy }

// eligible reports whether load balancers may send the node traffic that any node can serve
// (HT-06).
func (s *Server) eligible() bool {
	known, eligible := s.cfg.NodeEligible()
	return known && eligible && !s.draining.Load()
}
