package main

import (
	"slices"
	"strconv"
	"strings"
)

// line is the output of one benchmark: its name without "Benchmark" and the number of processors,
// such as "EndpointChange/services=100", and its values by unit.
type line struct {
	name   string
	values map[string]float64
}

// parseLine reads a line of the standard benchmark format; false if it is something else.
func parseLine(text string) (line, bool) {
	fields := strings.Fields(text)
	if len(fields) < 4 || len(fields)%2 != 0 {
		return line{}, false
	}
	name, ok := strings.CutPrefix(fields[0], "Benchmark")
	if !ok {
		return line{}, false
	}
	if _, err := strconv.Atoi(fields[1]); err != nil { // how often it ran
		return line{}, false
	}
	if i := strings.LastIndexByte(name, '-'); i >= 0 {
		if _, err := strconv.Atoi(name[i+1:]); err == nil {
			name = name[:i]
		}
	}
	l := line{name, map[string]float64{}}
	for i := 2; i < len(fields); i += 2 {
		v, err := strconv.ParseFloat(fields[i], 64)
		if err != nil {
			return line{}, false
		}
		l.values[fields[i+1]] = v
	}
	return l, true
}

// figures are all values that were measured, by package, benchmark and unit, one of each round.
type figures map[string][]float64

func figureKey(pkg, name, unit string) string { return pkg + " " + name + " " + unit }

func (f figures) add(pkg string, l line) {
	for unit, v := range l.values {
		k := figureKey(pkg, l.name, unit)
		f[k] = append(f[k], v)
	}
}

// get returns the values of all rounds; none if not measured.
func (f figures) get(pkg, name, unit string) []float64 { return f[figureKey(pkg, name, unit)] }

// median returns the median of all rounds, 0 if not measured.
func (f figures) median(pkg, name, unit string) float64 {
	if values := f.get(pkg, name, unit); len(values) > 0 {
		return median(values)
	}
	return 0
}

// sizes returns the measured sizes of a benchmark in ascending order: the numbers N of
// "name/services=N" followed by after.
func (f figures) sizes(pkg, name, after string) []int {
	seen := map[int]bool{}
	for k := range f {
		rest, ok := strings.CutPrefix(k, pkg+" "+name+"/services=")
		if !ok {
			continue
		}
		full, _, _ := strings.Cut(rest, " ")
		number, ok := strings.CutSuffix(full, after)
		if n, err := strconv.Atoi(number); ok && err == nil {
			seen[n] = true
		}
	}
	var sizes []int
	for n := range seen {
		sizes = append(sizes, n)
	}
	slices.Sort(sizes)
	return sizes
}

// least returns the smallest value. For pure computation it is the most exact: other work on the
// machine can only add to it. values must not be empty.
func least(values []float64) float64 { return slices.Min(values) }

// median is the middle value, of an even number the mean of the two in the middle. There must be
// one.
func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	n := len(s)
	return (s[(n-1)/2] + s[n/2]) / 2
}
