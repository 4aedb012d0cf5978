package ui

import (
	"fmt"
	"math"
	"slices"
	"time"

	"kube-proxy/debug/inspect"
)

// change is a change as pages show it.
type change struct {
	inspect.Change
	At       time.Time     // when it came into force
	API, Own time.Duration // latency since the API had the change and since the proxy received it; negative if unknown
}

// changesOf returns the changes that keep wants, the newest first.
func changesOf(reported inspect.Changes, keep func(*inspect.Change) bool) []change {
	var all []change
	for k := range slices.Backward(reported.Changes) {
		c := &reported.Changes[k]
		if !keep(c) {
			continue
		}
		one := change{Change: *c, API: -1, Own: -1}
		if c.Done != nil {
			one.At = *c.Done
		}
		if c.SinceAPI != nil {
			one.API = time.Duration(*c.SinceAPI * float64(time.Millisecond))
		}
		if c.SinceLearned != nil {
			one.Own = time.Duration(*c.SinceLearned * float64(time.Millisecond))
		}
		all = append(all, one)
	}
	return all
}

// Measures of the plot, in its own units.
const (
	plotWidth, plotHeight   = 1200, 320
	plotLeft, plotRight     = 64, 40
	plotTop, plotBottom     = 16, 36
	plotPoints              = 600             // drawn at most, the newest
	plotLeast, plotMost     = 1e-4, 100.0     // seconds, ends of the logarithmic axis
	plotSpan                = 2 * time.Minute // shown at least
	plotInnerW, plotInnerH  = plotWidth - plotLeft - plotRight, plotHeight - plotTop - plotBottom
	plotDecades             = 6 // from plotLeast to plotMost
	timeMarks               = 5
	markFormat, secondsForm = "15:04", "15:04:05"
)

// decades are the labels of the logarithmic axis.
var decades = [plotDecades + 1]string{"0.1 ms", "1 ms", "10 ms", "100 ms", "1 s", "10 s", "100 s"}

// plot shows the latency of changes: a point for each, x is when it came into force.
type plot struct {
	Width, Height int
	Points        []point
	Across        []mark // lines of equal latency
	Times         []mark
	Left, Right   int
	Bottom        int
	Left2         int // right end of the labels of latencies
	API, Own      summary
	Failed        int
}

// point is a change in the plot. API means that the latency is measured from the API.
type point struct {
	X, Y   float64
	API    bool
	Failed bool
	Says   string
}

type mark struct {
	At   float64
	Says string
}

// summary is the plot in numbers.
type summary struct {
	N              int
	Half, Most, Of time.Duration // median, 99th percentile, maximum
}

// plotOf draws changes, which are sorted newest first.
func plotOf(all []change) plot {
	p := plot{Width: plotWidth, Height: plotHeight, Left: plotLeft, Left2: plotLeft - 8, Right: plotWidth - plotRight,
		Bottom: plotHeight - plotBottom}
	all = slices.DeleteFunc(slices.Clone(all), func(c change) bool { return c.At.IsZero() })
	all = all[:min(len(all), plotPoints)]
	for decade := range plotDecades + 1 {
		seconds := plotLeast * math.Pow(10, float64(decade))
		p.Across = append(p.Across, mark{height(seconds), decades[decade]})
	}
	if len(all) == 0 {
		return p
	}
	byTime := func(a, b change) int { return a.At.Compare(b.At) }
	newest, oldest := slices.MaxFunc(all, byTime).At, slices.MinFunc(all, byTime).At
	span := max(newest.Sub(oldest), plotSpan)
	x := func(t time.Time) float64 {
		return round(plotLeft + plotInnerW*(1-newest.Sub(t).Seconds()/span.Seconds()))
	}
	form := markFormat
	if span < 10*time.Minute {
		form = secondsForm
	}
	for k := range timeMarks + 1 {
		t := newest.Add(-span * time.Duration(timeMarks-k) / timeMarks)
		p.Times = append(p.Times, mark{x(t), t.Local().Format(form)})
	}
	var api, own []time.Duration
	for _, c := range all {
		if c.Error != "" {
			p.Failed++
		}
		for _, of := range []struct {
			took time.Duration
			api  bool
			all  *[]time.Duration
		}{{c.API, true, &api}, {c.Own, false, &own}} {
			if of.took < 0 {
				continue
			}
			*of.all = append(*of.all, of.took)
			p.Points = append(p.Points, point{x(c.At), height(of.took.Seconds()), of.api, c.Error != "",
				fmt.Sprintf("%s: %s", visible(c.Object), took(of.took))})
		}
	}
	p.API, p.Own = summarize(api), summarize(own)
	return p
}

// height returns the distance of a latency from the top of the plot.
func height(seconds float64) float64 {
	up := math.Log10(min(max(seconds, plotLeast), plotMost)/plotLeast) / plotDecades
	return round(plotTop + plotInnerH*(1-up))
}

func round(x float64) float64 { return math.Round(x*10) / 10 }

func summarize(all []time.Duration) summary {
	if len(all) == 0 {
		return summary{}
	}
	slices.Sort(all)
	return summary{len(all), all[len(all)/2], all[len(all)*99/100], all[len(all)-1]}
}
