// Command bench measures the speed of this proxy, and prints one table: the measurement, upstream's
// value on the same kind of machine, our goal, our value now.
//
//	make bench                                  some minutes; root, because it works in network namespaces
//	make bench ARGS=-quick                      a few minutes with small clusters: does everything still measure?
//	make bench ARGS='-out docs/performance.md'  also write the page's parts of the modes measured
//	make bench ARGS='-mode iptables -only new'  one row
//	make bench ARGS='-mode userspace'           what goes through the proxy against what goes straight
//	make bench ARGS='-mode ipvs'                what changes ask of the kernel, counted in a VM
//	make bench ARGS='-mode ebpf'                sockets that programs connect against a direct connection, and changes
//	make bench ARGS='-mode failover'            connections while a node is cut off
//	make bench ARGS='-mode trace'               the command trace against a proxy with 10,000 Services
//	make bench PEER=/path/to/kube-proxy         measure an upstream kube-proxy in iptables mode too, beside ours
//
// It measures nothing itself. It runs `go test -bench` in the packages of the code, and reads the
// output:
//
//	policy           BenchmarkEndpointChange      fold, view, resolve, replace
//	plane/nftables   BenchmarkEndpointRender      replace, netlink messages
//	                 BenchmarkEndpointIntoKernel  … and the transaction
//	test/e2e/measure BenchmarkAPIServer           the real binary with a real API server
//	                 BenchmarkIPTables            … in iptables mode, with the nft back end
//	                 BenchmarkIPTablesLegacy      … and with the legacy one
//	                 BenchmarkPeer…               … the program that PEER names
//	                 BenchmarkConntrack           … beside 0 and 500,000 conntrack entries
//	                 BenchmarkStandIn             … with a stand-in that can be filled quickly with 100,000 services
//	cmd/kube-proxy   BenchmarkUserspace           the real binary in the lab, through the proxy and directly by turns
//	                 BenchmarkUserspaceChange     one endpoint, as the engine passes it to the plane
//	                 BenchmarkFailover            a node is cut off under load, with failover and without
//	                 BenchmarkAskTrace            the command trace
//	plane/ipvs       BenchmarkIPVS                first sync, one endpoint, connections; in a VM
//	plane/ebpf       BenchmarkSockets             sockets of a pod, direct and through a cluster IP by turns
//	                 BenchmarkTables              first sync, one endpoint
//
// Nothing here is a test, and a missed goal does not make the program fail: wall-clock time is
// unreliable on a busy machine, so the table includes the load. Growth is measured within one run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
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
	sizes []int    // in nftables mode
	few   []int    // in iptables mode
	modes []string // of the list modes
	only  string   // operation; "" is all
	peer  string   // path of another kube-proxy
	out   string
}

// modes are what can be measured.
var modes = []string{"nftables", "iptables", "iptables-legacy", "userspace", "ipvs", "ebpf", "failover", "trace"}

// operations lists the measurements with an API server.
var operations = []string{"start", "change", "new", "connect"}

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.BoolVar(&o.quick, "quick", false, "small clusters and few repetitions: says that all can be measured, and "+
		"little about speed")
	flags.BoolVar(&o.api, "api", true, "measure with an API server too")
	flags.BoolVar(&o.huge, "100k", true, "100,000 services too, at a stand-in for the API server; not with -quick")
	size := flags.String("size", "", "numbers of services at the API server, separated by commas; otherwise 5000 "+
		"and, in nftables mode, 10000")
	mode := flags.String("mode", strings.Join(modes, ","), "modes, and trace for the command of that name, separated "+
		"by commas")
	flags.StringVar(&o.only, "only", "", "one of start, change, new, connect; nothing without an API server is "+
		"measured then")
	flags.StringVar(&o.out, "out", "", "also write the tables into this `FILE`, docs/performance.md, which keeps "+
		"what else it has")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("%q: there are no arguments but flags", flags.Args())
	}
	if o.sizes, err = parseSizes(*size); err != nil {
		return o, err
	}
	o.few = o.sizes
	switch {
	case o.sizes != nil:
	case o.quick:
		o.sizes, o.few = []int{500}, []int{500}
	default:
		o.sizes, o.few = []int{5000, 10_000}, []int{5000}
	}
	o.modes = strings.Split(*mode, ",")
	for _, m := range o.modes {
		if !slices.Contains(modes, m) {
			return o, fmt.Errorf("-mode %s: %q is none of %s", *mode, m, strings.Join(modes, ", "))
		}
	}
	if o.only != "" && !slices.Contains(operations, o.only) {
		return o, fmt.Errorf("-only %s: want one of %s", o.only, strings.Join(operations, ", "))
	}
	if o.out != "" && o.only != "" {
		return o, fmt.Errorf("-out %s -only %s: the page would lose the other rows of its part: leave one of them out",
			o.out, o.only)
	}
	if o.peer = os.Getenv("PEER"); o.peer != "" {
		if o.peer, err = filepath.Abs(o.peer); err != nil {
			return o, fmt.Errorf("PEER=%s: %w", os.Getenv("PEER"), err)
		}
		if _, err := os.Stat(o.peer); err != nil {
			return o, fmt.Errorf("PEER: %w", err)
		}
	}
	o.huge = o.huge && o.api && !o.quick
	return o, nil
}

// parseSizes returns the numbers in ascending order, nil for "".
func parseSizes(text string) (sizes []int, err error) {
	if text == "" {
		return nil, nil
	}
	for field := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n < 1 || n > 100_000 {
			return nil, fmt.Errorf("-size %s: %q is not a number from 1 to 100000", text, field)
		}
		sizes = append(sizes, n)
	}
	slices.Sort(sizes)
	return slices.Compact(sizes), nil
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
	if o.out != "" { // before all is measured
		if _, err := fill(o, page{}); err != nil {
			return err
		}
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
	text, err := fill(o, p)
	if err != nil {
		return err
	}
	if err := os.WriteFile(o.out, []byte(text), 0o644); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

// fill returns the new page, with the results in their places.
func fill(o options, p page) (string, error) {
	before, err := os.ReadFile(o.out)
	if err != nil {
		return "", fmt.Errorf("-out: read the page, for what is written by hand in it: %w", err)
	}
	text, err := p.into(string(before), o.modes)
	if err != nil {
		return "", fmt.Errorf("-out %s: %w", o.out, err)
	}
	return text, nil
}
