package preflight

import (
	"fmt"
	"strings"
	"testing"

	"kube-proxy/test/golden"
)

// docs/check.md has the contents of the list of kinds.
func TestPage(t *testing.T) {
	golden.Equal(t, "../../docs/check.md", page())
}

// Each kind describes its check, reason and remedy, and has a unique id for scripts.
func TestKinds(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range Kinds() {
		if k.ID == "" || strings.Trim(k.ID, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || seen[k.ID] {
			t.Errorf("id %q", k.ID)
		}
		seen[k.ID] = true
		if k.Looks == "" || strings.HasSuffix(k.Looks, ".") || !strings.HasSuffix(k.Why, ".") ||
			!strings.HasSuffix(k.Remedy, ".") || k.judge == nil {
			t.Errorf("%s: it says too little: %+v", k.ID, k)
		}
	}
	if len(seen) < 30 {
		t.Errorf("there are %d kinds", len(seen))
	}
}

// page returns docs/check.md.
func page() string {
	var b strings.Builder
	b.WriteString("# Findings of `kube-proxy check`\n\n<!-- Made by `go test ./cli/preflight -run TestPage -update`. " +
		"Do not edit. -->\n\n" +
		"`kube-proxy check` takes the flags and the `--config` of a proxy, or without any those of the running " +
		"one.\nIt inspects the node and reports what would hinder the\n" +
		"proxy, why it matters and what to do. It changes nothing on the node. It tries each mode in a temporary " +
		"network\n" +
		"namespace, unless the kernel would load a module for that; `--load-modules` allows it. Each probe has a " +
		"time limit.\n" +
		"`--problems` lists only errors, warnings and unknowns.\n\n" +
		fmt.Sprintf("Exit codes: %d only `ok` and `info`; 1 invalid command line or configuration, nothing was "+
			"checked;\n"+
			"%d an `error`; %d a `warning` or `unknown`, but no error.\n\n", ExitOK, ExitErrors, ExitWarnings) +
		"## `-o json`\n\nAn object. Fields may be added. `id`, `severity` and `about` are stable; the sentences may " +
		"change.\n\n" +
		"- `version` of this format: 1\n- `node`: the node name of the proxy\n" +
		"- `mode`: the configured mode; empty for the default\n" +
		"- `runs`: the mode that would run; empty if none can, or if that could not be tried\n" +
		"- `worst` severity\n- `exitCode`: as above\n- `findings`: in the order of this page, each with\n" +
		"  - `id`: the kind, below\n" +
		"  - `severity`: `ok`, `info`, `unknown`, `warning`, `error`, in this order\n" +
		"  - `about`: the object, such as a mode and family, a sysctl, an interface\n" +
		"  - `seen`: the observation, or why it is unknown\n" +
		"  - `why`, `remedy`: why it matters and what to do; absent if no action is needed\n\n" +
		"## Kinds\n\nA kind may have several findings, or none if it does not apply. Any may be `unknown`, without " +
		"the necessary\n" +
		"privileges or after a timeout. In parentheses: the worst severity. The command prints why a finding " +
		"matters, and\n" +
		"the remedy.\n\n")
	for _, k := range Kinds() {
		fmt.Fprintf(&b, "- `%s` (%s): %s\n", k.ID, k.Worst, k.Looks)
	}
	return b.String()
}
