//go:build linux

package nftables

import (
	"net/netip"

	"kube-proxy/internal/rollback"
	"kube-proxy/lb"
)

// rowChange is the old and new state of a frontend that a batch changes.
type rowChange struct {
	rowPlan
	was, now row // an empty front means none
}

// stage applies the planned frontends to the state, except sets and lists: [change.finish] updates
// those when all frontends are planned.
func (c *change) stage(rows []rowPlan) {
	from := len(c.rows)
	for _, r := range rows {
		c.goOn(r.key)
		if was := c.st.rows[r.key]; was.front != r.front {
			c.rows = append(c.rows, rowChange{r, was, row{front: r.front, class: r.class}})
		}
	}
	changed := c.rows[from:]
	c.refer(changed)
	for i := range changed {
		r := &changed[i]
		var sources []netip.Prefix
		if r.front != nil {
			sources = r.front.Sources
		}
		r.now.list = c.lists.Swap(sources, r.was.list)
	}
	for _, r := range changed {
		if r.front == nil {
			rollback.Delete(c.log, c.st.rows, r.key)
		} else {
			c.needClass(r.class)
			rollback.Put(c.log, c.st.rows, r.key, r.now)
		}
		if isClusterIP(r.was.front) != isClusterIP(r.front) {
			c.countClusterIP(r)
		}
	}
}

// finish stages the resulting changes of sets and lists.
func (c *change) finish() error {
	for i, s := range c.touched {
		c.finishSet(s, &c.before[i])
	}
	c.lists.Finish()
	return c.reserve()
}

func isClusterIP(f *lb.Frontend) bool { return f != nil && f.Kind == lb.ClusterIP }

// countClusterIP updates how many frontends need the key's address as a cluster IP.
func (c *change) countClusterIP(r rowChange) {
	counts, a := c.st.clusterIPs, r.key.Addr
	if _, ok := c.clusterIPs[a]; !ok && c.log != nil {
		if c.clusterIPs == nil {
			c.clusterIPs = make(map[netip.Addr]int32, 1)
		}
		c.clusterIPs[a] = counts[a]
		rollback.Entry(c.log, counts, a)
	}
	if isClusterIP(r.front) {
		counts[a]++
	} else {
		counts[a]--
		if counts[a] == 0 {
			delete(counts, a)
		}
	}
}

// needClass records a new class. Classes and shapes stay until the next Reset or full audit: they
// are few, and removing them here would make changes expensive.
func (c *change) needClass(cl class) {
	if !c.st.classes[cl] {
		rollback.Put(c.log, c.st.classes, cl, true)
		c.classes = append(c.classes, cl)
	}
}

func (c *change) needShape(s shape) {
	for _, part := range s.parts() {
		if !c.st.shapes[part] {
			rollback.Put(c.log, c.st.shapes, part, true)
			c.shapes = append(c.shapes, part)
		}
	}
}
