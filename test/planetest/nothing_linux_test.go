package planetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/test/scenario"
)

// nothing is a plane that programs nothing.
type nothing struct{}

func (nothing) Reset(context.Context, *lb.Table) (plane.ResetResult, error) {
	return plane.ResetResult{}, nil
}
func (nothing) Apply(context.Context, []lb.Change) (plane.ApplyResult, error) {
	return plane.ApplyResult{}, nil
}
func (nothing) SetNode(context.Context, lb.Node) error   { return nil }
func (nothing) Probe(context.Context) error              { return nil }
func (nothing) Drift() <-chan struct{}                   { return nil }
func (nothing) Audit(context.Context, bool) (int, error) { return 0, nil }
func (nothing) MaxBatchWeight() int                      { return 1 }

// newPool returns labs for a test.
func newPool(t *testing.T) *pool {
	p := &pool{}
	t.Cleanup(func() {
		if err := p.close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// named returns the scenario of a name.
func named(t *testing.T, all []*scenario.Scenario, name string) *scenario.Scenario {
	t.Helper()
	i := slices.IndexFunc(all, func(s *scenario.Scenario) bool { return s.Name == name })
	if i < 0 {
		t.Fatalf("there is no scenario %s", name)
	}
	return all[i]
}

// A suite that cannot fail proves nothing: every line with an answer or a refusal at a service
// address must fail with a plane that programs nothing. Lines whose packets the network itself
// refuses or drops may pass.
func TestNothingFails(t *testing.T) {
	all := load(t, "")
	s := &suite{
		Config: Config{Mode: "nothing", New: func(lb.Family) (Plane, error) { return nothing{}, nil }},
		labs:   newPool(t), timeout: 300 * time.Millisecond,
	}
	for _, name := range []string{"clusterip", "nodeport", "hairpin", "no-endpoints", "external-policy-local",
		"source-ranges",
		"session-affinity-survives-changes", "established-connections", "udp", "detect-bridge", "unknown-port"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sc := named(t, all, name)
			_, failures, err := s.try(sc)
			if err != nil {
				t.Fatal(err)
			}
			failed := strings.Join(failures, "\n")
			for _, f := range families {
				expectFailures(t, sc, f, failed)
			}
		})
	}
}

func expectFailures(t *testing.T, sc *scenario.Scenario, f lb.Family, failed string) {
	checked := 0
	for _, st := range sc.States {
		for _, p := range st.Packets {
			if p.Want.Verdict != scenario.Answered || p.Verb != scenario.Send || p.Family != 0 && p.Family != f {
				continue
			}
			checked++
			if !strings.Contains(failed, fmt.Sprintf("%s.txtar:%d: ", sc.Name, p.Line)) {
				t.Errorf("%v: %s passed without a plane", f, p.Text)
			}
		}
	}
	if checked == 0 && sc.Name != "no-endpoints" {
		t.Errorf("%v: no line was checked", f)
	}
}
