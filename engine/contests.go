package engine

import (
	"maps"
	"slices"
	"strings"
	"time"

	"kube-proxy/lb"
)

// Loss is what one Service lost to others by one change (SV-24).
type Loss struct {
	// Contest is the first of the contests, by key.
	lb.Contest
	// Keys is their number.
	Keys int
}

// contests is what was told of contests. A tenant can make as many as there are keys, and a Service that loses
// them all has one fault: there is one message for each Service and change, and of many Services there are few.
type contests struct {
	told map[Loss]struct{}
	pace pace

	withheld    int       // Services of which nothing was told, since the last line about them
	sayWithheld time.Time // the earliest time for another
}

const (
	// maxTold bounds the memory for what has been told.
	maxTold = 10000
	// withheldGap is the least time between two lines about Services of which nothing is told.
	withheldGap = time.Minute
)

// tellContests tells of contests that began. Its cost is their number, and that is at most the size of the change.
func (e *Engine) tellContests(began []lb.Contest, now time.Time) {
	if len(began) > 0 {
		e.tellLosses(began, now)
	}
	e.tellWithheld(now)
}

// tellLosses asks the table again: while many services were resolved the winner may have changed.
func (e *Engine) tellLosses(began []lb.Contest, now time.Time) {
	losses := map[string]*Loss{}
	for _, c := range began {
		c, ok := e.table.Lost(c.Key, c.Loser.Name)
		if !ok {
			continue
		}
		l := losses[c.Loser.Name]
		switch {
		case l == nil:
			losses[c.Loser.Name] = &Loss{c, 1}
			continue
		case c.Key.Compare(l.Key) < 0:
			l.Contest = c
		}
		l.Keys++
	}
	keys := 0
	for _, l := range slices.SortedFunc(maps.Values(losses), compareLosses) {
		keys += l.Keys
		e.tellLoss(*l, now)
	}
	if keys > 0 {
		e.stats.update(func(s *Stats) { s.Contests += uint64(keys) })
	}
}

// compareLosses orders losses by the loser's name.
func compareLosses(a, b *Loss) int { return strings.Compare(a.Loser.Name, b.Loser.Name) }

func (e *Engine) tellLoss(l Loss, now time.Time) {
	w := &e.contests
	if _, told := w.told[l]; told {
		return
	}
	if !w.pace.take(now) {
		w.withheld++
		return
	}
	if w.told == nil || len(w.told) >= maxTold {
		w.told = map[Loss]struct{}{}
	}
	w.told[l] = struct{}{}
	e.cfg.Log.Warn("service "+l.Loser.Name+" lost "+l.Key.String()+" to "+l.Winner.Name+", which "+l.Why(),
		"key", l.Key.String(), "winner", l.Winner.Name, "loser", l.Loser.Name, "keys", l.Keys)
	if e.cfg.Contested != nil {
		e.cfg.Contested(l)
	}
}

// tellWithheld says of how many Services nothing was said.
func (e *Engine) tellWithheld(now time.Time) {
	w := &e.contests
	if w.withheld == 0 || now.Before(w.sayWithheld) {
		return
	}
	e.cfg.Log.Warn("more services lost addresses and ports to others, not logging each",
		"services", w.withheld, "contested", e.table.Contested())
	w.withheld, w.sayWithheld = 0, now.Add(withheldGap)
}
