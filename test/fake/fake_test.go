package fake

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/test/tables"
)

var ctx = context.Background()

func backends(addrs ...string) lb.Backends {
	var out []lb.Backend
	for _, a := range addrs {
		out = append(out, lb.Backend{Addr: netip.MustParseAddrPort(a)})
	}
	return lb.BackendsOf(out...)
}

func key(s string) lb.Key {
	k, err := tables.Key(s)
	if err != nil {
		panic(err)
	}
	return k
}

// row is a well-formed frontend with one route over a set of two.
func row(k string) *lb.Frontend {
	f := &lb.Frontend{Key: key(k), Service: "a/b:http", Kind: lb.ClusterIP}
	set := &lb.BackendSet{ID: lb.SetID{Service: f.Service, Proto: f.Key.Proto, Scope: lb.Cluster},
		Backends: backends("10.0.0.1:80", "10.0.0.2:80")}
	f.Routes = []lb.Route{{From: lb.Anywhere, Do: lb.Balance, To: set}}
	return f
}

func put(f *lb.Frontend) []lb.Change { return []lb.Change{{Key: f.Key, New: f}} }

func ready(t *testing.T) *Plane {
	t.Helper()
	p := New(lb.IPv4)
	if _, err := p.Reset(ctx, &lb.Table{}); err != nil {
		t.Fatal(err)
	}
	return p
}

// Apply refuses a frontend that lb.Check refuses, and does nothing of its batch; a Reset postpones
// it.
func TestMalformed(t *testing.T) {
	p := ready(t)
	empty := p.Dump()
	bad := row("[2001:db8::1]:80/tcp")
	if _, err := p.Apply(ctx, append(put(row("192.0.2.2:80/tcp")), put(bad)...)); err == nil {
		t.Error("Apply took it")
	}
	if _, err := p.Apply(ctx, []lb.Change{{Key: key("192.0.2.1:80/tcp"), New: row("192.0.2.2:80/tcp")}}); err == nil {
		t.Error("Apply took a row for another key")
	}
	bad.Routes = []lb.Route{{From: lb.Anywhere, Do: lb.Drop}}
	var table lb.Table // of no family, so that it accepts the frontend
	table.Replace(lb.Owner{Name: "a/b"}, []*lb.Frontend{bad})
	if res, err := p.Reset(ctx, &table); err != nil || len(res.Later) != 1 || res.Later[0] != bad.Key {
		t.Errorf("Reset: %+v, %v, want the row left for later", res, err)
	}
	if d := p.Dump(); d != empty {
		t.Errorf("something was done:\n%s", d)
	}
}

// A failed call has done a random part; over many seeds none, some and all of it.
func TestFaultyHalfDone(t *testing.T) {
	var changes []lb.Change
	for _, k := range []string{"192.0.2.1:80/tcp", "192.0.2.2:80/tcp", "192.0.2.3:80/tcp"} {
		changes = append(changes, put(row(k))...)
	}
	seen := map[int]int{}
	for seed := range uint64(300) {
		p := ready(t)
		f := NewFaulty(p, seed)
		f.FailNext(ErrInjected, nil)
		if _, err := f.Apply(ctx, changes); !errors.Is(err, ErrInjected) {
			t.Fatalf("Apply: %v", err)
		}
		seen[p.Len()]++
		if _, err := f.Apply(ctx, changes); err != nil || p.Len() != 3 {
			t.Fatalf("second Apply: %v, %d rows", err, p.Len())
		}
	}
	for n := range 4 {
		if seen[n] == 0 {
			t.Errorf("never %d of 3 done: %v", n, seen)
		}
	}
}

// Refused keys fail their batch and are never written; lost states, panics and probabilities work
// as configured.
func TestFaults(t *testing.T) {
	p := ready(t)
	f := NewFaulty(p, 1)
	bad, good := row("192.0.2.1:80/tcp"), row("192.0.2.2:80/tcp")
	f.Refuse(bad.Key)
	for range 20 {
		if _, err := f.Apply(ctx, append(put(bad), put(good)...)); !errors.Is(err, ErrInjected) || p.Has(bad.Key) {
			t.Fatalf("refused key: %v, there %t", err, p.Has(bad.Key))
		}
	}
	if _, err := f.Apply(ctx, put(good)); err != nil {
		t.Errorf("good key: %v", err)
	}
	f.Heal()
	if _, err := f.Apply(ctx, put(bad)); err != nil {
		t.Errorf("healed: %v", err)
	}
	f.PanicAt(bad.Key)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		_, _ = f.Apply(ctx, put(bad))
	}()
	f.Heal()
	f.FailNext(plane.ErrStateLost)
	if _, err := f.Apply(ctx, put(good)); !errors.Is(err, plane.ErrStateLost) || p.Len() != 0 {
		t.Errorf("lost state: %v, %d rows", err, p.Len())
	}
	f.FailWith(0.5)
	failed := 0
	for range 1000 {
		if _, err := f.Reset(ctx, &lb.Table{}); err != nil {
			failed++
		}
	}
	if failed < 400 || failed > 600 {
		t.Errorf("%d of 1000 calls failed with probability 0.5", failed)
	}
}
