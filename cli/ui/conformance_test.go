package ui

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"testing"

	"kube-proxy/test/planetest"
)

var update = flag.Bool("update", false, "write conformance.json anew")

// What this build says of its modes is what was recorded of them, as in docs/conformance.md.
func TestConformance(t *testing.T) {
	results, err := planetest.ReadResults("../../test/planetest/testdata/results")
	if err != nil {
		t.Fatal(err)
	}
	var runs []run
	for _, r := range results {
		one := run{Mode: r.Mode, Kernel: r.Kernel, Model: r.Model}
		if r.All != nil {
			one.When = r.All.String()
		}
		for _, c := range r.Cases {
			for _, v := range c.Families {
				switch {
				case v == planetest.Fails:
					one.Fail++
				case v != planetest.Passes:
					one.Not++
				case len(c.Modelled) == 0:
					one.Pass++
				}
			}
			if c.Differs != "" || len(c.Modelled) > 0 {
				one.Differ++
			}
		}
		runs = append(runs, one)
	}
	want, err := json.MarshalIndent(runs, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	want = append(want, '\n')
	if *update {
		if err := os.WriteFile("conformance.json", want, 0o644); err != nil {
			t.Fatal(err)
		}
	} else if !bytes.Equal(recorded, want) {
		t.Error("conformance.json is stale: go test ./cli/ui -run TestConformance -update")
	}
	for _, mode := range []string{"nftables", "iptables", "ipvs", "userspace", "kernelspace"} {
		if got := runsOf(mode); len(got) == 0 || got[0].Pass == 0 {
			t.Errorf("nothing is recorded of mode %s", mode)
		}
	}
}
