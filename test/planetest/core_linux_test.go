package planetest

import (
	"slices"
	"strings"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/scenario"
)

// A form that no scenario of the core has is reported, with its scenarios; so is a name without a
// scenario.
func TestMissingForms(t *testing.T) {
	var all []*scenario.Scenario
	for name, text := range map[string]string{"longest": longestNames(), "many": manyServices()} {
		sc, err := scenario.Parse(name+".txtar", []byte(text), labYAML)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, sc)
	}
	kinds := func(_ lb.Family, table *lb.Table) (all []string, _ error) {
		for _, row := range table.Sorted() {
			all = append(all, row.Kind.String())
			if row.Routes[0].Do == lb.Reject {
				all = append(all, "reject")
			}
		}
		return all, nil
	}
	for _, c := range []struct{ core, missing []string }{
		{[]string{"many", "longest"}, nil},
		{[]string{"many"}, []string{`"nodeport", as for longest`}},
		{[]string{"longest"}, []string{`"reject", as for many`}},
	} {
		core, err := Config{Core: c.core}.core(all)
		if err != nil || len(core) != len(c.core) {
			t.Fatalf("%v: %d scenarios: %v", c.core, len(core), err)
		}
		n, missing, err := missingForms(all, core, lb.IPv4, kinds)
		if n != 3 || !slices.Equal(missing, c.missing) || err != nil {
			t.Errorf("core %v: of %d forms are missing %q: %v", c.core, n, missing, err)
		}
	}
	if _, err := (Config{Mode: "m", Core: []string{"many", "few"}}).core(all); err == nil ||
		!strings.Contains(err.Error(), "m has 2 names") {
		t.Errorf("a name that is no scenario's: %v", err)
	}
}
