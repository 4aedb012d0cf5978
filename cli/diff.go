package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"kube-proxy/debug/inspect"
	"kube-proxy/internal/plural"
	"kube-proxy/lb"
)

// diffQuery is "kube-proxy diff".
func diffQuery() queryCommand {
	return queryCommand{
		name: "diff", most: 0,
		short: "differences between the kernel and the table",
		about: "Compares the kernel with the desired table and lists the differences: changes by other programs, " +
			"and writes that the kernel refused. Each difference is checked twice: a write in progress looks like one.",
		ask: func(ctx context.Context, q *queries, _ []string) error {
			d, err := get(ctx, q, "diff", nil, func(d *inspect.Diff) {
				q.head(d.Node)
				most := maxDiffers
				if q.format == "wide" {
					most = len(d.Differences)
				}
				diffText(q.out, d, most)
			})
			switch {
			case err != nil:
				return err
			case len(d.Differences) > 0 || len(d.Others) > 0:
				return exitCode(ExitFound)
			case d.Frontends == 0 && len(d.Notes) > 0:
				return exitCode(ExitNotAsked)
			}
			return nil
		},
	}
}

// maxDiffers is how many differences people are shown, without -o wide.
const maxDiffers = 50

func diffText(out io.Writer, d *inspect.Diff, most int) {
	shown := d.Differences[:min(len(d.Differences), most)]
	for _, x := range shown {
		about := strings.TrimSpace(x.Service + "  " + x.Key + "  " + x.Object)
		fmt.Fprintf(out, "%s  %s\n", lb.Printable(x.Family), lb.Printable(about))
		for _, side := range []struct{ word, text string }{{"desired", x.Desired}, {"actual", x.Actual}} {
			text := cmp.Or(side.text, "nothing")
			for n, line := range strings.Split(text, "\n") {
				word := side.word
				if n > 0 {
					word = ""
				}
				fmt.Fprintf(out, "  %-7s  %s\n", word, lb.Printable(line))
			}
		}
	}
	if more := len(d.Differences) - len(shown) + d.More; more > 0 {
		fmt.Fprintf(out, "and %d more\n", more)
	}
	switch n := len(d.Differences) + d.More; {
	case n > 0:
		fmt.Fprintf(out, "\n%s; %s compared\n", plural.Count(n, "difference", "differences"),
			plural.Count(d.Frontends, "frontend", "frontends"))
	case d.Frontends > 0 || len(d.Notes) == 0:
		fmt.Fprintf(out, "no difference; %s compared\n", plural.Count(d.Frontends, "frontend", "frontends"))
	}
	for _, f := range d.Others {
		fmt.Fprintf(out, "%s: rules of other programs: %s\n  %s\n", lb.Printable(string(f.Severity)),
			lb.Printable(f.Text), lb.Printable(f.Next))
	}
	for _, n := range d.Notes {
		fmt.Fprintf(out, "note: %s\n", lb.Printable(n))
	}
}

// eventsQuery is "kube-proxy events".
func eventsQuery() queryCommand {
	return queryCommand{
		name: "events", args: "[SERVICE]", most: 1, takes: oneService,
		short: "recent changes and their latency",
		about: "Prints the changes of the last minutes, oldest first: the object, when the change took effect on " +
			"this node, and how long after this proxy received it; with -o wide also how long after the API server " +
			"had it, and the number of frontends.",
		more:  "\n  kube-proxy events shop/web --watch\n",
		merge: mergeEvents,
		ask: func(ctx context.Context, q *queries, args []string) error {
			_, err := q.events(ctx, args, nil)
			return err
		},
		watch: func(ctx context.Context, q *queries, args []string) error {
			reported, err := q.events(ctx, args, nil)
			for err == nil && ctx.Err() == nil {
				reported, err = q.events(ctx, args, reported)
			}
			return err
		},
	}
}

// eventsWait is how long a question for changes waits for some.
const eventsWait = 30 * time.Second

// events prints the changes after the last printed one, nil for none yet, and returns the new last
// one.
func (q *queries) events(ctx context.Context, args []string, last *inspect.Changes) (*inspect.Changes, error) {
	params := url.Values{}
	if len(args) > 0 {
		params.Set("service", args[0])
	}
	if last != nil {
		params.Set("after", strconv.FormatUint(last.Newest, 10))
		params.Set("wait", eventsWait.String())
		if last.Service != "" {
			params.Set("service", last.Service)
		}
	}
	var raw json.RawMessage
	if err := q.client.Get(ctx, "events", params, &raw); err != nil {
		return nil, err
	}
	all, err := decode[inspect.Changes](raw)
	if err != nil || last != nil && len(all.Changes) == 0 {
		return all, err
	}
	if done, err := q.program(raw); done {
		return all, err
	}
	if last == nil {
		q.head(all.Node)
	}
	if last == nil && all.Gone > 0 {
		fmt.Fprintf(q.out, "%s no longer available\n", plural.Count(all.Gone, "older change is", "older changes are"))
	}
	q.eventsText(all.Changes, last == nil)
	return all, nil
}

func (q *queries) eventsText(changes []inspect.Change, head bool) {
	wide := q.format == "wide"
	var lines [][]string
	switch {
	case head && wide:
		lines = append(lines, []string{"IN FORCE", "OBJECT", "FAMILY", "FRONTENDS", "SINCE API", "SINCE LEARNED",
			"WHAT"})
	case head:
		lines = append(lines, []string{"IN FORCE", "OBJECT", "FAMILY", "AFTER", "WHAT"})
	}
	for _, c := range changes {
		at := "-"
		if c.Done != nil {
			at = c.Done.Format("15:04:05.000")
			if wide {
				at = c.Done.Format(time.RFC3339Nano)
			}
		}
		line := []string{at, c.Object, orDash(c.Family), took(c.SinceLearned), c.What}
		if wide {
			line = []string{at, c.Object, orDash(c.Family), strconv.Itoa(c.Frontends), took(c.SinceAPI),
				took(c.SinceLearned), c.What}
		}
		lines = append(lines, line)
	}
	if len(changes) == 0 && head {
		fmt.Fprintln(q.out, "nothing has changed")
		return
	}
	columns(q.out, lines, wide)
}

// took formats a time in milliseconds, if known.
func took(ms *float64) string {
	if ms == nil {
		return "-"
	}
	if *ms >= 10_000 {
		return fmt.Sprintf("%.0fs", *ms/1000)
	}
	return fmt.Sprintf("%.1fms", *ms)
}

// topQuery is "kube-proxy top".
func topQuery() queryCommand {
	return queryCommand{
		name:  "top",
		short: "Services by connections per second",
		about: "Prints the Services with the most new connections in one second; with --watch every second, with " +
			"totals since the command started. -o wide lists addresses separately. Connections are counted only " +
			"while the command runs. It reports if the kernel lost some.",
		merge: mergeTops,
		ask:   func(ctx context.Context, q *queries, _ []string) error { return q.top(ctx, false) },
		watch: func(ctx context.Context, q *queries, _ []string) error { return q.top(ctx, true) },
	}
}

func (q *queries) top(ctx context.Context, again bool) error {
	var failed error
	q.repeats = again
	err := q.client.Each(ctx, "top", nil, func(raw json.RawMessage) bool {
		_, failed = show(q, raw, func(t *inspect.Top) {
			q.head(t.Node)
			q.topText(t)
		})
		return failed == nil && again
	})
	return errors.Join(err, failed)
}

// maxTop is how many lines people are shown.
const maxTop = 40

func (q *queries) topText(t *inspect.Top) {
	lines := [][]string{{"SERVICE", "PER SECOND", "TOTAL"}}
	of := t.Services
	if q.format == "wide" {
		lines[0], of = []string{"SERVICE", "ADDRESS", "FAMILY", "PER SECOND", "TOTAL"}, t.Frontends
	}
	least := ""
	if t.AtLeast {
		least = "at least "
	}
	for _, s := range of[:min(len(of), maxTop)] {
		line := []string{s.Service}
		if q.format == "wide" {
			line = append(line, s.Key, s.Family)
		}
		lines = append(lines, append(line, fmt.Sprintf("%s%.1f", least, s.PerSecond), strconv.FormatUint(s.Total, 10)))
	}
	if len(of) == 0 {
		fmt.Fprintf(q.out, "no new connections to Services in %.0f s\n", t.Span)
	} else {
		columns(q.out, lines, q.format == "wide")
	}
	if more := len(of) - maxTop; more > 0 {
		fmt.Fprintf(q.out, "and %d more\n", more)
	}
	if t.Missed > 0 {
		fmt.Fprintf(q.out, "note: %s could not be counted\n", plural.Count(t.Missed, "connection", "connections"))
	}
}
