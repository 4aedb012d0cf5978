package main

import (
	"maps"
	"slices"
	"testing"
)

func TestParseLine(t *testing.T) {
	for text, want := range map[string]*line{
		"BenchmarkEndpointChange/services=100-2         	    2000	     18842 " +
			"ns/op	         2.000 rows/op	    1848 " +
			"B/op	      20 allocs/op": {
			"EndpointChange/services=100", map[string]float64{"ns/op": 18842, "rows/op": 2, "B/op": 1848,
				"allocs/op": 20}},
		"BenchmarkAPIServer/services=5000/new-16 300 28758105 ns/op 1.400 cpu-ms/op 0.5e-3 p50-ms": {
			"APIServer/services=5000/new", map[string]float64{"ns/op": 28758105, "cpu-ms/op": 1.4, "p50-ms": 0.0005}},
		"BenchmarkOneProcessor 1 5 ns/op": {"OneProcessor", map[string]float64{"ns/op": 5}},
		"BenchmarkEndpointChange":         nil,
		"BenchmarkX-2 10 12 ns/op 3":      nil,
		"BenchmarkX-2 often 12 ns/op":     nil,
		"BenchmarkX-2 10 quickly ns/op":   nil,
		"ok  	kube-proxy/policy	67.214s":  nil,
		"--- BENCH: BenchmarkX-2":         nil,
		"":                                nil,
		"    bench_test.go:95: slow: new service new-000069: 127.467ms, its": nil,
	} {
		got, ok := parseLine(text)
		if ok != (want != nil) {
			t.Errorf("%q: taken: %v", text, ok)
		} else if ok && (got.name != want.name || !maps.Equal(got.values, want.values)) {
			t.Errorf("%q: %v, want %v", text, got, *want)
		}
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
	}{{[]float64{3}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 2, 9}, 3}} {
		before := slices.Clone(c.in)
		if got := median(c.in); got != c.want || !slices.Equal(before, c.in) {
			t.Errorf("median of %v: %v, want %v; afterwards %v", before, got, c.want, c.in)
		}
	}
}
