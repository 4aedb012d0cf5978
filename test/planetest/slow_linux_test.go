package planetest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/test/scenario"
)

// lame is a plane that takes longer for a change than the affinity of affine lasts.
type lame struct{ Plane }

func (p lame) Apply(ctx context.Context, changes []lb.Change) (plane.ApplyResult, error) {
	time.Sleep(1100 * time.Millisecond)
	return p.Plane.Apply(ctx, changes)
}

// affine has a client that stays with its pod for a second, on each of 32 ports.
func affine(t *testing.T) *scenario.Scenario {
	var ports, targets []string
	for i := range 32 {
		ports = append(ports, fmt.Sprintf("{name: p%d, port: %d}", i, 1000+i))
		targets = append(targets, fmt.Sprintf("{name: p%d, port: 8080}", i))
	}
	web := strings.Replace(service("shop", "web", 1, ports), "spec:\n",
		"spec:\n  sessionAffinity: ClientIP\n  sessionAffinityConfig: {clientIP: {timeoutSeconds: 1}}\n", 1)
	slices := func(n int) string {
		return slice("shop", "web", "web-v4", false, targets, pods4[:n]) + slice("shop", "web", "web-v6", true, targets,
			pods6[:n])
	}
	text := "A client stays.\n\nRows: SV-18\n\n-- cluster.yaml --\n" + web + slices(1) +
		"-- packets --\npod3 -> shop/web:* : pod1 from same\n" +
		"-- step more/cluster.yaml --\n" + slices(2) +
		"-- step more/packets --\npod3 -> shop/web:* : pod1 from same\n"
	sc, err := scenario.Parse("affine.txtar", []byte(text), labYAML)
	if err != nil {
		t.Fatal(err)
	}
	return sc
}

// An affinity that expires before the client connects again, on a slow machine, is no failure of
// the plane; a plane without affinity is one, however slow the machine.
func TestSlowMachine(t *testing.T) {
	load(t, "") // skips without root
	labs := newPool(t)
	none := mutant{row: func(g lb.Frontend) *lb.Frontend { g.Affinity = 0; return &g }}
	for _, c := range []struct {
		name  string
		m     mutant
		fails bool
	}{{"keeps affinity", mutant{}, false}, {"no affinity", none, true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			newPlane := func(f lb.Family) (Plane, error) {
				p, err := c.m.of(inKernel)(f)
				return lame{p}, err
			}
			s := &suite{Config: Config{Mode: "lame", New: newPlane}, labs: labs, timeout: timeout}
			_, failures, lapsed, err := s.play(affine(t), 1)
			if err != nil || !lapsed || len(failures) == 0 {
				t.Fatalf("as fast as written: %v, lapsed %v, failures: %q", err, lapsed, failures)
			}
			_, failures, err = s.try(affine(t))
			if err != nil || (len(failures) > 0) != c.fails {
				t.Errorf("stretched: %v, failures: %q, want some: %v", err, failures, c.fails)
			}
		})
	}
}
