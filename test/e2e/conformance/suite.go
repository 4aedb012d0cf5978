package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/controlplane"
)

// Suite is a run of upstream's tests.
type Suite struct {
	Focus, Skip string        // regular expressions of names; Skip adds to the tests that Unfit names
	Procs       int           // that run tests side by side
	Timeout     time.Duration // of the whole run
	Dir         string        // folder for the log and the report
}

// Result is the result of one test.
type Result struct {
	Name    string
	State   string // passed, failed, timedout, panicked, interrupted, skipped or pending
	Took    time.Duration
	Message string // of a failure
}

// Ran reports whether the test was run, and not left out by its name or by itself.
func (r Result) Ran() bool { return r.State != "skipped" && r.State != "pending" }

// Run runs the suite on the cluster and returns the results, by name.
func (c *Cluster) Run(ctx context.Context, s Suite) ([]Result, error) {
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return nil, err
	}
	kubeconfig, err := c.bed.API.Kubeconfig("conformance", controlplane.AdminUser, nil)
	if err != nil {
		return nil, err
	}
	namespace, err := c.bed.Netns(netlab.Client)
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(s.Dir, "e2e.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	report := filepath.Join(s.Dir, "report.json")
	if err := os.RemoveAll(report); err != nil {
		return nil, err
	}
	cmd := exec.Command(filepath.Join(c.bin, "ginkgo"), fmt.Sprintf("--procs=%d", s.Procs), "--no-color",
		"--timeout="+s.Timeout.String(), "--focus="+s.Focus, "--skip="+s.skip(), "--silence-skips",
		"--output-dir="+s.Dir, "--json-report="+filepath.Base(report), filepath.Join(c.bin, "e2e.test"), "--",
		"--provider=skeleton", "--kubeconfig="+kubeconfig, "--kubectl-path="+filepath.Join(c.bin, "kubectl"),
		fmt.Sprintf("--num-nodes=%d", len(hosts)), "--dump-logs-on-failure=false", "--disable-log-dump")
	cmd.Stdout, cmd.Stderr = log, log
	process, err := controlplane.StartProcess("ginkgo", namespace, cmd)
	if err != nil {
		return nil, err
	}
	c.logf("running the tests; %s follows them", log.Name())
	select {
	case <-process.Done():
	case <-ctx.Done():
		if err := process.Stop(time.Minute); err != nil {
			return nil, err
		}
	}
	results, err := read(report)
	if err != nil {
		return nil, fmt.Errorf("no results, exit code %d: see %s: %w", process.ExitCode(), log.Name(), err)
	}
	return results, nil
}

func (s Suite) skip() string {
	var all []string
	for _, u := range Unfit {
		all = append(all, u.Name)
	}
	if s.Skip != "" {
		all = append(all, s.Skip)
	}
	return strings.Join(all, "|")
}

// read reads a report of ginkgo.
func read(file string) ([]Result, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts    []string
			LeafNodeText, LeafNodeType string
			State                      string
			RunTime                    time.Duration
			Failure                    struct{ Message string }
		}
	}
	if err := json.Unmarshal(data, &suites); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	var results []Result
	for _, suite := range suites {
		for _, r := range suite.SpecReports {
			name := strings.Join(append(r.ContainerHierarchyTexts, r.LeafNodeText), " ")
			if r.LeafNodeType != "It" {
				if r.State == "passed" {
					continue
				}
				name = r.LeafNodeType // of the whole suite
			}
			results = append(results, Result{Name: name, State: r.State, Took: r.RunTime, Message: r.Failure.Message})
		}
	}
	slices.SortFunc(results, func(a, b Result) int { return strings.Compare(a.Name, b.Name) })
	return results, nil
}
