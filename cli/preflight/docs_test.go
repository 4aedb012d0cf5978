package preflight

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/check.md anew")

// docs/check.md is what the list of kinds says.
func TestPage(t *testing.T) {
	const file = "../../docs/check.md"
	if *update {
		if err := os.WriteFile(file, []byte(Page()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	page, err := os.ReadFile(file)
	if err != nil || string(page) != Page() {
		t.Errorf("%s is stale (%v): go test ./cli/preflight -run TestPage -update", file, err)
	}
}

// Each kind says what it looks at, why and what to do, and has an id of its own, which scripts can take.
func TestKinds(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range Kinds() {
		if k.ID == "" || strings.Trim(k.ID, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || seen[k.ID] {
			t.Errorf("id %q", k.ID)
		}
		seen[k.ID] = true
		if k.Looks == "" || strings.HasSuffix(k.Looks, ".") || !strings.HasSuffix(k.Why, ".") || !strings.HasSuffix(k.Remedy, ".") || k.judge == nil {
			t.Errorf("%s: it says too little: %+v", k.ID, k)
		}
	}
	if len(seen) < 30 {
		t.Errorf("there are %d kinds", len(seen))
	}
}
