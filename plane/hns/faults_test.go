package hns_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/hns"
	"kube-proxy/plane/hns/hnsfake"
	"kube-proxy/plane/planetest"
)

// proxy drives a plane as the engine does: what failed is tried again, and a lost state is reset.
type proxy struct {
	*windowsNode
	plane  *hns.Plane
	table  *lb.Table
	failed map[lb.Key]bool
	lost   bool
}

func (x *proxy) step(ctx context.Context, changes []lb.Change) {
	for k := range x.failed {
		if !slices.ContainsFunc(changes, func(c lb.Change) bool { return c.Key == k }) {
			changes = append(changes, lb.Change{Key: k, New: x.table.Get(k)})
		}
	}
	if x.lost {
		res, err := x.plane.Reset(ctx, x.table)
		if x.lost = err != nil; x.lost {
			return
		}
		clear(x.failed)
		changes = nil
		for _, k := range res.Later {
			changes = append(changes, lb.Change{Key: k, New: x.table.Get(k)})
		}
	}
	for _, c := range changes {
		_, err := x.plane.Apply(ctx, []lb.Change{c})
		if delete(x.failed, c.Key); err != nil {
			x.failed[c.Key] = true
		}
		if errors.Is(err, plane.ErrStateLost) {
			x.lost = true
			return
		}
	}
}

func (x *proxy) audit(ctx context.Context, full bool) {
	if _, err := x.plane.Audit(ctx, full); errors.Is(err, plane.ErrStateLost) {
		x.lost = true
	}
}

// settle expects that without faults everything is as after a fresh start.
func (x *proxy) settle(t *testing.T, story func() string) {
	t.Helper()
	x.FailWith(nil)
	for range 4 {
		x.step(t.Context(), nil)
		x.audit(t.Context(), true)
	}
	if x.lost || len(x.failed) > 0 {
		t.Fatalf("lost %t, rows that fail: %v\n%s", x.lost, x.failed, story())
	}
	fresh := newNode(hns.L2Bridge, hnsfake.Everything)
	fresh.pods = everyThird
	reset(t, fresh.plane(t, x.table.Family), x.table)
	if got, want := x.Own(), fresh.Own(); got != want {
		t.Fatalf("%s\nheld:\n%s\nwant:\n%s", story(), got, want)
	}
	if mended, err := x.plane.Audit(t.Context(), true); err != nil || mended != 0 {
		t.Fatalf("another audit mended %d, error %v\n%s", mended, err, story())
	}
	for _, s := range x.Touched() {
		t.Errorf("an object of others was touched: %s", s)
	}
}

// faults are what HNS does wrong now and then: a call fails before or after it did its work, with each of the codes of the issue, or lists only half.
func faults(rnd *rand.Rand, often float64, told *[]string) func(hnsfake.Call) *hnsfake.Fault {
	codes := []uint32{hns.CodeElementNotFound, hns.CodeAlreadyExists, hns.CodePortExists, hns.CodeServiceUnreachable, hns.CodeHasReferences, 0x80004005, hns.CodeTimeout}
	return func(c hnsfake.Call) *hnsfake.Fault {
		if rnd.Float64() > often {
			return nil
		}
		f := &hnsfake.Fault{Code: codes[rnd.IntN(len(codes))], Done: rnd.IntN(2) == 0, Half: rnd.IntN(4) == 0}
		if f.Half {
			f.Done, f.Code = false, 0
		}
		*told = append(*told, fmt.Sprintf("%s fails: %+v", c.Name, *f))
		return f
	}
}

// Whatever HNS answers and whatever others do, it ends where a fresh start ends, and nothing is leaked (PN-76, DP-46).
func TestFaultsEndWhereAFreshStartEnds(t *testing.T) {
	seeds := 150
	if testing.Short() {
		seeds = 20
	}
	start := uint64(time.Now().UnixNano())
	for i := range seeds {
		t.Run("", func(t *testing.T) { chaos(t, start+uint64(i), 30) })
	}
}

// FuzzFaults is that with any seed.
func FuzzFaults(f *testing.F) {
	f.Add(uint64(1), uint8(20))
	f.Fuzz(func(t *testing.T, seed uint64, steps uint8) { chaos(t, seed, int(steps%64)) })
}

func chaos(t *testing.T, seed uint64, steps int) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	features := hnsfake.Everything
	features.ModifyLoadbalancer = rnd.IntN(2) == 0
	fam := []lb.Family{lb.IPv4, lb.IPv6}[rnd.IntN(2)]
	w := planetest.World{Family: fam}
	x := &proxy{windowsNode: newNode(hns.L2Bridge, features), table: w.Table(5, 3), failed: map[lb.Key]bool{}, lost: true}
	x.table.Family = fam
	x.pods = everyThird
	x.plane = x.windowsNode.plane(t, fam)
	var told []string
	story := func() string { return fmt.Sprintf("seed %d, modify %t: %q", seed, features.ModifyLoadbalancer, told) }
	x.FailWith(faults(rnd, 0.1, &told))
	for range steps {
		switch i := rnd.IntN(8); rnd.IntN(10) {
		case 0:
			x.audit(t.Context(), rnd.IntN(2) == 0)
		case 1:
			x.plane, x.lost = x.windowsNode.plane(t, fam), true // a restart
		case 2:
			x.podRestarts(rnd)
		case 3:
			if err := x.plane.Probe(t.Context()); errors.Is(err, plane.ErrStateLost) {
				x.lost = true
			}
		case 4:
			changes, _ := x.table.Replace(lb.Owner{Name: fmt.Sprintf("ns/svc-%d", i)}, nil)
			x.step(t.Context(), changes)
		case 5:
			x.table.Node.NodePorts = nil
			if rnd.IntN(2) == 0 {
				x.table.Node = w.Node()
			}
			if err := x.plane.SetNode(t.Context(), x.table.Node); err != nil {
				x.lost = true
			}
		default:
			changes, _ := x.table.Replace(w.Full(i, 3*rnd.IntN(10), rnd.IntN(6), 1+rnd.IntN(2), time.Duration(rnd.IntN(2))*time.Hour))
			x.step(t.Context(), changes)
		}
	}
	x.settle(t, story)
}

// everyThird address is of this node, as in planetest's worlds.
func everyThird(a netip.Addr) bool {
	b := a.AsSlice()
	b = b[len(b)-3:]
	return (int(b[0])<<16|int(b[1])<<8|int(b[2]))%3 == 0
}

// podRestarts has a pod go, and another come with its address.
func (x *proxy) podRestarts(rnd *rand.Rand) {
	var pods []hns.Endpoint
	for _, e := range x.State().Endpoints {
		if e.Flags&hns.RemoteEndpoint == 0 {
			pods = append(pods, e)
		}
	}
	if len(pods) == 0 {
		return
	}
	x.RemovePod(pods[rnd.IntN(len(pods))].ID)
}
