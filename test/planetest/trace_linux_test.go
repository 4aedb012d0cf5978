package planetest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/lb"
	"kube-proxy/trace"
)

// A trace that differs from the outcome of packets is found: here it uses another mode than the
// running one.
func TestWrongAnswersAreFound(t *testing.T) {
	all := load(t, "")
	labs := newPool(t)
	for _, c := range []struct {
		name, scenario string
		how            trace.Mode
	}{
		{"passes what it refuses", "unknown-port", trace.Mode{PassesUnknown: true}},
		{"answers pings", "unknown-port", trace.Mode{Holds: true}},
		{"masquerades all", "external-policy-local", trace.Mode{Terminates: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			sc := named(t, all, c.scenario)
			s := &suite{labs: labs, timeout: 300 * time.Millisecond,
				Config: Config{Mode: "nftables", Trace: func(lb.Family) trace.Mode {
					return c.how
				}, New: inKernel}}
			_, failures, err := s.try(sc)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				if !slices.ContainsFunc(failures, func(text string) bool {
					return strings.Contains(text, ", "+f.String()) && strings.Contains(text, "trace says of ")
				}) {
					t.Errorf("%s passes in %s, with a trace of mode %+v: %s", c.scenario, f, c.how,
						strings.Join(failures, "\n"))
				}
			}
		})
	}
}
