package measure

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kube-proxy/test/e2e/testbed"
)

var (
	sizes     = flag.String("services", "5000,10000", "numbers of load services to measure with, separated by commas")
	endpoints = flag.Int("endpoints", 10, "endpoints of each load service")
	beside    = flag.Int("beside", 0, "changes of other services a second while one is measured")
	keep      = flag.Bool("keep", false, "keep the filled etcd in bin/ and use it the next time")
	starts    = flag.Int("starts", 0, "how many starts are measured; 0: as -benchtime says")
	patience  = flag.Duration("patience", 20*time.Minute, "how long a Service may take to answer")
)

// BenchmarkAPIServer measures the real binary, or the one that KUBE_PROXY names, with a real API
// server that holds many services. One operation is
//
//	start    the start of the process on an empty kernel, until the last of 20 services among the load answers
//	restart  the same with the rules of the previous process, until a change made in between is in force
//	change   an update of an EndpointSlice, until a connection reaches the new endpoint
//	new      a new EndpointSlice and its Service, until that answers
//	connect  a connection from a pod through each of the 20 services
//
// Times begin just before the write to the API server; write-p50-ms is the part that its response
// took.
func BenchmarkAPIServer(b *testing.B) { benchmarkSizes(b, Config{}) }

// BenchmarkIPTables is BenchmarkAPIServer in iptables mode, with the nft back end.
func BenchmarkIPTables(b *testing.B) { benchmarkSizes(b, Config{Mode: testbed.IPTables}) }

// BenchmarkIPTablesLegacy is the same with the legacy back end.
func BenchmarkIPTablesLegacy(b *testing.B) { benchmarkSizes(b, Config{Mode: testbed.IPTablesLegacy}) }

// BenchmarkStandIn is BenchmarkAPIServer in each mode, with an API server that is not a real one,
// and answers at once.
func BenchmarkStandIn(b *testing.B) { benchmarkModes(b, benchmarkSizes, Config{StandIn: true}) }

// BenchmarkPeerStandIn is the same with the upstream program that PEER names.
func BenchmarkPeerStandIn(b *testing.B) {
	benchmarkModes(b, benchmarkSizes, Config{StandIn: true, Peer: peer(b)})
}

// BenchmarkTenant measures, in each mode, a change of a Service while a tenant of another namespace
// rewrites its own Services ([Session.Hostile]).
func BenchmarkTenant(b *testing.B) { benchmarkModes(b, benchmarkTenant, Config{StandIn: true}) }

// BenchmarkPeerTenant is the same with the upstream program that PEER names.
func BenchmarkPeerTenant(b *testing.B) {
	benchmarkModes(b, benchmarkTenant, Config{StandIn: true, Peer: peer(b)})
}

// BenchmarkConntrack measures, with a stand-in for the API server, what changes cost the processor
// beside an empty conntrack table of the node and beside one of 500,000 entries.
func BenchmarkConntrack(b *testing.B) {
	forSizes(b, func(b *testing.B, services int) {
		s := open(b, Config{StandIn: true, Services: services, Endpoints: *endpoints})
		for _, entries := range []int{0, 500_000} {
			check(b, s.FillConntrack(b.Context(), entries))
			b.Run(fmt.Sprintf("entries=%d", entries), func(b *testing.B) { benchmarkEach(b, s) })
		}
	})
}

// peer returns the upstream program, and skips the benchmark without one.
func peer(b *testing.B) string {
	program := os.Getenv("PEER")
	if program == "" {
		b.Skip("PEER does not name a kube-proxy")
	}
	return program
}

// benchmarkModes runs a benchmark in the modes that the program has.
func benchmarkModes(b *testing.B, run func(*testing.B, Config), config Config) {
	modes := []testbed.Mode{testbed.NFTables, testbed.IPTables}
	if config.Peer == "" {
		modes = append(modes, testbed.EBPF)
	}
	for _, config.Mode = range modes {
		b.Run(config.Mode.Name, func(b *testing.B) { run(b, config) })
	}
}

func benchmarkTenant(b *testing.B, config Config) {
	forSizes(b, func(b *testing.B, services int) {
		config.Services, config.Endpoints = services, *endpoints
		s := open(b, config)
		benchmarkStarted(b, s)
		stop := s.Hostile(b.Context())
		b.Run("change", func(b *testing.B) {
			benchmarkChanges(b, s, func() (Timing, error) { return s.Change(b.Context()) })
		})
		check(b, stop())
	})
}

func benchmarkSizes(b *testing.B, config Config) {
	forSizes(b, func(b *testing.B, services int) {
		config.Services, config.Endpoints, config.Keep = services, *endpoints, *keep
		benchmarkSize(b, config)
	})
}

func forSizes(b *testing.B, f func(b *testing.B, services int)) {
	for size := range strings.SplitSeq(*sizes, ",") {
		services, err := strconv.Atoi(size)
		if err != nil {
			b.Fatalf("-services=%s: %v", *sizes, err)
		}
		b.Run(fmt.Sprintf("services=%d", services), func(b *testing.B) { f(b, services) })
	}
}

// open opens a session that ends with the benchmark.
func open(b *testing.B, config Config) *Session {
	begin := time.Now()
	config.Patience = *patience
	config.Logf = func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "%6.1fs %s\n", time.Since(begin).Seconds(), fmt.Sprintf(format, args...))
	}
	s, err := Open(b.Context(), config)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	s.config.Logf = b.Logf
	return s
}

func benchmarkSize(b *testing.B, config Config) {
	s := open(b, config)
	b.Run("start", func(b *testing.B) {
		benchmarkStarts(b, s, func() (time.Duration, error) {
			b.StopTimer()
			check(b, s.Clean(b.Context()))
			b.StartTimer()
			return s.Start(b.Context())
		})
	})
	if s.late { // the other operations would wait as long
		return
	}
	b.Run("restart", func(b *testing.B) { // on the kernel's rules of the process before
		benchmarkStarted(b, s)
		benchmarkStarts(b, s, func() (time.Duration, error) { return s.Restart(b.Context()) })
	})
	benchmarkEach(b, s)
	b.Run("connect", func(b *testing.B) { benchmarkConnect(b, s) })
}

// benchmarkEach measures the operations that change one service.
func benchmarkEach(b *testing.B, s *Session) {
	b.Run("change", func(b *testing.B) {
		benchmarkChanges(b, s, func() (Timing, error) { return s.Change(b.Context()) })
	})
	b.Run("new", func(b *testing.B) { benchmarkChanges(b, s, func() (Timing, error) { return s.Create(b.Context()) }) })
}

// benchmarkStarts times starts, with their processor time and memory.
func benchmarkStarts(b *testing.B, s *Session, start func() (time.Duration, error)) {
	var took []time.Duration
	var cpu time.Duration
	var peak int64
	for b.Loop() {
		if *starts > 0 && len(took) >= *starts || s.late {
			continue
		}
		t, err := start()
		if s.late {
			b.Log(err) // with the end of the log, which may have the reason
			continue
		}
		check(b, err)
		used, err := s.proxy.CPUTime()
		check(b, err)
		size, err := s.proxy.PeakMemory()
		check(b, err)
		took, cpu, peak = append(took, t), cpu+used, max(peak, size)
	}
	if s.late {
		b.ReportMetric(milliseconds(s.config.Patience), "over-ms")
		return
	}
	report(b, "", took)
	b.ReportMetric(milliseconds(cpu)/float64(len(took)), "cpu-ms/op")
	b.ReportMetric(float64(peak)/(1<<20), "peak-MiB")
}

// benchmarkChanges times one change after the other, and the proxy's part in all of them.
func benchmarkChanges(b *testing.B, s *Session, change func() (Timing, error)) {
	benchmarkStarted(b, s)
	// The last service may answer a little before the process has ended its start.
	warm := 3
	if s.config.Peer != "" {
		warm = 1 // each may take seconds
	}
	for range warm {
		_, err := change()
		check(b, err)
	}
	var stop func() error
	if *beside > 0 {
		stop = s.Beside(b.Context(), *beside)
	}
	var write, took []time.Duration
	before, err := s.proxy.CPUTime()
	check(b, err)
	for b.Loop() {
		t, err := change()
		check(b, err)
		write, took = append(write, t.Write), append(took, t.Took)
		if t.Took > slow {
			b.Logf("slow: %v", t)
		}
	}
	if *beside > 0 {
		check(b, stop())
	}
	if s.standIn != nil && s.config.Peer == "" {
		own, err := s.OwnShares(b.Context())
		check(b, err)
		report(b, "own-", own[max(0, len(own)-len(took)):])
	}
	after, err := s.proxy.CPUTime()
	check(b, err)
	peak, err := s.proxy.PeakMemory()
	check(b, err)
	report(b, "", took)
	report(b, "write-", write)
	b.ReportMetric(milliseconds(after-before)/float64(len(took)), "cpu-ms/op")
	b.ReportMetric(float64(peak)/(1<<20), "peak-MiB")
}

// benchmarkStarted has a proxy run.
func benchmarkStarted(b *testing.B, s *Session) {
	if s.proxy != nil {
		return
	}
	check(b, s.Clean(b.Context()))
	_, err := s.Start(b.Context())
	check(b, err)
}

// benchmarkConnect makes 20 connections through each of the services an operation.
func benchmarkConnect(b *testing.B, s *Session) {
	benchmarkStarted(b, s)
	n := 0
	for b.Loop() {
		n++
	}
	u, err := s.ConnectTimes(b.Context(), 20*n)
	check(b, err)
	b.ReportMetric(float64(u.first)/1000, "first-us")
	b.ReportMetric(float64(u.last)/1000, "last-us")
	b.ReportMetric(float64(u.last)/float64(u.first), "ratio")
}

// report reports a distribution. The 99th percentile of few values is the largest.
func report(b *testing.B, prefix string, took []time.Duration) {
	took = slices.Sorted(slices.Values(took))
	for name, percent := range map[string]int{"p50": 50, "p99": 99, "max": 100} {
		b.ReportMetric(milliseconds(took[(len(took)*percent+99)/100-1]), prefix+name+"-ms")
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func check(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}
