//go:build linux

package ipvs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	ipvswire "kube-proxy/internal/netlink/ipvs"
	"kube-proxy/test/ipvsfake"
	"kube-proxy/test/planetest"
)

// Faults and races anywhere, many of them, in a long walk: every time that others leave the kernel alone, an audit ends where a
// fresh start does.
func TestRandomFaults(t *testing.T) {
	for _, seed := range walks(20) {
		f := familyOf(seed)
		rnd := rand.New(rand.NewPCG(seed, 7))
		k, p, table, w := started(t, f)
		other, err := ipvswire.New(t.Context(), k.ipvs.Connect())
		if err != nil {
			t.Fatal(err)
		}
		ctx := context.Background()
		inside := false
		var log []string
		before := func(r ipvsfake.Request) error {
			if inside || rnd.IntN(12) > 0 {
				return nil
			}
			inside = true
			defer func() { inside = false }()
			what := rnd.IntN(12)
			log = append(log, fmt.Sprintf("%d: fault %d at command %d %v %v", len(log), what, r.Command, r.Service, r.Destination))
			s := ipvswire.Service{ServiceID: r.Service, Scheduler: "wlc", Netmask: r.Service.Family.WholeAddress(), Flags: ipvswire.Persistent, Timeout: 5}
			d := ipvswire.Destination{Addr: r.Destination, Weight: 7, Upper: 9}
			if !d.Addr.IsValid() {
				d.Addr = netip.AddrPortFrom(w.Addr(100, 4242), 4242)
			}
			switch what {
			case 0:
				return unix.ENOENT
			case 1:
				return unix.EEXIST
			case 2:
				return unix.EPERM
			case 3:
				return unix.EINVAL // of ESRCH, that is not so, nobody can tell: what is gone is another's when it comes back
			case 4:
				return unix.ENOMEM
			case 5:
				if r.Command.Writes() {
					return ipvsfake.ErrLost
				}
			case 6:
				other.Do(ctx, []ipvswire.Op{{Verb: ipvswire.DelService, Service: s}}, nil)
			case 7:
				other.Do(ctx, []ipvswire.Op{{Verb: ipvswire.NewService, Service: s}, {Verb: ipvswire.SetService, Service: s}}, nil)
			case 8:
				other.Do(ctx, []ipvswire.Op{{Verb: ipvswire.NewDestination, Service: s, Destination: d}, {Verb: ipvswire.SetDestination, Service: s, Destination: d}}, nil)
			case 9:
				other.Do(ctx, []ipvswire.Op{{Verb: ipvswire.DelDestination, Service: s, Destination: d}}, nil)
			case 10:
				if rnd.IntN(5) == 0 {
					other.Flush(ctx)
				}
			case 11:
				k.connections(func() uint32 { return uint32(rnd.IntN(2)) })
			}
			return nil
		}
		for step := range 12 {
			all := moves()
			m := all[rnd.IntN(len(all))]
			log = append(log, fmt.Sprintf("step %d: %s", step, m.name))
			changes := m.make(table, w)
			k.ipvs.Before = before
			_, err := p.Apply(t.Context(), changes)
			if rnd.IntN(3) == 0 {
				p.Audit(t.Context(), rnd.IntN(2) == 0)
			}
			k.ipvs.Before = nil
			if err == nil {
				err = p.usable(ctx)
			}
			if p.l == nil {
				if _, err := planetest.ResetAll(t.Context(), p, table); err != nil {
					t.Fatalf("seed %d step %d: reset: %v", seed, step, err)
				}
			} else if err != nil {
				if err := settle(t.Context(), p, table, changes, err); err != nil {
					t.Fatalf("seed %d step %d: settle: %v", seed, step, err)
				}
			}
			mended := -1
			for i := 0; i < 6 && mended != 0; i++ {
				if mended, err = p.Audit(t.Context(), true); err != nil {
					t.Fatalf("seed %d step %d: audit: %v", seed, step, err)
				}
			}
			if mended != 0 {
				t.Fatalf("seed %d step %d: audits go on mending %d\n%v", seed, step, mended, log)
			}
			func() {
				defer func() {
					if t.Failed() {
						for _, l := range log {
							t.Log(l)
						}
					}
				}()
				wantFresh(t, fmt.Sprintf("seed %d step %d", seed, step), f, table, p)
			}()
		}
	}
}
