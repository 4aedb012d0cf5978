package engine

import (
	"cmp"
	"slices"

	"kube-proxy/lb"
)

// Loss is the set of keys that one Service lost to others by one change (SV-24).
type Loss struct {
	// Conflict is the first conflict, by key.
	lb.Conflict
	// Keys is their number.
	Keys int
}

// ProvisionalOwner is the set of frontends that one Service received by one change with addresses
// of the service network that are not its cluster IP. It is their provisional owner until they are
// assigned to another Service (SV-24).
type ProvisionalOwner struct {
	// Frontend is the first one, by key.
	*lb.Frontend
	// Owner is "ns/name".
	Owner string
	// Keys is their number.
	Keys int
}

// claims collects the messages about conflicts while Services are resolved. A tenant can cause
// conflicts for as many keys as there are, and a Service that loses them all has one fault. So
// there is one message for each Service and change, and a limit for many Services.
type claims struct {
	conflicts   []conflict       // that began
	provisional []provisionalKey // added frontends
}

// conflict is a conflict that a change of the Service cause started.
type conflict struct {
	lb.Conflict
	cause string
}

// share returns the namespace whose message limit the conflict counts for. Other tenants cannot
// exhaust the limit for changes of the loser itself.
func (c conflict) share() string {
	loser := lb.NamespaceOf(c.Loser.Name)
	if lb.NamespaceOf(c.cause) != loser {
		return loser + ", by others"
	}
	return loser
}

// provisionalKey is a key of the service network with a provisional owner: it is not the Service's
// cluster IP.
type provisionalKey struct {
	key   lb.Key
	owner string
}

// add records the conflicts that the replacement of the owner's frontends changed.
func (c *claims) add(t *lb.Table, owner string, changes []lb.Change, conflicts []lb.Conflict) {
	for _, began := range conflicts {
		c.conflicts = append(c.conflicts, conflict{began, owner})
	}
	for _, change := range changes {
		if t.Node.IsProvisional(change.New) && !t.Node.IsProvisional(change.Old) {
			c.provisional = append(c.provisional, provisionalKey{change.Key, owner})
		}
	}
}

// reportClaims reports the collected conflicts. Its cost is proportional to the changes that caused
// them.
func (e *Engine) reportClaims(c claims) {
	if len(c.conflicts) > 0 {
		e.reportLosses(c.conflicts)
	}
	if len(c.provisional) > 0 {
		e.reportProvisionalOwners(c.provisional)
	}
}

// reportLosses looks into the table again: the winner may have changed while many Services were
// resolved.
func (e *Engine) reportLosses(began []conflict) {
	var lost []conflict
	for _, c := range began {
		if now, is := e.table.Lost(c.Key, c.Loser.Name); is {
			lost = append(lost, conflict{now, c.cause})
		}
	}
	e.stats.update(func(s *Stats) { s.Conflicts += uint64(len(lost)) })
	first, keys := byService(lost, func(c conflict) (string, lb.Key) { return c.Loser.Name, c.Key })
	for _, c := range first {
		if !e.conflicts.Allow(c.share()) {
			continue
		}
		l := Loss{c.Conflict, keys[c.Loser.Name]}
		e.cfg.Log.Warn("Service lost an address and port to another Service", "service", l.Loser.Name, "key",
			l.Key.String(), "winner", l.Winner.Name, "reason", "it "+l.Why(), "keys", l.Keys)
		if e.cfg.Contested != nil {
			e.cfg.Contested(l)
		}
	}
}

// reportProvisionalOwners leaves out keys that the same turn gave to another Service.
func (e *Engine) reportProvisionalOwners(provisional []provisionalKey) {
	var provisionalOwners []ProvisionalOwner
	for _, c := range provisional {
		f := e.table.Get(c.key)
		if _, lost := e.table.Lost(c.key, c.owner); !lost && e.table.Node.IsProvisional(f) {
			provisionalOwners = append(provisionalOwners, ProvisionalOwner{Frontend: f, Owner: c.owner})
		}
	}
	first, keys := byService(provisionalOwners, func(l ProvisionalOwner) (string, lb.Key) { return l.Owner, l.Key })
	for _, l := range first {
		l.Keys = keys[l.Owner]
		if !e.provisionalOwners.Allow(lb.NamespaceOf(l.Owner)) {
			continue
		}
		e.cfg.Log.Warn("Service uses an address of the service network until another Service gets it as its cluster IP",
			"service", l.Owner, "key", l.Key.String(), "as", l.Kind.Words(), "keys", l.Keys)
		if e.cfg.Lent != nil {
			e.cfg.Lent(l)
		}
	}
}

// byService returns the first claim of each Service, by key, in the order of Services, and the
// number of claims of each.
func byService[C any](claims []C, of func(C) (service string, key lb.Key)) (first []C, keys map[string]int) {
	keys = map[string]int{}
	for _, c := range claims {
		s, _ := of(c)
		keys[s]++
	}
	slices.SortFunc(claims, func(a, b C) int {
		s, k := of(a)
		t, l := of(b)
		return cmp.Or(cmp.Compare(s, t), k.Compare(l))
	})
	return slices.CompactFunc(claims, func(a, b C) bool {
		s, _ := of(a)
		t, _ := of(b)
		return s == t
	}), keys
}
