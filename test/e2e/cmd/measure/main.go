// Command measure prints how fast kube-proxy follows a real API server, see package measure. Run it in test/e2e as root:
//
//	go run ./cmd/measure [-mode iptables] -services 5000 -endpoints 10 -changes 100 [-keep] [-stand-in] [-json]
//
// Progress goes to standard error.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"kube-proxy/test/e2e/measure"
	"kube-proxy/test/e2e/testbed"
)

func main() {
	mode := flag.String("mode", "nftables", "nftables, iptables or iptables-legacy")
	services := flag.Int("services", 5000, "load services in the cluster")
	endpoints := flag.Int("endpoints", 10, "endpoints of each load service")
	changes := flag.Int("changes", 100, "how many changes and how many new services to time")
	keep := flag.Bool("keep", false, "keep the filled etcd in bin/ and use it the next time; filling takes 5 s per 1,000 services")
	standIn := flag.Bool("stand-in", false, "instead of etcd and a real API server, one that is quickly filled")
	asJSON := flag.Bool("json", false, "print JSON, times in nanoseconds, instead of text")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	start := time.Now()
	m, err := testbed.ParseMode(*mode)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	result, err := measure.Run(ctx, measure.Config{
		Mode: m, Services: *services, Endpoints: *endpoints, Changes: *changes, Keep: *keep, StandIn: *standIn,
		Logf: func(format string, args ...any) {
			fmt.Fprintf(os.Stderr, "%6.1fs %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
		},
	})
	if err == nil {
		err = write(result, *asJSON)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func write(r *measure.Result, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(os.Stdout).Encode(r)
	}
	ms := func(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond)) }
	row := func(name string, t measure.Times) string {
		return fmt.Sprintf("%-52s p50 %s, p99 %s, longest %s\n", name, ms(t.P50), ms(t.P99), ms(t.Max))
	}
	_, err := fmt.Printf("%d services with %d endpoints each, %d changes\n%s%s%s%-52s %s\n%-52s %s\n%-52s %s\n%-52s %s\n%-52s %.1f MiB\n%-52s %s to %s\n",
		r.Services, r.Endpoints, r.Changes,
		row("API write alone", r.Write),
		row("API write → a connection reaches the new endpoint", r.Change),
		row("API write of a service and its slice → it answers", r.New),
		"start → the last service answers", ms(r.Start),
		"restart on existing rules → a change is in", ms(r.Restart),
		"processor time per change", ms(r.CPUPerChange),
		"processor time of the start", ms(r.CPUOfStart),
		"peak memory", float64(r.PeakMemory)/(1<<20),
		"connection set-up, the fastest and the slowest service", r.FirstConnect.Round(100*time.Nanosecond), r.LastConnect.Round(100*time.Nanosecond))
	return err
}
