//go:build linux

package ipvs

import (
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/ipvsfake"
	"kube-proxy/test/planetest"
)

// weights counts the real servers of the virtual server of a frontend: those with weight 1, and
// all.
func (k *lab) weights(key lb.Key) (serve, all int) {
	v, _ := k.find(serviceOf(key))
	for _, d := range v.Destinations {
		if d.Weight == 1 {
			serve++
		}
	}
	return serve, len(v.Destinations)
}

// A Service of 6,000 endpoints is added, replaced completely, and removed. No call sends the kernel
// more than one stage of them, each stage serves, and another tenant's Service in the same call is
// complete (TN-69). One endpoint of them costs what it costs in any Service.
func TestLargeServicesInStages(t *testing.T) {
	const n = 3 * stage
	k := newLab(t)
	w := planetest.World{Family: lb.IPv4}
	table := w.Table(0, 0)
	p := k.start(t, lb.IPv4, table)
	strangers, most := 100, 0
	change := func(what string, owner lb.Owner, rows []*lb.Frontend, each func(call int)) {
		t.Helper()
		changes, _ := table.Replace(owner, rows)
		calls := 0
		for left := changes; len(left) > 0; calls++ {
			if calls > 20 {
				t.Fatalf("%s takes more than %d calls", what, calls)
			}
			strangers++
			small, _ := table.Replace(w.ClusterIP(strangers, 90000, 3))
			before := k.cost()
			res, err := p.Apply(t.Context(), append(small, left...))
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			most = max(most, int(k.cost().since(before).messages))
			if serve, _ := k.weights(small[0].Key); serve != 3 {
				t.Fatalf("%s, call %d: the stranger's Service has %d endpoints, want 3", what, calls, serve)
			}
			each(calls)
			if len(res.Later) == 0 {
				break
			}
			if len(res.Later) != 1 || res.Later[0] != changes[0].Key {
				t.Fatalf("%s, call %d: left for later %v", what, calls, res.Later)
			}
		}
		if calls < n/stage-1 {
			t.Errorf("%s took %d calls, want stages", what, calls+1)
		}
	}
	_, rows := w.ClusterIP(1, 0, n)
	key := rows[0].Key
	serves := func(least int) func(int) {
		return func(call int) {
			if serve, _ := k.weights(key); serve < least {
				t.Errorf("in stage %d serve %d, want %d", call, serve, least)
			}
		}
	}
	change("it comes", lb.Owner{Name: "ns/svc-1"}, rows, serves(stage-1))
	changes, _ := table.Replace(w.ClusterIP(1, 0, n-1))
	before := k.cost()
	must(t, only(p.Apply(t.Context(), changes)))
	if c := k.cost().since(before); c.total() > 2 {
		t.Errorf("one endpoint of %d costs %+v", n, c)
	}
	_, rows = w.ClusterIP(1, n, n)
	change("all are replaced", lb.Owner{Name: "ns/svc-1"}, rows, serves(n))
	for serve, all := k.weights(key); all > n; serve, all = k.weights(key) {
		hasten(p)
		before := k.cost()
		must(t, only(p.Audit(t.Context(), false)))
		most = max(most, int(k.cost().since(before).messages))
		if _, left := k.weights(key); serve != n || left == all {
			t.Fatalf("of %d real servers %d serve, and %d are left", all, serve, left)
		}
	}
	k.connections(always(1))
	change("it goes, with connections", lb.Owner{Name: "ns/svc-1"}, nil, func(int) {})
	if serve, all := k.weights(key); serve != 0 || all != n {
		t.Errorf("of %d real servers %d serve, want %d that drain", all, serve, n)
	}
	if most > 2*stage+50 { // the last that are added, and the first that leave
		t.Errorf("a call was %d messages to IPVS, want %d", most, 2*stage+50)
	}
	t.Logf("a call was %d messages to IPVS at most", most)
}

// Reset, a change of the node and an audit also write such a Service in stages, and the rest is no
// drift (TN-69).
func TestLargeServicesInStagesElsewhere(t *testing.T) {
	const n = 3 * stage
	k := newLab(t)
	w := planetest.World{Family: lb.IPv4}
	table := w.Table(0, 0)
	table.Replace(w.ClusterIP(1, 0, n))
	writes, most := 0, 0
	k.ipvs.Before = func(r ipvsfake.Request) error {
		if r.Command.Writes() {
			writes++
		}
		return nil
	}
	k.start(t, lb.IPv4, table)
	// Another process, whose table no longer has it.
	k.connections(always(1))
	writes = 0
	p := k.start(t, lb.IPv4, w.Table(0, 0))
	for most = writes; len(p.Drift()) > 0; most = max(most, writes) {
		<-p.Drift()
		writes = 0
		if repaired, err := p.Audit(t.Context(), false); repaired > 0 || err != nil {
			t.Fatalf("repaired %d, %v", repaired, err)
		}
	}
	key := table.Sorted()[0].Key
	if serve, all := k.weights(key); serve > 0 || all != n || most > stage+10 {
		t.Errorf("%d of %d real servers serve, want none; a call was %d messages to IPVS, want %d", serve, all, most,
			stage+10)
	}
}
