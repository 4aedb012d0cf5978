//go:build linux

package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/ipvsfake"
	"kube-proxy/test/planetest"
)

// cost counts the plane's requests to the kernel: messages to IPVS, system calls for them, and
// changed members and addresses. Each counts as a message, though neighbours share one.
type cost struct {
	messages, sends uint64
	wrote           int
}

func (c cost) total() int { return int(c.messages) + c.wrote }

func (k *lab) cost() cost {
	c := k.conn.Counters()
	return cost{c.Messages, c.Sends, k.wrote}
}

func (c cost) since(o cost) cost {
	return cost{c.messages - o.messages, c.sends - o.sends, c.wrote - o.wrote}
}

// The cost of a change depends on the change alone. One endpoint of a cluster IP takes at most four
// messages, from its arrival or removal until its real server has drained. Nothing is listed.
func TestCostOfChange(t *testing.T) {
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		few, many := costsOfChanges(t, f, 100, false), costsOfChanges(t, f, 1000, false)
		for what, c := range costsOfChanges(t, f, 100, true) {
			if c != few[what] {
				t.Errorf("%s: %s costs %+v where connections are counted, %+v where not", f, what, c, few[what])
			}
		}
		for what, c := range few {
			if c != many[what] {
				t.Errorf("%s: %s costs %+v among 100 Services, %+v among 1,000", f, what, c, many[what])
			}
			t.Logf("%s: %s costs %+v", f, what, c)
		}
		for what, most := range map[string]int{
			"an endpoint more": 2, "an endpoint less": 2, "what drained goes": 2,
			// The virtual server and three real servers; the names, three marks, the address and
			// its name, and two for hairpins.
			"a Service more": 10, "a Service less": 9,
		} {
			if got := few[what].total(); got > most || got == 0 {
				t.Errorf("%s: %s costs %+v, want %d messages at most", f, what, few[what], most)
			}
		}
		if gone := few["an endpoint less"].total() + few["what drained goes"].total(); gone > 4 {
			t.Errorf("%s: an endpoint that leaves costs %d messages, want 4 at most", f, gone)
		}
	}
}

func costsOfChanges(t *testing.T, f lb.Family, services int, counts bool) map[string]cost {
	t.Helper()
	k := newLab(t)
	if counts {
		k.count(t)
	}
	w := planetest.World{Family: f}
	table := w.Table(services, 3)
	p := k.start(t, f, table)
	k.ipvs.Before = func(r ipvsfake.Request) error {
		if r.Command == ipvsfake.GetService {
			t.Error("the virtual servers were listed")
		}
		return nil
	}
	costs := map[string]cost{}
	measure := func(what string, f func() error) {
		t.Helper()
		before := k.cost()
		if err := f(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		costs[what] = k.cost().since(before)
	}
	apply := func(o lb.Owner, fronts []*lb.Frontend) func() error {
		return func() error {
			changes, _ := table.Replace(o, fronts)
			_, err := p.Apply(context.Background(), changes)
			return err
		}
	}
	fronts := func(i, first, n int) func() error { return apply(w.ClusterIP(i, first, n)) }
	measure("an endpoint more", fronts(7, 21, 4))
	measure("an endpoint less", fronts(7, 21, 3))
	measure("what drained goes", func() error {
		hasten(p)
		return p.drainDue(context.Background())
	})
	for s := range p.drains {
		if len(s.drain.dests) > 0 {
			t.Errorf("%s has not drained", s.id)
		}
	}
	measure("a Service more", fronts(50000, 21, 3))
	measure("a Service less", apply(lb.Owner{Name: "ns/svc-50000"}, nil))
	return costs
}

// A NodePort has a virtual server for each node address that answers it, so an endpoint costs a
// message for each. The mark of a port that is local to pods and host costs one more for each
// origin, however many addresses the node has.
func TestCostOfNodePort(t *testing.T) {
	for _, addresses := range []int{1, 10} {
		k := newLab(t)
		w := planetest.World{Family: lb.IPv4}
		k.others = nil
		for i := range addresses {
			k.others = append(k.others, w.Addr(192, 1+i))
		}
		table := w.Table(10, 2)
		table.Node.NodePorts = []netip.Prefix{netip.PrefixFrom(w.Addr(192, 0), 8)}
		p := k.start(t, lb.IPv4, table)
		set := func(n int) []*lb.Frontend {
			return []*lb.Frontend{{Key: lb.Key{Port: 30080, Proto: lb.TCP}, Service: "ns/np:http", Kind: lb.NodePort,
				Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, Masq: true, To: w.Set("ns/np:http", lb.Cluster,
					100, n)}}}}
		}
		for n := 1; n < 3; n++ { // the new pod is on another node
			changes, _ := table.Replace(lb.Owner{Name: "ns/np"}, set(n))
			before := k.cost()
			must(t, only(p.Apply(t.Context(), changes)))
			if c := k.cost().since(before); n == 2 && (c.total() != addresses || c.sends != 1) {
				t.Errorf("an endpoint of a NodePort on %d addresses costs %+v, want a message for each in one system "+
					"call", addresses, c)
			}
		}
	}
}

// The first sync of 2,000 Services needs a few system calls for each thousand, and a restart
// writes nothing.
func TestFirstSync(t *testing.T) {
	const services = 2000
	k := newLab(t)
	table := planetest.World{Family: lb.IPv4}.Table(services, 3)
	k.start(t, lb.IPv4, table)
	c := k.cost()
	t.Logf("%d Services: %.2f messages each, %d system calls for those to IPVS, %d members and addresses", services,
		float64(c.messages)/services, c.sends, c.wrote)
	if c.messages > 4*services+1000 {
		t.Errorf("%d messages to IPVS, want one for each virtual and real server", c.messages)
	}
	if c.sends > services/20 {
		t.Errorf("%d system calls to write %d Services", c.sends, services)
	}
	again := k.plane(t, lb.IPv4)
	writes := 0
	k.ipvs.Before = func(r ipvsfake.Request) error {
		if r.Command.Writes() {
			writes++
		}
		return nil
	}
	k.wrote = 0
	res, err := planetest.ResetAll(t.Context(), again, table)
	if err != nil || len(res.Later)+len(res.Dropped) > 0 {
		t.Fatal(res, err)
	}
	if writes+k.wrote > 0 {
		t.Errorf("a restart wrote %d virtual or real servers, %d members and addresses", writes, k.wrote)
	}
}

// The cost of a Service with many ports follows their number. Their address is removed once.
func TestCostOfManyPorts(t *testing.T) {
	k := newLab(t)
	w := planetest.World{Family: lb.IPv4}
	table := w.Table(1, 1)
	var many []*lb.Frontend
	for i := range 1000 {
		name := fmt.Sprintf("ns/many:p%d", i)
		set := w.Set(name, lb.Cluster, 70000, 3)
		many = append(many, &lb.Frontend{Key: lb.Key{Addr: w.Addr(10, 999), Port: uint16(1000 + i), Proto: lb.TCP},
			Service: name, Kind: lb.ClusterIP, Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, To: set}}})
	}
	table.Replace(lb.Owner{Name: "ns/many"}, many)
	p := k.start(t, lb.IPv4, table)
	changes, _ := table.Replace(lb.Owner{Name: "ns/many"}, nil)
	before := k.cost()
	must(t, only(p.Apply(t.Context(), changes)))
	// Each port: a check for connections, the virtual server, and its name; the address with its
	// name only once.
	if c := k.cost().since(before); c.total() > 3*1000+20 {
		t.Errorf("a Service with 1,000 ports goes at the cost of %+v", c)
	}
	if len(p.l.addrs) != 1 {
		t.Errorf("%d addresses are kept", len(p.l.addrs))
	}
}
