package preflight

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/check.md anew")

// docs/check.md is what the list of kinds says.
func TestPage(t *testing.T) {
	const file = "../../docs/check.md"
	if *update {
		if err := os.WriteFile(file, []byte(page()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	there, err := os.ReadFile(file)
	if err != nil || string(there) != page() {
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

// page returns docs/check.md.
func page() string {
	var b strings.Builder
	b.WriteString("# What `kube-proxy check` looks at\n\n<!-- Made by `go test ./cli/preflight -run TestPage -update`. Do not edit. -->\n\n" +
		"`kube-proxy check` takes the flags and the `--config` of the proxy that is to run, looks at the node and says what is in the way. It changes\n" +
		"nothing on the node: no rule, sysctl, link, file or module. Whether a mode can run is found by doing, in a network namespace that ends\n" +
		"with the question; where the kernel would load a module for the question, it is not asked, unless `--load-modules` is given. Each\n" +
		"probe has a bounded time.\n\n" +
		"## Exit codes\n\n| code | |\n|---|---|\n" +
		fmt.Sprintf("| %d | nothing but `ok` and `info` |\n| 1 | the command line or the configuration is wrong; nothing was looked at |\n"+
			"| %d | an `error` is among the findings |\n| %d | a `warning` is, or something is `unknown`, and no error |\n\n", ExitOK, ExitErrors, ExitWarnings) +
		"## `-o json`\n\nAn object, whose fields may become more:\n\n| field | |\n|---|---|\n" +
		"| `version` | of this form: 1 |\n| `node` | the name of the Node that the proxy goes by |\n| `mode` | what is asked for; empty for the best that the host can do |\n| `runs` | the mode that would run; empty if none can, or that could not be tried |\n" +
		"| `worst` | the worst severity among the findings |\n| `exitCode` | as above |\n| `findings` | a list, in the order of this page |\n" +
		"| `findings[].id` | the kind of finding, below |\n| `findings[].severity` | `ok`, `info`, `unknown`, `warning`, `error`, in this order |\n" +
		"| `findings[].about` | which of several, such as a mode and a family, a sysctl, an interface |\n| `findings[].seen` | what was seen, or why it is not known |\n" +
		"| `findings[].why`, `findings[].remedy` | why it matters and what to do; absent where nothing is to be done |\n\n" +
		"`id`, `severity` and `about` are for scripts; the sentences are for people, and may change.\n\n" +
		"## Findings\n\nOf each kind there may be several, or none where it does not apply. Any may be `unknown`, for want of a right or of an answer in time.\n")
	for _, k := range Kinds() {
		fmt.Fprintf(&b, "\n### %s\n\nUp to `%s`: %s.\n\n%s\n\n*Remedy:* %s\n", k.ID, k.Worst, k.Looks, k.Why, k.Remedy)
	}
	return b.String()
}
