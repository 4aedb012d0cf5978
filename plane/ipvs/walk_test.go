//go:build linux

package ipvs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/lb"
	"kube-proxy/test/golden"
	"kube-proxy/test/ipvsfake"
	"kube-proxy/test/planetest"
)

// Whatever the history of a table, the kernel holds the result of a fresh start.
func TestRandomTransitions(t *testing.T) {
	planetest.Transitions(t, planetest.Config{New: func(f lb.Family) (planetest.Plane, error) {
		k := ipvsfake.New(ipvsfake.Config{})
		conn, err := ipvs.New(context.Background(), k.Connect())
		if err != nil {
			return nil, err
		}
		lab := labOf(k, conn)
		lab.others = append(lab.others, nodeAddresses(f)...) // of the scenarios
		return New(lab.config(f)), nil
	}})
}

// IPVS, sets and addresses fail, other programs interfere, addresses of other devices change,
// processes restart, and connections continue. After these faults end, an audit gives the result of
// a fresh start. When all connections have ended, the kernel's state equals exactly that of a fresh
// start.
func TestWalk(t *testing.T) {
	planetest.Walks(t, 20, 50, func(t testing.TB) planetest.Kernel {
		k := newLab(t)
		kernel := k.kernel()
		kernel.Damage = func(f lb.Family, rnd *rand.Rand) error { return k.harm(f, rnd, rnd.IntN(stray)) }
		kernel.Faults = k.faults(t)
		return kernel
	})
}

func (k *lab) faults(t testing.TB) planetest.Faults {
	other := connect(t, k.ipvs)
	base := slices.Clone(k.others)
	place := func(others []netip.Addr) {
		k.others = others
		for _, d := range k.devs {
			d.notice(false, true)
		}
	}
	return planetest.Faults{
		Begin: func(rnd *rand.Rand) {
			k.ipvs.Before = interference(k, other, rnd)
			k.refuse = func(string) error {
				if rnd.IntN(20) == 0 {
					return unix.ENOMEM
				}
				return nil
			}
		},
		End: func() { k.ipvs.Before, k.refuse = nil, nil },
		Events: []func(*rand.Rand) string{
			func(rnd *rand.Rand) string {
				k.connections(func() uint32 { return uint32(rnd.IntN(2)) })
				return "connections"
			},
			func(rnd *rand.Rand) string {
				others := slices.Clone(base)
				for _, w := range []planetest.World{{Family: lb.IPv4}, {Family: lb.IPv6}} {
					for _, a := range []netip.Addr{w.Addr(198, 3), w.Addr(203, 3), w.Addr(10, 3)} {
						if rnd.IntN(2) == 0 {
							others = append(others, a)
						}
					}
				}
				place(others)
				return fmt.Sprint("other devices have ", others)
			},
		},
		Calm:  func() { place(base) },
		Check: func(t testing.TB, p planetest.Plane, want *lb.Table) { k.ends(t, p.(*Plane), want) },
	}
}

// interference makes some calls to IPVS fail; before others, another program changes their object.
func interference(k *lab, other *ipvs.Conn, rnd *rand.Rand) func(ipvsfake.Request) error {
	inside := false
	return func(r ipvsfake.Request) error {
		if inside || rnd.IntN(12) > 0 {
			return nil
		}
		inside = true
		defer func() { inside = false }()
		s := ipvs.Service{ServiceID: r.Service, Scheduler: "wlc", Netmask: r.Service.Family.WholeAddress(),
			Flags: ipvs.Persistent, Timeout: 5}
		d := ipvs.Destination{Addr: r.Destination, Weight: 7, Upper: 9}
		if !d.Addr.IsValid() {
			w := planetest.World{Family: lb.IPv4}
			if r.Service.Family == wireFamily(lb.IPv6) {
				w.Family = lb.IPv6
			}
			d.Addr = netip.AddrPortFrom(w.Addr(100, 4242), 4242)
		}
		does := func(verbs ...ipvs.Verb) {
			var ops []ipvs.Op
			for _, v := range verbs {
				ops = append(ops, ipvs.Op{Verb: v, Service: s, Destination: d})
			}
			other.Do(context.Background(), ops, nil)
		}
		switch what := rnd.IntN(12); what {
		case 0, 1, 2, 3, 4:
			// A false ESRCH cannot be detected: if the object then appears, it counts as another
			// program's.
			return []error{unix.ENOENT, unix.EEXIST, unix.EPERM, unix.EINVAL, unix.ENOMEM}[what]
		case 5:
			if r.Command.Writes() {
				return ipvsfake.ErrLost
			}
		case 6:
			does(ipvs.DelService)
		case 7:
			// One that it creates where none leaves is its own, and stays.
			if r.Command == ipvsfake.NewService || r.Command == ipvsfake.NewDest {
				does(ipvs.NewService)
			}
			does(ipvs.SetService)
		case 8:
			does(ipvs.NewDestination, ipvs.SetDestination)
		case 9:
			does(ipvs.DelDestination)
		case 10:
			if rnd.IntN(5) == 0 {
				k.ipvs.Flush()
			}
		case 11:
			k.connections(func() uint32 { return uint32(rnd.IntN(2)) })
		}
		return nil
	}
}

// ends ends all connections. The kernel must then hold exactly the objects of a fresh start, with
// nothing left that drains or waits for a retry.
func (k *lab) ends(t testing.TB, p *Plane, want *lb.Table) {
	t.Helper()
	if len(p.undone) > 0 {
		t.Fatalf("undone: %v", p.undone)
	}
	k.connections(always(0))
	for range 4 {
		hasten(p)
		must(t, only(p.Audit(t.Context(), true)))
	}
	fresh := newLab(t)
	fresh.start(t, want.Family, want)
	if want, got := fresh.nameless(want.Family), k.nameless(want.Family); got != want {
		t.Fatalf("when all connections have ended:\n%s", golden.Diff(want, got))
	}
}

// nameless returns all of the kernel's objects of a family, without the numbers of marks.
func (k *lab) nameless(f lb.Family) string {
	var lines []string
	for _, v := range k.ipvs.State() {
		if v.Family != wireFamily(f) {
			continue
		}
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
		if strings.Contains(name, "-6-") != (f == lb.IPv6) {
			continue
		}
		for m := range s.members {
			lines = append(lines, name+" "+m.String())
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
