package flows

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"time"

	ctwire "kube-proxy/internal/netlink/conntrack"
	"kube-proxy/lb"
)

// count has the numbers since the query began. Its memory is proportional to the frontends,
// whatever clients do.
type count struct {
	most  int
	began time.Time

	mu     sync.Mutex
	tables []Table
	rows   map[rowID]*counter
	active []*counter // frontends with connections
	locals map[netip.Addr]struct{}

	reported   time.Time
	elsewhere  uint64
	dropped    uint32 // by the kernel, at the last report
	overrun    bool   // the kernel has reported a loss
	counted    bool   // so were messages that were lost
	missed     uint64 // in all
	localsRead time.Time
}

// rowID identifies a frontend: two families have the same keys of NodePorts.
type rowID struct {
	family lb.Family
	key    lb.Key
}

type counter struct {
	family     lb.Family
	row        *lb.Frontend // nil when it is deleted
	new, total uint64
}

func newCount(most int, now time.Time) *count {
	return &count{most: most, began: now, reported: now, rows: map[rowID]*counter{}}
}

// take takes in a snapshot, and reports whether it has NodePorts.
func (c *count) take(tables []Table) (nodePorts bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.EqualFunc(tables, c.tables, sameFrontends) {
		rows := make(map[rowID]*counter, len(c.rows))
		for _, t := range tables {
			for _, row := range t.Frontends {
				if row.Kind == lb.HealthCheck { // which serves no client of the Service
					continue
				}
				id := rowID{t.Family, row.Key}
				n := c.rows[id]
				if n == nil {
					n = &counter{family: t.Family}
				}
				n.row, rows[id] = row, n
			}
		}
		for id, n := range c.rows {
			if rows[id] == nil {
				n.row = nil
			}
		}
		c.active = slices.DeleteFunc(c.active, func(n *counter) bool { return n.row == nil })
		c.rows = rows
	}
	c.tables = tables
	return slices.ContainsFunc(tables, func(t Table) bool { return len(t.NodePorts) > 0 })
}

// sameFrontends reports whether two snapshots have the same frontends.
func sameFrontends(a, b Table) bool {
	x, y := a.Frontends, b.Frontends
	return a.Family == b.Family && len(x) == len(y) && (len(x) == 0 || &x[0] == &y[0])
}

// local takes in the addresses of this machine.
func (c *count) local(all map[netip.Addr]struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.locals, c.localsRead = all, time.Now()
}

// add counts a connection.
func (c *count) add(e *ctwire.Entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.find(e)
	if n == nil {
		c.elsewhere++
		return
	}
	if n.total == 0 {
		c.active = append(c.active, n)
	}
	n.new++
	n.total++
}

// find returns the frontend of a connection, nil for none.
func (c *count) find(e *ctwire.Entry) *counter {
	to := e.Orig.To
	id := rowID{lb.FamilyOf(to.Addr()), lb.Key{Addr: to.Addr(), Port: to.Port(), Proto: lb.Proto(e.Orig.Proto)}}
	if n := c.rows[id]; n != nil {
		return n
	}
	id.key.Addr = netip.Addr{}
	n := c.rows[id]
	if n == nil || !c.answers(id.family, to.Addr()) {
		return nil
	}
	return n
}

// answers reports whether the address is one of this machine at which NodePorts answer.
func (c *count) answers(f lb.Family, a netip.Addr) bool {
	if _, here := c.locals[a]; !here {
		return false
	}
	for _, t := range c.tables {
		if t.Family == f {
			return lb.Within(t.NodePorts, a)
		}
	}
	return false
}

// lost notes that the kernel lost messages.
func (c *count) lost() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.overrun = true
}

// rates returns the numbers since its last call, and starts again from 0. dropped returns how many
// messages were lost in all.
func (c *count) rates(now time.Time, dropped func() (uint32, error)) *Rates {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := &Rates{Since: c.began, At: now, Span: now.Sub(c.reported), Elsewhere: c.elsewhere}
	if n, err := dropped(); err == nil {
		r.Missed = uint64(n - c.dropped) // it may have wrapped around
		c.dropped = n
	}
	c.counted = c.counted || r.Missed > 0
	if c.overrun {
		if !c.counted { // events lost for lack of memory have no number
			r.Missed = 1
		}
		c.counted = false
	}
	c.missed += r.Missed
	r.MissedInAll = c.missed
	c.reported, c.elsewhere, c.overrun = now, 0, false

	slices.SortFunc(c.active, func(a, b *counter) int {
		return cmp.Or(cmp.Compare(b.new, a.new), cmp.Compare(b.total, a.total), cmp.Compare(a.family, b.family),
			a.row.Key.Compare(b.row.Key))
	})
	r.Frontends = make([]Rate, 0, min(len(c.active), c.most))
	seconds := r.Span.Seconds()
	for i, n := range c.active {
		if i < c.most {
			rate := Rate{Family: n.family, Frontend: n.row, New: n.new, Total: n.total}
			if seconds > 0 {
				rate.PerSecond = float64(n.new) / seconds
			}
			r.Frontends = append(r.Frontends, rate)
		} else {
			r.Others++
		}
		n.new = 0
	}
	return r
}
