//go:build linux

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	ipvswire "kube-proxy/internal/netlink/ipvs"
	"kube-proxy/lb"
	"kube-proxy/test/ipvsfake"
	"kube-proxy/test/planetest"
)

// Faults of IPVS, sets and addresses, nodes that change, addresses of other devices that come and go, restarts and connections, in a long
// walk: when all connections have ended the kernel is exactly a fresh one's (by wire).
func TestWildWalk(t *testing.T) {
	for _, seed := range walks(15) {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { wild(t, seed) }) {
			return
		}
	}
}

func wild(t *testing.T, seed uint64) {
	f := familyOf(seed)
	rnd := rand.New(rand.NewPCG(seed, 9))
	k, p, table, w := started(t, f)
	ctx := context.Background()
	var log []string
	say := func(format string, args ...any) { log = append(log, fmt.Sprintf(format, args...)) }
	defer func() {
		if t.Failed() {
			t.Log(strings.Join(log, "\n"))
		}
	}()
	other, err := ipvswire.New(ctx, k.ipvs.Connect())
	if err != nil {
		t.Fatal(err)
	}
	base := slices.Clone(k.others)
	inside := false
	faulty := func(r ipvsfake.Request) error {
		if inside || rnd.IntN(15) > 0 {
			return nil
		}
		inside = true
		defer func() { inside = false }()
		s := ipvswire.Service{ServiceID: r.Service, Scheduler: "wlc", Netmask: r.Service.Family.WholeAddress()}
		d := ipvswire.Destination{Addr: r.Destination, Weight: 7}
		what := rnd.IntN(8)
		say("  fault %d at %d %v %v", what, r.Command, r.Service, r.Destination)
		switch what {
		case 0:
			return unix.EPERM
		case 1:
			return unix.ENOMEM
		case 2:
			return ipvsfake.ErrLost
		case 3:
			other.Do(ctx, []ipvswire.Op{{Verb: ipvswire.DelService, Service: s}}, nil)
		case 4:
			other.Do(ctx, []ipvswire.Op{{Verb: ipvswire.NewService, Service: s}}, nil)
		case 5:
			if d.Addr.IsValid() {
				other.Do(ctx, []ipvswire.Op{{Verb: ipvswire.NewDestination, Service: s, Destination: d}}, nil)
			}
		case 6:
			if d.Addr.IsValid() {
				other.Do(ctx, []ipvswire.Op{{Verb: ipvswire.DelDestination, Service: s, Destination: d}}, nil)
			}
		case 7:
			return unix.EEXIST
		}
		return nil
	}
	for range 25 {
		faults := rnd.IntN(2) == 0
		if faults {
			k.ipvs.Before = faulty
			k.refuse = func(what string) error {
				if rnd.IntN(20) == 0 {
					say("  refuse %s", what)
					return unix.ENOMEM
				}
				return nil
			}
		}
		var err error
		switch what := rnd.IntN(10); what {
		case 0:
			say("restart")
			p = k.plane(t, f)
			_, err = planetest.ResetAll(ctx, p, table)
		case 1:
			node := table.Node
			node.NodePorts = [][]netip.Prefix{nil, {f.Everywhere()}, {netip.PrefixFrom(w.Addr(192, 1), w.Addr(192, 1).BitLen())}}[rnd.IntN(3)]
			say("node %v", node.NodePorts)
			table.Node = node
			err = p.SetNode(ctx, node)
		case 2:
			k.others = slices.Clone(base)
			for _, a := range []netip.Addr{w.Addr(198, 11), w.Addr(203, 11), w.Addr(10, 11)} {
				if rnd.IntN(2) == 0 {
					k.others = append(k.others, a)
				}
			}
			say("other devices have %v", k.others)
			k.devs[f].tell(false, true)
			_, err = p.Audit(ctx, false)
		case 3:
			say("connections")
			k.connections(func() uint32 { return uint32(rnd.IntN(2)) })
		case 4:
			say("audit")
			_, err = p.Audit(ctx, rnd.IntN(2) == 0)
		default:
			m := moves()[rnd.IntN(5)]
			say("%s", m.name)
			changes := m.make(table, w)
			if _, err = p.Apply(ctx, changes); err != nil && p.l != nil && !faults {
				t.Fatal(err)
			}
		}
		if err != nil {
			say("  -> %v", strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		k.ipvs.Before, k.refuse = nil, nil
		if p.l == nil {
			if _, err := planetest.ResetAll(ctx, p, table); err != nil {
				t.Fatal(err)
			}
		} else if err != nil { // as the engine does: all that failed again
			var all []lb.Change
			for _, row := range table.Sorted() {
				all = append(all, lb.Change{Key: row.Key, New: row})
			}
			for key := range p.undone {
				if table.Get(key) == nil && key != (lb.Key{}) {
					all = append(all, lb.Change{Key: key})
				}
			}
			if _, err := p.Apply(ctx, all); err != nil {
				if !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
			}
		}
		mended := -1
		for i := 0; i < 6 && mended != 0; i++ {
			if mended, err = p.Audit(ctx, true); err != nil {
				t.Fatal(err)
			}
		}
		if mended != 0 {
			t.Fatalf("audits go on mending %d", mended)
		}
		fresh := newLab(t)
		fresh.others = k.others
		q := fresh.plane(t, f)
		if _, err := planetest.ResetAll(ctx, q, table); err != nil {
			t.Fatal(err)
		}
		want, err := q.Dump()
		if err != nil {
			t.Fatal(err)
		}
		got, err := p.Dump()
		if err != nil {
			t.Fatal(err)
		}
		wantSame(t, "after "+log[len(log)-1], want, got)
		if rnd.IntN(4) == 0 { // all connections end
			say("all connections end")
			k.connections(always(0))
			for range 4 {
				hasten(p)
				if _, err := p.Audit(ctx, true); err != nil {
					t.Fatal(err)
				}
			}
			nameless := func(k *lab) string {
				var lines []string
				for _, v := range k.ipvs.State() {
					id := v.ServiceID.String()
					if v.Mark != 0 {
						id = "mark"
					}
					lines = append(lines, fmt.Sprintf("%s %s %d %d", id, v.Scheduler, v.Flags, v.Timeout))
					for _, d := range v.Destinations {
						lines = append(lines, fmt.Sprintf("%s %v %d", id, d.Addr, d.Weight))
					}
				}
				for a := range k.devs[f].addrs {
					lines = append(lines, "address "+a.String())
				}
				for name, s := range k.sets {
					for m := range s.members {
						lines = append(lines, name+" "+m.String())
					}
				}
				slices.Sort(lines)
				return strings.Join(lines, "\n")
			}
			wantSame(t, "when all connections have ended", nameless(fresh), nameless(k))
		}
		if len(p.undone) > 0 {
			t.Fatalf("undone: %v", p.undone)
		}
	}
}

func wantSame(t *testing.T, when, want, got string) {
	t.Helper()
	if got != want {
		t.Fatalf("%s:\n%s", when, onlyOne(want, got))
	}
}
