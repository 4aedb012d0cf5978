// Command bench measures the speed of this proxy, and of an upstream kube-proxy beside it, and
// prints tables: the measurement, our goal, our value now.
//
//	make bench PEER=/path/to/kube-proxy         everything, for hours; root, because it works in network namespaces
//	make bench ARGS=-quick                      a few minutes with small clusters: does everything still measure?
//	make bench PEER=... ARGS='-mode compare'    both programs in each mode, at 5,000, 20,000 and 100,000 Services
//	make bench ARGS='-mode iptables -only new'  one row
//	make bench ARGS='-mode userspace'           what goes through the proxy against what goes straight
//	make bench ARGS='-mode ipvs'                what changes ask of the kernel, counted in a VM
//	make bench ARGS='-mode ebpf'                sockets that programs connect against a direct connection, and changes
//	make bench ARGS='-mode failover'            connections while a node is cut off
//	make bench ARGS='-mode trace'               the command trace against a proxy with 10,000 Services
//	make bench ARGS='-for 25m -job Peer'        commands that have Peer in them, as many as begin within 25 minutes
//
// It writes docs/performance.json after each command, and from it the tables in docs/performance.md
// and README.md. A command that fails is noted there; the others run. A later run of the same
// commit on the same machine adds to the file; of another it replaces the parts of its modes. With
// -quick and -only it writes nothing.
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
//	                 BenchmarkConntrack           … beside 0 and 500,000 conntrack entries
//	                 BenchmarkStandIn             … in each mode, with a stand-in that can be filled quickly
//	                 BenchmarkTenant              … while a tenant of another namespace rewrites its Services
//	                 BenchmarkPeer…               … the same with the program that PEER names
//	cmd/kube-proxy   BenchmarkUserspace           the real binary in the lab, through the proxy and directly by turns
//	                 BenchmarkUserspaceChange     one endpoint, as the engine passes it to the plane
//	                 BenchmarkFailover            a node is cut off under load, with failover, without, and upstream
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
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
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
	quick  bool
	api    bool
	sizes  []int    // in nftables mode
	few    []int    // in iptables mode
	modes  []string // of the list modes
	only   string   // operation; "" is all
	job    *regexp.Regexp
	budget time.Duration // 0 is no limit
	peer   string        // path of another kube-proxy
	write  bool
}

// modes are what can be measured.
var modes = []string{"compare", "nftables", "iptables", "iptables-legacy", "userspace", "ipvs", "ebpf", "failover",
	"trace"}

// operations lists the measurements with an API server.
var operations = []string{"start", "change", "new", "connect"}

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.BoolVar(&o.quick, "quick", false, "small clusters and few repetitions: says that all can be measured, and "+
		"little about speed")
	flags.BoolVar(&o.api, "api", true, "measure with an API server too")
	size := flags.String("size", "", "numbers of services at the API server, separated by commas; otherwise 5000 "+
		"and, in nftables mode, 10000")
	mode := flags.String("mode", strings.Join(modes, ","), "modes, compare for both programs, and trace for the "+
		"command of that name, separated by commas")
	flags.StringVar(&o.only, "only", "", "one of start, change, new, connect; nothing without an API server is "+
		"measured then")
	job := flags.String("job", "", "run only commands that match this regular `EXPRESSION`")
	flags.DurationVar(&o.budget, "for", 0, "begin no command after this time")
	flags.BoolVar(&o.write, "write", true, "write "+resultsFile+" and the tables of documents")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("%q: there are no arguments but flags", flags.Args())
	}
	if o.sizes, err = parseSizes(*size); err != nil {
		return o, err
	}
	if o.job, err = regexp.Compile(*job); err != nil {
		return o, fmt.Errorf("-job %s: %w", *job, err)
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
	o.write = o.write && !o.quick && o.only == ""
	if o.peer = os.Getenv("PEER"); o.peer != "" {
		if o.peer, err = filepath.Abs(o.peer); err != nil {
			return o, fmt.Errorf("PEER=%s: %w", os.Getenv("PEER"), err)
		}
		if _, err := os.Stat(o.peer); err != nil {
			return o, fmt.Errorf("PEER: %w", err)
		}
	}
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
	r := results{}
	if o.write {
		if r, err = readResults(root); err != nil {
			return err
		}
		if err := write(root, r); err != nil { // before all is measured
			return err
		}
	}
	peer := ""
	if o.peer != "" {
		if peer, err = version(ctx, o.peer); err != nil {
			return err
		}
	}
	begin := factsNow(ctx, root)
	fmt.Fprintln(os.Stderr, begin)
	failed := measure(ctx, root, o, os.Stderr, func(j job, result outcome, f figures) error {
		of := ""
		if j.peer != "" {
			of = peer
		}
		r.add(j.mode, begin, of, result, f)
		if !o.write {
			return nil
		}
		return write(root, r)
	})
	for _, mode := range modes {
		if p := r[mode]; p != nil && slices.Contains(o.modes, mode) {
			fmt.Printf("\n%s\n%s", mode, text(mode, p))
		}
	}
	if o.quick {
		fmt.Println("\nWith -quick the figures come from few repetitions.")
	}
	return failed
}

// version returns what a kube-proxy says of itself, such as "Kubernetes v1.37.2".
func version(ctx context.Context, program string) (string, error) {
	out, err := command(ctx, "", program, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", program, err)
	}
	return strings.TrimSpace(string(out)), nil
}
