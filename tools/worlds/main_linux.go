// Command worlds is the program of `make trace-worlds`: a random test of "kube-proxy trace" that
// shares no code with what answers.
//
//	seed, round ──▶ world: a cluster of network namespaces, Services, mutations, connections
//	                  │
//	                  ├─▶ kube-proxy trace -o json ──▶ what it says ─┐
//	                  └─▶ real packets ──────────────▶ what happens ─┴─▶ right, vague or wrong
//
// A mutation is something that other programs do to real nodes: rules of nftables and iptables,
// routes, policy rules, uplinks, sysctls, bridge ports, neighbours, IPsec. A vague answer says that
// it does not know. A wrong one claims what does not happen. Of a wrong answer, the program leaves
// out mutations while it stays wrong, and prints the rest with a command that repeats it.
//
// The exit code is 1 if an answer is wrong, if more than one in ten is vague, or if nothing was
// compared.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	_ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGTERM), 0, 0, 0)
	var o options
	flag.Uint64Var(&o.seed, "seed", 0, "seed of the worlds (default: that of the environment, or the time)")
	flag.Uint64Var(&o.rounds, "rounds", 20, "number of worlds")
	flag.Uint64Var(&o.first, "round", 0, "the first of them")
	flag.DurationVar(&o.limit, "for", 0, "begin no world after this time (0: no limit)")
	flag.StringVar(&o.program, "kube-proxy", "bin/kube-proxy", "the binary")
	flag.StringVar(&o.findings, "findings", "", "folder for a file of each cause of wrong answers")
	flag.IntVar(&o.query, "query", -1, "only this connection of a world")
	flag.BoolVar(&o.verbose, "v", false, "print each world")
	incidents := flag.Bool("incidents", false, "play the incidents that operators meet, and ask all commands")
	modes := flag.String("modes", "nftables,iptables,userspace,ebpf",
		"modes of the proxy; ipvs needs a kernel that has it")
	only := flag.String("only", "all", "only these mutations of a world: numbers with commas, none or all")
	flag.Parse()
	o.modes = strings.Split(*modes, ",")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	err := o.complete(*only)
	switch {
	case err != nil:
	case *incidents:
		err = playIncidents(ctx, os.Stdout, o)
	default:
		err = run(ctx, os.Stdout, o)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "worlds: %v\n", err)
		os.Exit(1)
	}
}

// options are the command line.
type options struct {
	seed, first, rounds uint64
	limit               time.Duration
	program, findings   string
	modes               []string
	query               int
	only                []int // nil: all mutations
	verbose             bool
}

// complete takes the seed of the environment, and finds the program.
func (o *options) complete(only string) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("needs root: it makes network namespaces and puts rules into them")
	}
	text := os.Getenv("KUBE_PROXY_SEED")
	if o.seed == 0 && text != "" {
		o.seed, err = strconv.ParseUint(text, 10, 64)
		if err != nil {
			return fmt.Errorf("KUBE_PROXY_SEED: %w", err)
		}
	}
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano())
	}
	o.program, err = filepath.Abs(o.program)
	if err == nil {
		_, err = os.Stat(o.program)
	}
	if err != nil {
		return fmt.Errorf("find the binary: %w (make build makes it)", err)
	}
	if only == "all" {
		return nil
	}
	o.only = []int{}
	for word := range strings.SplitSeq(only, ",") {
		if word == "none" {
			continue
		}
		n, err := strconv.Atoi(word)
		if err != nil {
			return fmt.Errorf("-only %s: want numbers with commas, none or all", only)
		}
		o.only = append(o.only, n)
	}
	return nil
}
