//go:build linux

package ipvs

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/lb"
	"kube-proxy/test/ipvsfake"
	"kube-proxy/test/planetest"
)

// However many virtual servers have draining real servers, and whenever they began, they are
// checked at most once a second. Each check lists a bounded number of real servers, so that other
// changes need not wait; all get their turn.
func TestManyDrainTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const services, backends = 50, 500
		k := newLab(t)
		w := planetest.World{Family: lb.IPv4}
		table := w.Table(services, backends)
		p := k.start(t, lb.IPv4, table)
		listed := 0
		k.ipvs.Before = func(r ipvsfake.Request) error {
			if r.Command == ipvsfake.GetDest {
				listed += backends
			}
			return nil
		}
		server := map[int]ipvs.ServiceID{}
		for i := range services {
			_, fronts := w.ClusterIP(i, i*backends, backends)
			server[i] = serviceOf(fronts[0].Key)
			leaves := fronts[0].Routes[0].To.Backends.At(backends - 1).Addr
			must(t, k.ipvs.SetConns(server[i], leaves, ipvsfake.Conns{Active: 1}))
			changes, _ := table.Replace(w.ClusterIP(i, i*backends, backends-1))
			must(t, only(p.Apply(context.Background(), changes)))
			time.Sleep(11 * time.Millisecond)
		}
		begun, checks, most, all := time.Now(), 0, 0, 0
		for end := time.After(3 * time.Minute); ; {
			select {
			case <-p.Drift():
				listed = 0
				must(t, only(p.Audit(context.Background(), false)))
				checks++
				most, all = max(most, listed), all+listed
				continue
			case <-end:
			}
			break
		}
		if seconds := int(time.Since(begun)/time.Second) + 1; checks > seconds {
			t.Errorf("%d checks in %d s", checks, seconds)
		}
		if most > inspectStep+backends {
			t.Errorf("a check lists %d real servers, want %d and one virtual server's at most", most, inspectStep)
		}
		if want := 5 * services * backends; all < want {
			t.Errorf("%d real servers were listed in 3 minutes, want %d at least", all, want)
		}
		for i := range services {
			_, fronts := w.ClusterIP(i, i*backends, backends)
			must(t, k.ipvs.SetConns(server[i], fronts[0].Routes[0].To.Backends.At(backends-1).Addr, ipvsfake.Conns{}))
		}
		for end := time.After(2 * time.Minute); len(p.drains) > 0; {
			select {
			case <-p.Drift():
				must(t, only(p.Audit(context.Background(), false)))
				continue
			case <-end:
				t.Fatalf("%d drain still", len(p.drains))
			}
		}
	})
}

// A full audit lists the real servers of a part of the virtual servers, by their number: other
// changes wait meanwhile. All get their turn.
func TestAuditListsAPart(t *testing.T) {
	const services, backends = 50, 500
	k := newLab(t)
	p := k.start(t, lb.IPv4, planetest.World{Family: lb.IPv4}.Table(services, backends))
	listed := 0
	k.ipvs.Before = func(r ipvsfake.Request) error {
		if r.Command == ipvsfake.GetDest {
			listed += backends
		}
		return nil
	}
	all := 0
	for range 2 {
		listed = 0
		must(t, only(p.Audit(t.Context(), true)))
		all += listed
		if listed > inspectStep+backends {
			t.Errorf("an audit lists %d real servers, want %d and one virtual server's at most", listed, inspectStep)
		}
	}
	if all < services*backends {
		t.Errorf("two audits list %d real servers of %d", all, services*backends)
	}
}
