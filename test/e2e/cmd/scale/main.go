// Command scale prints the cost of many nodes for one API server, see package scale, as the tables
// of docs/scale.md. Run it in test/e2e as root:
//
//	go run ./cmd/scale [-nodes 10,50,100 -changes 500] [-storms restart,etcd -storm-nodes 100] [-rollout 5000]
//
// PEER names an upstream kube-proxy to measure in the rollout too. Progress goes to standard error.
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
	"time"

	"kube-proxy/test/e2e/scale"
	"kube-proxy/test/e2e/testbed"
)

// settings are the command line.
type settings struct {
	nodes      []int
	changes    int
	storms     []string
	stormNodes int
	endpoints  int
}

// rate is the time between two changes, and outage how long etcd is away or the network divided in
// a storm; the API server is away a sixth of that.
const (
	rate   = 50 * time.Millisecond
	outage = time.Minute
)

func main() {
	var s settings
	nodes := flag.String("nodes", "0,10,50,100,250,500", "numbers of hollow nodes to measure costs with; \"\" for none")
	storms := flag.String("storms", "restart,etcd,partition,update,boot", "storms to pass over; \"\" for none")
	flag.IntVar(&s.changes, "changes", 500, "how many slices change for each figure")
	flag.IntVar(&s.stormNodes, "storm-nodes", 100, "hollow nodes of each kind in a storm")
	flag.IntVar(&s.endpoints, "rollout", 5000, "endpoints of a deployment that is replaced; 0 for none")
	flag.Parse()
	for field := range strings.SplitSeq(*nodes, ",") {
		n, err := strconv.Atoi(field)
		if err != nil && field != "" {
			fmt.Fprintf(os.Stderr, "scale: -nodes: %v\n", err)
			os.Exit(2)
		}
		if field != "" {
			s.nodes = append(s.nodes, n)
		}
	}
	s.storms = strings.FieldsFunc(*storms, func(r rune) bool { return r == ',' })
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, s); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings) error {
	start := time.Now()
	logf := func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "%6.1fs %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
	if len(s.nodes)+len(s.storms) > 0 {
		if err := hollow(ctx, s, logf); err != nil {
			return err
		}
	}
	if s.endpoints == 0 {
		return nil
	}
	head("proxy", "nodes", "connections", "lost", "a pod is in the kernel: p50", "p99", "out of it: p50", "p99",
		"last connection to a pod after its end")
	if err := roll(ctx, "ours", "", s.endpoints, logf); err != nil {
		return err
	}
	if peer := os.Getenv("PEER"); peer != "" {
		return roll(ctx, "upstream", peer, s.endpoints, logf)
	}
	return nil
}

// roll has a program pass through a rollout.
func roll(ctx context.Context, name, program string, endpoints int, logf func(string, ...any)) (err error) {
	options := testbed.Options{Binary: program, Logf: logf}
	if program != "" {
		options.Args = testbed.PeerArgs
	}
	bed, err := testbed.New(ctx, options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bed.Close()) }()
	result, err := scale.Roll(ctx, bed, scale.Rollout{
		Endpoints: endpoints, Over: 2 * time.Minute, Grace: 5 * time.Second, Rest: 10 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	for _, lost := range result.Lost[:min(10, len(result.Lost))] {
		logf("lost: %v", lost)
	}
	fmt.Printf("| %s | %d | %d | %d |", name, result.Nodes, result.Connections, len(result.Lost))
	for _, d := range []time.Duration{
		scale.Of(result.First, 50), scale.Of(result.First, 99), scale.Of(result.Last, 50), scale.Of(result.Last, 99),
		result.Late,
	} {
		fmt.Printf(" %.0f ms |", ms(d))
	}
	fmt.Println()
	return nil
}

// hollow runs the measurements with hollow nodes.
func hollow(ctx context.Context, s settings, logf func(string, ...any)) (err error) {
	bed, err := testbed.New(ctx, testbed.Options{Logf: logf})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bed.Close()) }()
	h, err := scale.New(ctx, bed, logf)
	if err != nil {
		return err
	}
	if err := costs(ctx, h, s); err != nil {
		return err
	}
	return pass(ctx, h, s)
}

// costs measures each population with each number of nodes, beside one real proxy, and fits lines.
func costs(ctx context.Context, h *scale.Harness, s settings) error {
	if len(s.nodes) == 0 {
		return nil
	}
	beside, err := h.Real(ctx, s.changes, rate)
	if err != nil {
		return err
	}
	fmt.Printf("The real kube-proxy, at its interface: %.0f bytes for its start, %.0f a change, %d KiB resident.\n\n",
		beside.ListBytes, beside.ChangeBytes, beside.Heap>>10)
	head("population", "nodes", "connections", "KiB at the start, a node", "bytes a change and node",
		"API server, ms a change", "etcd, ms a change", "KiB of memory, a node")
	lines := ""
	for _, client := range scale.Clients {
		var x, cpu, bytes []float64
		for _, n := range s.nodes {
			p, err := h.Population(ctx, client, n)
			if err != nil {
				return err
			}
			c, err := h.Costs(ctx, p, s.changes, rate)
			if err != nil {
				return err
			}
			fmt.Printf("| %s | %d | %d | %.0f | %.0f | %.2f | %.2f | %d |\n", client.Name, n, c.Connections,
				c.ListBytes/1024, c.ChangeBytes, ms(c.APIServer), ms(c.Etcd), c.Heap>>10)
			x, cpu = append(x, float64(n)), append(cpu, ms(c.APIServer))
			bytes = append(bytes, c.ChangeBytes*float64(n)/1024)
		}
		row, err := project(client.Name, x, cpu, bytes)
		if err != nil {
			return err
		}
		lines += row
	}
	fmt.Println()
	head("population", "figure", "line", "largest residual", "5,000 nodes", "15,000 nodes")
	fmt.Println(lines)
	return nil
}

// project prints the lines through the processor time and the bytes of a change.
func project(name string, x, cpu, bytes []float64) (rows string, err error) {
	for _, f := range []struct {
		what string
		y    []float64
	}{{"API server, ms a change", cpu}, {"KiB a change", bytes}} {
		line, err := scale.Fit(x, f.y)
		if err != nil {
			return "", err
		}
		small, e1 := line.At(5000)
		large, e2 := line.At(15000)
		worst := max(slices.Max(line.Residuals), -slices.Min(line.Residuals))
		rows += fmt.Sprintf("| %s | %s | %.2f + %.4f · nodes | ±%.2f | %.0f ± %.0f | %.0f ± %.0f |\n",
			name, f.what, line.A, line.B, worst, small, e1, large, e2)
	}
	return rows, nil
}

// pass has the storms pass over both populations at once.
func pass(ctx context.Context, h *scale.Harness, s settings) error {
	if len(s.storms) == 0 {
		return nil
	}
	var both []*scale.Population
	for _, client := range scale.Clients {
		p, err := h.Population(ctx, client, s.stormNodes)
		if err != nil {
			return err
		}
		p.Start(ctx)
		defer p.Stop()
		both = append(both, p)
	}
	head("storm", "population", "nodes", "requests received", "failed", "dials", "most received in a second",
		"in step: half", "all")
	for _, storm := range scale.Storms {
		if !slices.Contains(s.storms, storm.Name) {
			continue
		}
		away := outage
		if storm.Name == "restart" || storm.Name == "boot" {
			away /= 6
		}
		gusts, err := h.Run(ctx, storm, away, time.Minute, both)
		if err != nil {
			return err
		}
		for _, g := range gusts {
			fmt.Printf("| %s | %s | %d | %d | %d | %d | %d | %.1f s | %.1f s |\n", storm.Name, g.Population, g.Nodes,
				g.Received, g.Failed, g.Dials, g.Peak, g.Median.Seconds(), g.Longest.Seconds())
		}
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// head prints the head of a table.
func head(columns ...string) {
	fmt.Printf("| %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
}
