// Command bench measures how fast this proxy is, and prints one table: what was measured, what upstream took on the same kind
// of machine, what ours must reach, what it takes now.
//
//	make bench                                  some minutes; root, because it works in network namespaces
//	make bench ARGS=-quick                      a minute or two with small clusters, to see that everything still measures
//	make bench ARGS='-out docs/performance.md'  also write the page
//
// It measures nothing itself. It runs `go test -bench` where the code lives, and reads the lines that come out:
//
//	policy           BenchmarkEndpointChange      fold, view, resolve, replace
//	plane/nftables   BenchmarkEndpointRender      replace, netlink messages
//	                 BenchmarkEndpointIntoKernel  … and the transaction
//	test/e2e/measure BenchmarkAPIServer           the real binary with a real API server
//	                 BenchmarkStandIn             … with one that 100,000 services are quickly put into
//
// Nothing here is a test, and a limit that is missed does not make the program fail: a clock says little on a busy machine, so
// the load stands beside the figures. Growth is measured within one run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	quick bool
	api   bool
	huge  bool
	sizes []int
	out   string
}

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.BoolVar(&o.quick, "quick", false, "small clusters and few repetitions: says that all can be measured, and little about speed")
	flags.BoolVar(&o.api, "api", true, "measure with an API server too")
	flags.BoolVar(&o.huge, "100k", true, "100,000 services too, at a stand-in for the API server; not with -quick")
	size := flags.String("size", "5000,10000", "numbers of services at the API server, separated by commas")
	flags.StringVar(&o.out, "out", "", "also write the table into this `FILE`, as Markdown")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("%q: there are no arguments but flags", flags.Args())
	}
	given := false
	flags.Visit(func(f *flag.Flag) { given = given || f.Name == "size" })
	if o.quick && !given {
		*size = "500"
	}
	for field := range strings.SplitSeq(*size, ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n < 1 || n > 100_000 {
			return o, fmt.Errorf("-size %s: %q is not a number from 1 to 100000", *size, field)
		}
		o.sizes = append(o.sizes, n)
	}
	o.huge = o.huge && o.api && !o.quick
	slices.Sort(o.sizes)
	o.sizes = slices.Compact(o.sizes)
	return o, nil
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("the measurements work in network namespaces: run it as root")
	}
	begin := factsNow(ctx, root)
	fmt.Fprintln(os.Stderr, begin)
	jobs := plan(o)
	figures, err := measure(ctx, root, jobs, os.Stderr)
	if err != nil {
		return err
	}
	p := page{machine: begin, loadAfter: loadAverage(), jobs: jobs, rows: rows(figures), quick: o.quick}
	if _, err := fmt.Print("\n", p.text()); err != nil {
		return err
	}
	if o.out == "" {
		return nil
	}
	if err := os.WriteFile(o.out, []byte(p.markdown()), 0o644); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}
