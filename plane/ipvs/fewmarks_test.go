//go:build linux

package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// fewMarks is a plane with few numbers of marks left, and Services whose pods use another route
// than others. Each has its own backend.
type fewMarks struct {
	served
}

func newConnLimit(t testing.TB, left uint32) *fewMarks {
	c := &fewMarks{newServed(t)}
	c.restart()
	c.p.l.numbers.last = c.p.l.mark.most() - left
	return c
}

// set writes a Service whose pods reach n backends; n is 0 to remove it.
func (c *fewMarks) set(i, n int) error {
	c.Helper()
	name := fmt.Sprintf("ns/svc-%d:http", i)
	fronts := []*lb.Frontend{{Key: lb.Key{Addr: c.Addr(12, i), Port: 80, Proto: lb.TCP}, Service: name,
		Kind: lb.LoadBalancer, Routes: []lb.Route{
			{From: lb.Pods, Do: lb.Balance, To: c.Set(name, lb.Cluster, 100*i, n)},
			{From: lb.Anywhere, Do: lb.Drop}}}}
	if n == 0 {
		fronts = nil
	}
	changes, _ := c.table.Replace(lb.Owner{Name: name}, fronts)
	_, err := c.p.Apply(context.Background(), changes)
	return err
}

// reached returns the backends that the kernel chooses for the pods' packets to a Service; ok is
// false if no virtual server has their mark.
func (c *fewMarks) reached(i int) (backends []netip.AddrPort, ok bool) {
	c.Helper()
	for m := range c.sets[setMarksPods.name(lb.IPv4)].members {
		if m.Addr != c.Addr(12, i) {
			continue
		}
		is := c.sets[setMarksPods.name(lb.IPv4)].members[m]
		v, found := c.find(ipvs.ByMark(ipvs.IPv4, is.Mark))
		for _, d := range v.Destinations {
			if d.Weight > 0 {
				backends = append(backends, d.Addr)
			}
		}
		return backends, found
	}
	return nil, false
}

// astray checks that pods reach the Services' own backends, or are refused if no number was left.
func (c *fewMarks) astray(when string, refused map[int]bool, services ...int) {
	c.Helper()
	for _, i := range services {
		own := map[netip.AddrPort]bool{}
		for b := range c.Set(fmt.Sprintf("ns/svc-%d:http", i), lb.Cluster, 100*i, 50).Backends.All() {
			own[b.Addr] = true
		}
		got, ok := c.reached(i)
		if !ok {
			c.Errorf("%s: Service %d: no virtual server has the mark of pods", when, i)
		}
		if (len(got) == 0) != refused[i] {
			c.Errorf("%s: Service %d: pods are led to %v, want refused %v", when, i, got, refused[i])
		}
		for _, b := range got {
			if !own[b] {
				c.Errorf("%s: Service %d: pods are led to %s, which is another's", when, i, b)
			}
		}
	}
}

// When all numbers of marks are in use, the pods of a new Service are refused, and never reach
// another Service's backends (SV-25). A notice reports it. New Services are served once numbers are
// free again.
func TestNumbersRunOutSV25(t *testing.T) {
	c := newConnLimit(t, 2)
	for i := 1; i <= 2; i++ {
		must(t, c.set(i, 1))
	}
	for i := 3; i <= 5; i++ {
		must(t, c.set(i, 1))
	}
	if reported := c.p.Notices(); len(reported) != 1 {
		t.Errorf("three came too late, and the notices are %v, want one", reported)
	}
	c.astray("when all are given out", map[int]bool{3: true, 4: true, 5: true}, 1, 2, 3, 4, 5)
	for _, step := range []struct {
		when    string
		i, n    int
		refused map[int]bool
		all     []int
	}{
		{"when one is given back", 1, 0, map[int]bool{3: true, 4: true, 5: true}, []int{2, 3, 4, 5}},
		{"when one changes that came too late", 3, 2, map[int]bool{3: true, 4: true, 5: true}, []int{2, 3, 4, 5}},
		{"when it goes", 3, 0, map[int]bool{4: true, 5: true}, []int{2, 4, 5}},
		{"when it comes again", 3, 1, map[int]bool{4: true, 5: true}, []int{2, 3, 4, 5}},
	} {
		must(t, c.set(step.i, step.n))
		c.astray(step.when, step.refused, step.all...)
	}
	must(t, only(planetest.ResetAll(context.Background(), c.p, c.table)))
	c.astray("after a Reset", nil, 2, 3, 4, 5) // the numbers that this test took are free
	for _, i := range []int{4, 2, 5, 3} {
		must(t, c.set(i, 0))
	}
	if all := c.ipvs.State(); len(all) > 0 || len(c.p.l.servers)+len(c.p.l.others)+len(c.p.l.members) > 0 {
		t.Errorf("with no Service: %v, and in the ledger %d servers, %d others, %d members", all, len(c.p.l.servers),
			len(c.p.l.others), len(c.p.l.members))
	}
}

// A mark belonged to one Service when the program ended, and another Service has its key now. The
// mark keeps neither meaning while members of sets refer to it (SV-25).
func TestMarkOfAKeyThatChangedHandsSV25(t *testing.T) {
	c := newConnLimit(t, 10)
	row := func(service string, key, first int) *lb.Frontend {
		return &lb.Frontend{Key: lb.Key{Addr: c.Addr(12, key), Port: 80, Proto: lb.TCP}, Service: service,
			Kind: lb.LoadBalancer, Routes: []lb.Route{
				{From: lb.Pods, Do: lb.Balance, To: c.Set(service, lb.Cluster, first, 2)},
				{From: lb.Anywhere, Do: lb.Drop}}}
	}
	for _, stays := range []bool{true, false} { // or its other key is removed as well
		before := c.Table(0, 0)
		before.Replace(lb.Owner{Name: "a/a"}, []*lb.Frontend{row("a/a:p", 1, 100), row("a/a:p", 2, 100)})
		must(t, only(planetest.ResetAll(context.Background(), c.p, before)))
		after := c.Table(0, 0)
		if stays {
			after.Replace(lb.Owner{Name: "a/a"}, []*lb.Frontend{row("a/a:p", 2, 100)})
		}
		after.Replace(lb.Owner{Name: "b/b"}, []*lb.Frontend{row("b/b:p", 1, 200)})
		look := func(when string) {
			got, _ := c.reached(2)
			for _, b := range got {
				if b.Addr() == c.Addr(100, 200) || b.Addr() == c.Addr(100, 201) {
					t.Errorf("%s: pods are led to %s, which is another's", when, b)
				}
			}
		}
		c.refuse = func(what string) error { look("before " + what); return nil }
		restarted := c.plane(t, lb.IPv4)
		must(t, only(planetest.ResetAll(context.Background(), restarted, after)))
		c.refuse = nil
		look("in the end")
		if got, _ := c.reached(1); len(got) != 2 || got[0].Addr() != c.Addr(100, 200) {
			t.Errorf("pods are led to %v, want the backends of the Service that has the key", got)
		}
		c.p = restarted
	}
}
