//go:build linux

package iptables

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/engine"
	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// tally counts the frontends that the engine reports as written.
type tally struct{ atomic.Int64 }

func (n *tally) Applied(changes []lb.Change) { n.Add(int64(len(changes))) }

// The engine finds the frontends that iptables refuses, also if they exist from the start, and
// writes all others, at a bounded cost (docs/adr/0002).
func TestEngineFindsRefusedRows(t *testing.T) {
	for _, version := range []string{"iptables v1.8.9 (nf_tables)", "iptables v1.8.9 (legacy)"} {
		t.Run(version, func(t *testing.T) {
			const services = 300
			w := planetest.World{Family: lb.IPv4}
			hole := &blackHole{version: version, fail: refusing(chainOf(7), chainOf(222))}
			p := newPlane(t, Config{Family: lb.IPv4, Runner: hole})
			store := cluster.NewStore("node1")
			rows := map[cluster.Name][]*lb.Frontend{}
			events := []cluster.Event{cluster.NodeSet{Node: &cluster.Node{Name: "node1"}}, cluster.CIDRsListed{},
				cluster.SlicesListed{}}
			var all cluster.ServicesListed
			for i := range services {
				o, fronts := w.ClusterIP(i, 10*i, 3)
				ns, name, _ := strings.Cut(o.Name, "/")
				s := &cluster.Service{Name: cluster.Name{Namespace: ns, Name: name}}
				rows[s.Name] = fronts
				all.Services = append(all.Services, s)
			}
			var written tally
			e := engine.New(engine.Config{Family: lb.IPv4, Plane: p, Store: store, Log: slog.New(slog.DiscardHandler),
				Observers:   []engine.Observer{&written},
				Resolve:     func(v cluster.View) []*lb.Frontend { return rows[v.Name] },
				ResolveNode: func(cluster.Facts) lb.Node { return w.Node() }})
			for _, ev := range append(events, all) {
				e.Mark(store.Fold(ev))
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- e.Run(ctx) }()
			found := func() string {
				var failing []string
				for _, f := range e.Stats().Failing {
					failing = append(failing, f.Key.String())
				}
				return strings.Join(failing, " ")
			}
			const want = "10.0.0.8:80/tcp 10.0.0.223:80/tcp"
			for deadline := time.Now().Add(time.Minute); (found() != want || written.Load() < services-2) &&
				time.Now().Before(deadline); {
				time.Sleep(10 * time.Millisecond)
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if got := found(); got != want {
				t.Errorf("failing are %q", got)
			}
			if n := len(p.st.rows); n != services-2 {
				t.Errorf("%d rows are held, want all but the two that are refused", n)
			}
			if s := p.Stats(); s.Restores > 60 {
				t.Errorf("it took %d restores", s.Restores)
			}
		})
	}
}
