package planetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/plane"
)

// Contract proves each verb of a plane by what it answers, in both families, each in a namespace of its own. It needs root.
func Contract(t *testing.T, cfg Config) {
	needRoot(t)
	for _, f := range families {
		t.Run(f.String(), func(t *testing.T) {
			c := &contract{t: t, cfg: cfg, w: World{f}}
			if err := netlab.Isolated(0, c.run); err != nil {
				t.Error(err)
			}
		})
	}
}

type contract struct {
	t   *testing.T
	cfg Config
	w   World
	p   Plane
}

func (c *contract) run() (err error) {
	if c.p, err = c.cfg.New(c.w.Family); err != nil {
		return fmt.Errorf("new plane: %w", err)
	}
	defer func() { err = errors.Join(err, shut(c.p)) }()
	c.beforeReset()
	table := c.w.Table(6, 3)
	if _, err := ResetAll(context.Background(), c.p, table); err != nil {
		return err
	}
	c.writes()
	c.audits()
	ctx := context.Background()
	if err := c.p.SetNode(ctx, table.Node); err != nil {
		c.t.Errorf("set the same node: %v", err)
	}
	if err := c.p.Probe(ctx); err != nil {
		c.t.Errorf("probe: %v", err)
	}
	if n := c.p.Pace(); n < 1 {
		c.t.Errorf("pace %d", n)
	}
	if err := c.drops(table, 2); err != nil {
		return err
	}
	if err := shut(c.p); err != nil {
		return err
	}
	if c.p, err = c.cfg.New(c.w.Family); err != nil {
		return fmt.Errorf("new plane: %w", err)
	}
	if err := c.drops(table, 4); err != nil { // DP-51: what went while no proxy ran
		return err
	}
	c.audits()
	if c.cfg.Drift != nil {
		return c.drifts()
	}
	return nil
}

// beforeReset: where the plane does not know what the kernel holds every verb asks for a Reset.
func (c *contract) beforeReset() {
	ctx := context.Background()
	_, apply := c.p.Apply(ctx, nil)
	_, audit := c.p.Audit(ctx, true)
	for verb, err := range map[string]error{
		"apply": apply, "set node": c.p.SetNode(ctx, c.w.Node()), "probe": c.p.Probe(ctx), "audit": audit,
	} {
		if !errors.Is(err, plane.ErrStateLost) {
			c.t.Errorf("%s before a Reset: error %v, want one that wraps ErrStateLost", verb, err)
		}
	}
}

// writes: Apply tells whether it wrote.
func (c *contract) writes() {
	number := lb.Key{Port: 32100, Proto: lb.TCP}
	check := func(n int) *lb.Frontend {
		return &lb.Frontend{Key: number, Service: "ns/check", Kind: lb.HealthCheck, LocalEndpoints: n,
			Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Accept}}}
	}
	_, fronts := c.w.ClusterIP(9, 90, 2)
	_, more := c.w.ClusterIP(9, 90, 3)
	row, changed := fronts[0], more[0]
	for _, s := range []struct {
		what    string
		change  lb.Change
		written bool
	}{
		{"a row that was never there goes", lb.Change{Key: row.Key}, false},
		{"a row comes", lb.Change{Key: row.Key, New: row}, true},
		{"a row changes", lb.Change{Key: row.Key, Old: row, New: changed}, true},
		{"a row goes", lb.Change{Key: row.Key, Old: changed}, true},
		{"a health check comes", lb.Change{Key: number, New: check(1)}, c.cfg.HealthChecks},
		{"a health check counts more", lb.Change{Key: number, Old: check(1), New: check(2)}, false},
		{"a health check goes", lb.Change{Key: number, Old: check(2)}, c.cfg.HealthChecks},
	} {
		written, err := c.p.Apply(context.Background(), []lb.Change{s.change})
		if err != nil || written != s.written {
			c.t.Errorf("%s: written %t, error %v, want %t", s.what, written, err, s.written)
		}
	}
}

// drops: a Reset tells which keys it took out of the kernel, and no others.
func (c *contract) drops(table *lb.Table, service int) error {
	o, fronts := c.w.ClusterIP(service, 0, 1)
	table.Replace(o, nil)
	res, err := ResetAll(context.Background(), c.p, table)
	if err != nil {
		return err
	}
	if want := []lb.Key{fronts[0].Key}; !slices.Equal(res.Dropped, want) {
		c.t.Errorf("without %s: dropped %v, want %v", o.Name, res.Dropped, want)
	}
	return nil
}

// audits has a full audit find nothing to mend: what the plane wrote is what it meant to.
func (c *contract) audits() {
	if n, err := c.p.Audit(context.Background(), true); n != 0 || err != nil {
		c.t.Errorf("a full audit mended %d, error %v, want nothing to do", n, err)
	}
}

// drifts: what others do is mended, or asks for a Reset.
func (c *contract) drifts() error {
	if err := c.cfg.Drift(c.w.Family, rand.New(rand.NewPCG(1, 1))); err != nil {
		return fmt.Errorf("drift: %w", err)
	}
	if n, err := c.p.Audit(context.Background(), true); n == 0 && !errors.Is(err, plane.ErrStateLost) {
		c.t.Errorf("an audit of what others damaged mended %d, error %v", n, err)
	}
	return nil
}
