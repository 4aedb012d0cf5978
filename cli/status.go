package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"kube-proxy/debug/inspect"
	"kube-proxy/internal/fold"
	"kube-proxy/internal/plural"
	"kube-proxy/lb"
)

// statusQuery is "kube-proxy status".
func statusQuery() queryCommand {
	return queryCommand{
		name:  "status",
		short: "the state of this node's proxy, and what needs attention",
		about: "Prints the mode, version and uptime; the frontends in force, pending, failing and in conflict; " +
			"repaired drift; conntrack usage; and the last change with its latency. A list of problems follows, the " +
			"worst first, each with the command to run next. With any problem the exit code is 2.",
		more:  "\n  kube-proxy status --watch\n",
		merge: mergeStatus,
		ask: func(ctx context.Context, q *queries, _ []string) error {
			s, err := get(ctx, q, "status", nil, func(s *inspect.Status) {
				q.head(s.Node)
				statusText(q.out, s, time.Now())
			})
			if err == nil && s.Severity.Bad() {
				return exitCode(ExitFound)
			}
			return err
		},
	}
}

func statusText(out io.Writer, s *inspect.Status, now time.Time) {
	var total inspect.FamilyStatus
	var rows []string
	for _, f := range s.Families {
		total.Frontends, total.Pending = total.Frontends+f.Frontends, total.Pending+f.Pending
		total.Contested += f.Contested
		total.Repaired, total.Audits = total.Repaired+f.Repaired, total.Audits+f.Audits
		total.Failing = append(total.Failing, f.Failing...)
		rows = append(rows, fmt.Sprintf("%s %d", f.Family, f.Frontends))
	}
	lines := [][]string{
		{"mode", modeText(s)},
		{"version", "kube-proxy " + s.Version + upText(s, now)},
		{"frontends", fmt.Sprintf("%d in force (%s), %d pending, %d failing, %d in conflict",
			max(0, total.Frontends-total.Pending-len(total.Failing)),
			strings.Join(rows, ", "), total.Pending, len(total.Failing), total.Contested)},
		{"services", fmt.Sprint(s.Services)},
	}
	if !s.Offline {
		lines = append(lines, []string{"drift", fmt.Sprintf("%s repaired in %s",
			plural.Count(total.Repaired, "object", "objects"), plural.Count(total.Audits, "audit", "audits"))})
	}
	if c := s.Conntrack; c != nil && c.Limit > 0 {
		lines = append(lines, []string{"conntrack", fmt.Sprintf("%d of %d entries (%.0f %%)",
			c.Entries, c.Limit, 100*float64(c.Entries)/float64(c.Limit))})
	}
	if text := socketsText(s.Families); text != "" {
		lines = append(lines, []string{"sockets", text})
	}
	if c := s.LastChange; c != nil {
		lines = append(lines, []string{"last change", changeText(c, now)})
	}
	columns(out, lines, false)
	findingsOf(out, s.Findings)
}

// socketsText is the state of the programs that connect sockets; "" without any.
func socketsText(families []inspect.FamilyStatus) string {
	var all []string
	for _, f := range families {
		s := f.Sockets
		if s == nil {
			continue
		}
		text := f.Family + " served by eBPF programs"
		if !s.Serving {
			text = f.Family + " not served by eBPF programs"
		}
		if s.TimeoutSeconds > 0 {
			text += fmt.Sprintf(" (heartbeat %s ago, timeout %s)", ageText(seconds(s.HeartbeatSeconds)),
				ageText(seconds(s.TimeoutSeconds)))
		}
		text += fmt.Sprintf(", %d sockets of at most %d, %d ended with their endpoint", s.Known, s.Limit, s.Ended)
		var passed []string
		for _, reason := range slices.Sorted(maps.Keys(s.Passed)) {
			passed = append(passed, fmt.Sprintf("%s %d", strings.ReplaceAll(reason, "_", " "), s.Passed[reason]))
		}
		if len(passed) > 0 {
			text += ", calls that took the rules: " + strings.Join(passed, ", ")
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func modeText(s *inspect.Status) string {
	switch {
	case s.Offline:
		return s.Mode + ", offline: computed from the objects alone"
	case s.Reason != "":
		return fmt.Sprintf("%s (configured: %s; %s)", s.Mode, orDash(s.Configured), s.Reason)
	}
	return s.Mode
}

func upText(s *inspect.Status, now time.Time) string {
	if s.Started == nil {
		return ""
	}
	return ", up " + ageText(now.Sub(*s.Started))
}

// ageText is a duration in its two largest units.
func ageText(d time.Duration) string {
	switch d = max(0, d); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}

func changeText(c *inspect.Change, now time.Time) string {
	s := c.Object + ": " + c.What
	if c.Done != nil {
		s += "; " + ageText(now.Sub(*c.Done)) + " ago"
	}
	if c.SinceLearned != nil {
		s += ", in force " + took(c.SinceLearned) + " after this proxy learned of it"
	}
	if c.SinceAPI != nil {
		s += ", " + took(c.SinceAPI) + " after the API had it"
	}
	return s
}

// findingsOf prints the problems.
func findingsOf(out io.Writer, all []inspect.Finding) {
	ink := inkFor(out)
	if len(all) == 0 {
		io.WriteString(out, "\n"+ink.of(string(inspect.Fine), "no problems")+"\n")
		return
	}
	fmt.Fprintf(out, "\n%s\n", plural.Count(len(all), "problem", "problems"))
	for _, f := range all {
		severity := fmt.Sprintf("%-7s", word(f.Severity))
		text := fold.Hang(severity+"  "+lb.Printable(f.About+": "+f.Text), fold.Width, 9)
		fmt.Fprintf(out, "%s%s\n         %s\n", ink.of(string(f.Severity), severity),
			strings.TrimPrefix(text, severity), lb.Printable(f.Next))
	}
}

// attentionText is the answer to why without a Service.
func attentionText(out io.Writer, a *inspect.Attention) {
	ink := inkFor(out)
	if a.Services == 0 {
		io.WriteString(out, ink.of(string(inspect.Fine), "no Service needs attention")+"\n")
		return
	}
	fmt.Fprintf(out, "%s attention\n", plural.Count(a.Services, "Service needs", "Services need"))
	for _, g := range a.Groups {
		for _, b := range g.First {
			severity := fmt.Sprintf("%-7s", word(b.Severity))
			about := b.Service + "  " + string(b.State)
			if strings.HasPrefix(b.Why, b.Service) {
				about = string(b.State)
			}
			text := fold.Hang(severity+"  "+lb.Printable(about+": "+b.Why), fold.Width, 9)
			io.WriteString(out, ink.of(string(b.Severity), severity)+strings.TrimPrefix(text, severity)+"\n")
		}
		if more := g.Count - len(g.First); more > 0 {
			fmt.Fprintf(out, "         and %d more in namespace %s: %s\n", more, lb.Printable(g.Namespace),
				word(g.State))
		}
	}
	if a.More > 0 {
		fmt.Fprintf(out, "and %s in further namespaces\n", plural.Count(a.More, "Service", "Services"))
	}
	fmt.Fprintf(out, "\nnext: kube-proxy why %s\n", lb.Printable(a.Groups[0].First[0].Service))
}
