package planetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/scenario"
)

// Core proves that the scenarios of [Config.Core] are enough for another kernel: every form of
// rule, match or set that the plane writes for any scenario, in either family, it also writes for
// one of them. forms returns the forms that the plane writes for one table: its text without
// addresses, ports, numbers and names.
func Core(t *testing.T, cfg Config, forms func(lb.Family, *lb.Table) ([]string, error)) {
	all := append(load(t, cfg.Dir), generated(t)...)
	core, err := cfg.core(all)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		n, missing, err := missingForms(all, core, f, forms)
		if err != nil {
			t.Fatal(err)
		}
		if n < 10 {
			t.Errorf("%v: %d forms: does the test look at what the plane writes?", f, n)
		}
		for _, m := range missing {
			t.Errorf("%v: Config.Core has no scenario for which the plane writes %s", f, m)
		}
		t.Logf("%v: %d of %d scenarios have all %d forms", f, len(core), len(all), n)
	}
}

// missingForms counts the forms of all scenarios, and returns those that no scenario of the core
// has.
func missingForms(all, core []*scenario.Scenario, f lb.Family, forms func(lb.Family, *lb.Table) ([]string,
	error)) (n int, missing []string, _ error) {
	found := map[string][]string{} // by form: the scenarios that have it
	for _, sc := range all {
		if err := formsOf(sc, f, forms, found); err != nil {
			return 0, nil, err
		}
	}
	for form, in := range found {
		if !slices.ContainsFunc(core, func(sc *scenario.Scenario) bool { return slices.Contains(in, sc.Name) }) {
			missing = append(missing, fmt.Sprintf("%q, as for %s", form, strings.Join(in, ", ")))
		}
	}
	slices.Sort(missing)
	return len(found), missing, nil
}

// core returns the scenarios in Config.Core.
func (c Config) core(all []*scenario.Scenario) (core []*scenario.Scenario, err error) {
	core = slices.DeleteFunc(slices.Clone(all), func(sc *scenario.Scenario) bool {
		return !slices.Contains(c.Core, sc.Name)
	})
	if len(core) != len(c.Core) {
		return nil, fmt.Errorf("Config.Core of %s has %d names, %d of scenarios", c.Mode, len(c.Core), len(core))
	}
	return core, nil
}

// formsOf adds the forms of all states of a scenario.
func formsOf(sc *scenario.Scenario, f lb.Family, forms func(lb.Family, *lb.Table) ([]string, error),
	found map[string][]string) error {
	for r := sc.Replay(f); ; {
		step, ok, err := r.Next()
		if err != nil || !ok {
			return err
		}
		some, err := forms(f, step.Table)
		if err != nil {
			return fmt.Errorf("%s, %v, step %q: %w", sc.Name, f, step.State.Name, err)
		}
		for _, form := range some {
			if !slices.Contains(found[form], sc.Name) {
				found[form] = append(found[form], sc.Name)
			}
		}
	}
}
