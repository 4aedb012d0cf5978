package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// The packages whose benchmarks are run.
const (
	inPolicy   = "./policy"
	inNftables = "./plane/nftables"
	inMeasure  = "./measure" // of the module test/e2e
	inProgram  = "./cmd/kube-proxy"
	inIPVS     = "./plane/ipvs"
)

// job is a `go test -bench` that is run once a round. Rounds of different jobs take turns, so that
// temporary load on the machine affects all of them.
type job struct {
	mode    string // the job's -mode
	dir     string // below the module's root
	pkg     string
	pattern string
	times   int // operations of each benchmark
	rounds  int
	args    []string // of the test program
	peer    string   // the other kube-proxy, which PEER names
	vm      string   // the kernel of the VM that it runs in (test/vm); "" is this machine's
}

// command returns the command to run it by hand in the root of the module.
func (j job) command() string {
	var b strings.Builder
	if j.dir != "" {
		fmt.Fprintf(&b, "cd %s && KUBE_PROXY=$OLDPWD/bin/kube-proxy ", j.dir)
	}
	if j.peer != "" {
		b.WriteString("PEER=$PEER ")
	}
	b.WriteString("go")
	for _, a := range j.goArgs() {
		switch {
		case strings.Contains(a, " "):
			a = `"` + a + `"`
		case strings.ContainsAny(a, "^$|()"):
			a = "'" + a + "'"
		}
		b.WriteString(" " + a)
	}
	return b.String()
}

func (j job) goArgs() []string {
	args := []string{"test", j.pkg, "-run", "^$", "-bench", j.pattern, "-benchtime", fmt.Sprintf("%dx", j.times),
		"-benchmem", "-timeout", "60m"}
	if j.vm != "" {
		args = append(args, "-exec", "$PWD/test/vm/vmrun --timeout 1800 --kernel "+j.vm+" --")
	}
	if len(j.args) > 0 {
		args = append(append(args, "-args"), j.args...)
	}
	return args
}

// plan returns the jobs to run.
func plan(o options) (jobs []job) {
	for _, mode := range modes {
		if !slices.Contains(o.modes, mode) {
			continue
		}
		for _, j := range modeJobs(o, mode) {
			j.mode = mode
			jobs = append(jobs, j)
		}
	}
	return jobs
}

func modeJobs(o options, mode string) []job {
	switch mode {
	case "nftables":
		return nftablesJobs(o)
	case "iptables":
		return iptablesJobs(o, "IPTables", 200)
	case "iptables-legacy":
		return iptablesJobs(o, "IPTablesLegacy", 40) // each change copies the whole table, for most of a second
	}
	if o.only != "" { // of those with an API server
		return nil
	}
	switch mode {
	case "compare":
		return compareJobs(o)
	case "userspace":
		return userspaceJobs(o)
	case "ipvs":
		return ipvsJobs(o)
	case "ebpf":
		return ebpfJobs(o)
	case "failover":
		return failoverJobs(o)
	}
	return traceJobs(o)
}

// iptablesJobs measure with one of the back ends of iptables.
func iptablesJobs(o options, benchmark string, changes int) (jobs []job) {
	if !o.api {
		return nil
	}
	starts := 3
	if o.quick {
		starts, changes = 2, 30
	}
	for _, size := range o.few {
		jobs = append(jobs, apiJobs(o, benchmark, size, starts, changes)...)
	}
	return jobs
}

func nftablesJobs(o options) []job {
	pure, kernel := "100|10000|100000", "1000|10000|100000"
	rounds, times := 3, 2000
	if o.quick {
		pure, kernel = "100|10000", "1000|10000"
		rounds, times = 1, 500
	}
	var jobs []job
	if o.only == "" {
		jobs = []job{
			{pkg: inPolicy, pattern: "^BenchmarkEndpointChange$/^services=(" + pure + ")$", times: 5 * times,
				rounds: rounds},
			{pkg: inNftables, pattern: "^BenchmarkEndpointRender$/^services=(" + pure + ")$", times: times,
				rounds: rounds},
			{pkg: inNftables, pattern: "^BenchmarkEndpointIntoKernel$/^services=(" + kernel + ")$", times: times,
				rounds: rounds},
		}
	}
	if !o.api {
		return jobs
	}
	starts, changes := 5, 500
	if o.quick {
		starts, changes = 2, 50
	}
	for _, size := range o.sizes {
		jobs = append(jobs, apiJobs(o, "APIServer", size, starts, changes)...)
	}
	if o.only == "" {
		jobs = append(jobs, conntrackJob(o))
	}
	return jobs
}

// conntrackJob measures changes beside conntrack tables of two lengths in one run.
func conntrackJob(o options) job {
	services, changes := 2000, 1000
	if o.quick {
		services, changes = 200, 50
	}
	return job{dir: "test/e2e", pkg: inMeasure, pattern: "^BenchmarkConntrack$", times: changes, rounds: 1,
		args: []string{"-services", fmt.Sprint(services)}}
}

// apiJobs are two, because a start takes a hundred times as long as a change.
func apiJobs(o options, name string, services, starts, changes int) (jobs []job) {
	args := []string{"-services", fmt.Sprint(services), "-keep"}
	pattern := "^Benchmark" + name + "$/^services=/"
	if o.only == "" || o.only == "start" {
		jobs = append(jobs, job{dir: "test/e2e", pkg: inMeasure, pattern: pattern + "^start$", times: starts, rounds: 1,
			args: args})
	}
	rest := "(change|new|connect)"
	if o.only != "" {
		rest = o.only
	}
	if rest != "start" {
		jobs = append(jobs, job{dir: "test/e2e", pkg: inMeasure, pattern: pattern + "^" + rest + "$", times: changes,
			rounds: 1, args: args})
	}
	return jobs
}

// selected are the jobs whose command matches -job.
func selected(o options) []job {
	return slices.DeleteFunc(plan(o), func(j job) bool { return !o.job.MatchString(j.command()) })
}

// measure runs the jobs, and passes each outcome to done. A job that fails does not keep the others
// from running. Those for which the time of -for does not suffice are skipped.
func measure(ctx context.Context, root string, o options, progress io.Writer, done func(job, outcome, figures) error,
) error {
	jobs := selected(o)
	if len(jobs) == 0 {
		return errors.New("no command matches -job")
	}
	if slices.ContainsFunc(jobs, func(j job) bool { return j.dir != "" }) && os.Getenv("KUBE_PROXY") == "" {
		cmd := command(ctx, root, "make", "build")
		cmd.Stdout, cmd.Stderr = progress, progress
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("make build: %w", err)
		}
	}
	found := make([]figures, len(jobs))
	begin := time.Now()
	var failed []error
	for round, most := 0, 1; round < most; round++ {
		for i, j := range jobs {
			most = max(most, j.rounds)
			if round >= j.rounds {
				continue
			}
			if o.budget > 0 && time.Since(begin) > o.budget {
				fmt.Fprintf(progress, "no time left: %s\n", j.command())
				continue
			}
			if found[i] == nil {
				found[i] = figures{}
			}
			result := outcome{Command: j.command(), LoadBefore: loadAverage()}
			fmt.Fprintf(progress, "%5.0f s, load %.2f: round %d of %d: %s\n", time.Since(begin).Seconds(),
				result.LoadBefore, round+1, j.rounds, result.Command)
			began := time.Now()
			err := j.run(ctx, root, found[i], progress)
			if ctx.Err() != nil {
				return errors.Join(append(failed, ctx.Err())...)
			}
			result.Seconds, result.LoadAfter = math.Round(time.Since(began).Seconds()), loadAverage()
			if err != nil {
				result.Error = err.Error()
				failed = append(failed, fmt.Errorf("%s: %w", result.Command, err))
				fmt.Fprintf(progress, "failed: %v\n", err)
			}
			if err := done(j, result, found[i]); err != nil {
				return errors.Join(append(failed, err)...)
			}
		}
	}
	return errors.Join(failed...)
}

// run runs the job once and adds its results to f. A job without results is an error: its benchmark
// has another name now.
func (j job) run(ctx context.Context, root string, f figures, progress io.Writer) error {
	args := j.goArgs()
	for i := range args { // as a shell does
		args[i] = strings.Replace(args[i], "$PWD", root, 1)
	}
	cmd := command(ctx, filepath.Join(root, j.dir), "go", args...)
	cmd.Stderr = progress
	cmd.Env = cmd.Environ()
	if j.peer != "" {
		cmd.Env = append(cmd.Env, "PEER="+j.peer)
	}
	if j.dir != "" && os.Getenv("KUBE_PROXY") == "" {
		cmd.Env = append(cmd.Env, "KUBE_PROXY="+filepath.Join(root, "bin", "kube-proxy"))
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := 0
	in := bufio.NewScanner(out)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		l, ok := parseLine(in.Text())
		if ok {
			lines++
			f.add(j.pkg, l)
		}
		fmt.Fprintf(progress, "        %s\n", in.Text())
	}
	if err := errors.Join(in.Err(), cmd.Wait()); err != nil {
		return err
	}
	if lines == 0 {
		return errors.New("no benchmark was run")
	}
	return ctx.Err()
}

// command is a child that is interrupted, and some time later killed, when ctx ends.
func command(ctx context.Context, dir, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
	return cmd
}
