//go:build linux

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/internal/diff"
	"kube-proxy/test/ipvsfake"
	"kube-proxy/test/planetest"
)

// move is a change of a table that touches all kinds of objects.
type move struct {
	name string
	make func(*lb.Table, planetest.World) []lb.Change
}

func replaced(t *lb.Table, o lb.Owner, fronts []*lb.Frontend) []lb.Change {
	changes, _ := t.Replace(o, fronts)
	return changes
}

func moves() []move {
	return []move{
		{"a Service more", func(t *lb.Table, w planetest.World) []lb.Change {
			o, f := w.Full(20, 900, 4, 2, time.Hour)
			return replaced(t, o, f)
		}},
		{"other endpoints", func(t *lb.Table, w planetest.World) []lb.Change {
			o, f := w.Full(10, 502, 5, 1, time.Hour)
			return replaced(t, o, f)
		}},
		{"none local", func(t *lb.Table, w planetest.World) []lb.Change {
			o, f := w.Full(10, 500, 5, 0, 0)
			return replaced(t, o, f)
		}},
		{"no endpoints", func(t *lb.Table, w planetest.World) []lb.Change {
			o, f := w.Full(10, 0, 0, 0, 0)
			return replaced(t, o, f)
		}},
		{"a Service less", func(t *lb.Table, w planetest.World) []lb.Change {
			return replaced(t, lb.Owner{Name: "ns/svc-10"}, nil)
		}},
	}
}

func startTable(w planetest.World) *lb.Table {
	t := w.Table(3, 2)
	t.Family = w.Family
	t.Replace(w.Full(10, 500, 5, 2, time.Hour))
	return t
}

// settle does what the engine does after an error: a Reset if it is asked for, else the same again.
func settle(ctx context.Context, p *Plane, t *lb.Table, changes []lb.Change, err error) error {
	for range 4 {
		switch {
		case errors.Is(err, plane.ErrStateLost):
			changes = nil
			_, err = planetest.ResetAll(ctx, p, t)
		case err != nil, len(p.Drift()) > 0 && changes != nil:
			_, err = p.Apply(ctx, changes)
		}
		select {
		case <-p.Drift():
			if _, audit := p.Audit(ctx, false); audit != nil && err == nil {
				err = audit
			}
			continue
		default:
		}
		if err == nil {
			return nil
		}
	}
	return err
}

func wantFresh(t *testing.T, when string, f lb.Family, table *lb.Table, p *Plane) {
	t.Helper()
	fresh := newLab(t).plane(t, f)
	must(t, only(planetest.ResetAll(t.Context(), fresh, table)))
	want, err := fresh.Dump()
	if err != nil {
		t.Fatal(err)
	}
	got, err := p.Dump()
	if err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Fatalf("%s: not what a fresh start makes of the table:\n%s", when, onlyOne(want, got))
	}
}

// onlyOne are the lines that only one of two texts has.
func onlyOne(want, got string) string {
	var b strings.Builder
	diff.Sorted(slices.Sorted(strings.Lines(want)), slices.Sorted(strings.Lines(got)), strings.Compare,
		func(l string) { b.WriteString("- " + l) }, func(l string) { b.WriteString("+ " + l) })
	return b.String()
}

// Each message of a change fails once, in each of the ways in which it can: the kernel refuses it, somebody else did the same just
// before, or undid what it stands on, or its answer is lost. What follows, which is what the engine does, ends where a fresh
// start does.
func TestFaults(t *testing.T) {
	type fault struct {
		name string
		// do returns what Before does for the one message.
		do func(*lab, *ipvs.Conn, ipvsfake.Request) error
	}
	same := func(k *lab, c *ipvs.Conn, r ipvsfake.Request) error { // somebody else does just that
		ctx, s := context.Background(), ipvs.Service{ServiceID: r.Service, Scheduler: "wlc", Netmask: r.Service.Family.WholeAddress()}
		d := ipvs.Destination{Addr: r.Destination, Weight: 7}
		verb := map[ipvsfake.Command]ipvs.Verb{ipvsfake.NewService: ipvs.NewService, ipvsfake.DelService: ipvs.DelService,
			ipvsfake.NewDest: ipvs.NewDestination, ipvsfake.DelDest: ipvs.DelDestination}[r.Command]
		if verb == 0 {
			return nil
		}
		return c.Do(ctx, []ipvs.Op{{Verb: verb, Service: s, Destination: d}}, nil)
	}
	gone := func(k *lab, c *ipvs.Conn, r ipvsfake.Request) error { // somebody else removes what it is about
		s := ipvs.Service{ServiceID: r.Service}
		c.Do(context.Background(), []ipvs.Op{{Verb: ipvs.DelService, Service: s}}, nil)
		return nil
	}
	const beside = "EPERM of a member or an address"
	faults := []fault{
		{"EPERM", func(*lab, *ipvs.Conn, ipvsfake.Request) error { return unix.EPERM }},
		{"ENOMEM", func(*lab, *ipvs.Conn, ipvsfake.Request) error { return unix.ENOMEM }},
		{"lost", func(*lab, *ipvs.Conn, ipvsfake.Request) error { return ipvsfake.ErrLost }},
		{"raced", func(k *lab, c *ipvs.Conn, r ipvsfake.Request) error { same(k, c, r); return nil }},
		{"undone", gone},
		{beside, func(*lab, *ipvs.Conn, ipvsfake.Request) error { return unix.EPERM }},
	}
	tried := 0
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		for _, m := range moves() {
			for _, fault := range faults {
				if f == lb.IPv6 && fault.name != "raced" {
					continue
				}
				for n := 1; ; n++ {
					k, p, table, w := started(t, f)
					raced, err := ipvs.New(t.Context(), k.ipvs.Connect())
					if err != nil {
						t.Fatal(err)
					}
					count, hit := 0, false
					before := func(r ipvsfake.Request) error {
						if count++; count != n {
							return nil
						}
						hit = true
						return fault.do(k, raced, r)
					}
					if fault.name == beside {
						k.refuse = func(string) error { return before(ipvsfake.Request{}) }
					} else {
						k.ipvs.Before = before
					}
					changes := m.make(table, w)
					_, err = p.Apply(t.Context(), changes)
					at := count
					if err = settle(t.Context(), p, table, changes, err); err != nil {
						t.Fatalf("%s, %s, message %d of %d: %v", m.name, fault.name, n, at, err)
					}
					if !hit {
						break
					}
					tried++
					if fault.name == "undone" || fault.name == "raced" { // it may not have been noticed: the audit's
						must(t, only(p.Audit(t.Context(), true)))
					}
					k.ipvs.Before, k.refuse = nil, nil
					wantFresh(t, fmt.Sprintf("%s: %s, %s, message %d", f, m.name, fault.name, n), f, table, p)
				}
			}
		}
	}
	t.Logf("%d faults", tried)
	if tried < 200 {
		t.Errorf("only %d faults were tried", tried)
	}
}
