// Command conformance runs upstream's end-to-end tests of the network against the proxy on three
// nodes (test/e2e/conformance). `make conformance` starts it.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"kube-proxy/test/e2e/conformance"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	mode := flag.String("mode", "ebpf", "mode of the proxy")
	network := flag.String("network", "ptp", "of the pods: bridge, flannel, kube-router or ptp")
	addresses := flag.String("nodeport-addresses", "primary,localhost",
		"nodePortAddresses of the proxy's configuration; empty for its default")
	focus := flag.String("focus", `\[sig-network\]`, "regular expression of the names of tests to run")
	skip := flag.String("skip", "",
		"regular expression of the names of tests to leave out, besides those that cannot run here")
	procs := flag.Int("procs", 4, "tests that run side by side")
	timeout := flag.Duration("timeout", 2*time.Hour, "limit of the run")
	dir := flag.String("o", "", "folder for the log and the report (default bin/conformance-MODE)")
	flag.Parse()
	*dir, err = filepath.Abs(cmp.Or(*dir, "bin/conformance-"+*mode))
	if err != nil {
		return err
	}
	start := time.Now()
	logf := func(format string, args ...any) {
		fmt.Printf("%6.1fs %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
	o := conformance.Options{Mode: *mode, Network: *network, Logf: logf}
	if *addresses != "" {
		o.NodePortAddresses = strings.Split(*addresses, ",")
	}
	cluster, err := conformance.Start(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Close()) }()
	results, err := cluster.Run(ctx, conformance.Suite{Focus: *focus, Skip: *skip, Procs: *procs, Timeout: *timeout,
		Dir: *dir})
	if err != nil {
		return err
	}
	return report(*mode, results, filepath.Join(*dir, "results.txt"))
}

// report prints the results, and writes a line for each test into a file.
func report(mode string, results []conformance.Result, file string) error {
	var lines strings.Builder
	ran, passed := 0, 0
	for _, r := range results {
		if !r.Ran() {
			continue
		}
		ran++
		fmt.Fprintf(&lines, "%s\t%.0fs\t%s\n", r.State, r.Took.Seconds(), r.Name)
		if r.State == "passed" {
			passed++
			continue
		}
		first, _, _ := strings.Cut(strings.TrimSpace(r.Message), "\n")
		fmt.Printf("%s: %s\n    %s\n", r.State, r.Name, first)
	}
	for _, u := range conformance.Unfit {
		fmt.Printf("not run: %s: %s\n", u.Name, u.Reason)
	}
	fmt.Printf("mode %s: %d of %d tests passed; %s has them by name\n", mode, passed, ran, file)
	if err := os.WriteFile(file, []byte(lines.String()), 0o644); err != nil {
		return err
	}
	if ran == 0 {
		return errors.New("no test was run")
	}
	if passed < ran {
		return fmt.Errorf("%d tests failed", ran-passed)
	}
	return nil
}
