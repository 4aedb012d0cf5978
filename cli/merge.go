package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"kube-proxy/debug/api"
	"kube-proxy/debug/inspect"
	"kube-proxy/internal/plural"
	"kube-proxy/lb"
)

// merge prints the answers of all nodes as one, missing ones first. Its error has the exit code.
func (p *plugin) merge(a queryCommand, answers []nodeAnswer, format string) error {
	var there, missing []nodeAnswer
	found := false
	for _, n := range answers {
		if n.err != nil {
			missing = append(missing, n)
			continue
		}
		there = append(there, n)
		found = found || n.code != 0
	}
	if err := refusedByAll(there, missing); err != nil {
		return err
	}
	var err error
	switch {
	case format == "json" || format == "yaml":
		err = answersForPrograms(p.out, answers, format)
	default:
		fmt.Fprintf(p.out, "%d of %s answered\n", len(there), plural.Count(len(answers), "node", "nodes"))
		missingText(p.out, missing)
		if a.merge != nil {
			err = a.merge(p.out, there, format == "wide")
		} else {
			sameTexts(p.out, there)
		}
	}
	switch {
	case err != nil:
		return err
	case len(there) == 0:
		return exitCode(ExitNotAsked)
	case found || len(missing) > 0:
		return exitCode(ExitFound)
	}
	return nil
}

// refusedByAll returns the error of a query that no proxy answers because the query is invalid; nil
// if nodes did not answer for another reason, or all answered.
func refusedByAll(there, missing []nodeAnswer) error {
	if len(there) > 0 {
		return nil
	}
	for _, n := range missing {
		p := (*inspect.Problem)(nil)
		if errors.As(n.err, &p) && p.Kind != inspect.Unavailable {
			return n.err
		}
	}
	return nil
}

// answersForPrograms prints all answers, for each node the proxy's answer or the reason why it is
// missing.
func answersForPrograms(out io.Writer, answers []nodeAnswer, format string) error {
	type node struct {
		Node   string          `json:"node"`
		Answer json.RawMessage `json:"answer,omitempty"`
		Error  string          `json:"error,omitempty"`
	}
	var all struct {
		Nodes []node `json:"nodes"`
	}
	for _, n := range answers {
		of := node{Node: n.node, Answer: n.text}
		if n.err != nil {
			of.Error = reason(n.err)
		}
		all.Nodes = append(all.Nodes, of)
	}
	text, err := json.Marshal(all)
	if err == nil {
		_, err = (&queries{out: out, format: format}).program(text)
	}
	return err
}

// reason is why a node has not answered, without the words that all such errors begin with.
func reason(err error) string {
	text := strings.TrimPrefix(reported(err).Error(), api.ErrNotAsked.Error()+": ")
	if at, why, found := strings.Cut(text, ": "); found && strings.HasPrefix(at, "pod ") {
		text = why
	}
	return text
}

// missingText lists the nodes that have not answered, by the reason.
func missingText(out io.Writer, missing []nodeAnswer) {
	for _, g := range grouped(missing, func(n nodeAnswer) string { return reason(n.err) }) {
		fmt.Fprintf(out, "no answer from %s: %s\n", nodesText(g.nodes), lb.Printable(g.key))
	}
}

// group are nodes with the same answer.
type group struct {
	key   string
	nodes []string
	code  int
}

// grouped groups answers by a key: groups with findings first, then those without an answer, and in
// each the smallest first, because an answer of few nodes matters most.
func grouped(answers []nodeAnswer, key func(nodeAnswer) string) []group {
	at := map[string]int{}
	var all []group
	for _, n := range answers {
		k := key(n)
		i, known := at[k]
		if !known {
			i, at[k] = len(all), len(all)
			all = append(all, group{key: k, code: n.code})
		}
		all[i].nodes = append(all[i].nodes, n.node)
	}
	urgency := func(g group) int { return slices.Index([]int{ExitNotAsked, ExitFound}, g.code) }
	slices.SortStableFunc(all, func(a, b group) int {
		return cmp.Or(cmp.Compare(urgency(b), urgency(a)), cmp.Compare(len(a.nodes), len(b.nodes)))
	})
	return all
}

// namedNodes is how many nodes a line names.
const namedNodes = 5

// nodesText names nodes, the first of many.
func nodesText(nodes []string) string {
	named := strings.Join(nodes[:min(len(nodes), namedNodes)], ", ")
	switch more := len(nodes) - namedNodes; {
	case len(nodes) == 1:
		named = "node " + named
	case more > 0:
		named = fmt.Sprintf("%d nodes (%s and %d more)", len(nodes), named, more)
	default:
		named = fmt.Sprintf("%d nodes (%s)", len(nodes), named)
	}
	return lb.Printable(named)
}

// sameTexts prints each text once, with the nodes whose it is.
func sameTexts(out io.Writer, answers []nodeAnswer) {
	for _, g := range grouped(answers, func(n nodeAnswer) string { return string(n.text) }) {
		fmt.Fprintf(out, "\n%s\n", nodesText(g.nodes))
		for line := range strings.Lines(g.key) {
			io.WriteString(out, strings.TrimRight("  "+line, " \n")+"\n")
		}
	}
}

// decodeAll reads the answers of nodes.
func decodeAll[T any](answers []nodeAnswer) ([]*T, error) {
	var all []*T
	for _, n := range answers {
		a, err := decode[T](n.text)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", n.node, err)
		}
		all = append(all, a)
	}
	return all, nil
}

// mergeTops adds up the connections of a Service on all nodes, and names its busiest node.
func mergeTops(out io.Writer, answers []nodeAnswer, _ bool) error {
	tops, err := decodeAll[inspect.Top](answers)
	if err != nil {
		return err
	}
	type sum struct {
		inspect.TopLine
		nodes   int
		busiest string
		most    float64
	}
	by, missed := map[string]*sum{}, uint64(0)
	for i, t := range tops {
		missed += t.Missed
		for _, s := range t.Services {
			of := by[s.Service]
			if of == nil {
				of = &sum{TopLine: inspect.TopLine{Service: s.Service}}
				by[s.Service] = of
			}
			of.PerSecond += s.PerSecond
			if of.nodes++; s.PerSecond > of.most {
				of.busiest, of.most = answers[i].node, s.PerSecond
			}
		}
	}
	var sums []*sum
	for _, s := range by {
		if s.PerSecond > 0 {
			sums = append(sums, s)
		}
	}
	slices.SortFunc(sums, func(a, b *sum) int {
		return cmp.Or(cmp.Compare(b.PerSecond, a.PerSecond), cmp.Compare(a.Service, b.Service))
	})
	if len(sums) == 0 {
		fmt.Fprintln(out, "no new connections to Services")
		return nil
	}
	lines := [][]string{{"SERVICE", "PER SECOND", "NODES", "BUSIEST NODE"}}
	for _, s := range sums[:min(len(sums), maxTop)] {
		lines = append(lines, []string{s.Service, fmt.Sprintf("%.1f", s.PerSecond), strconv.Itoa(s.nodes),
			fmt.Sprintf("%s (%.1f)", s.busiest, s.most)})
	}
	columns(out, lines, false)
	if more := len(sums) - maxTop; more > 0 {
		fmt.Fprintf(out, "and %d more\n", more)
	}
	if missed > 0 {
		fmt.Fprintf(out, "note: %s could not be counted\n", plural.Count(int(missed), "connection", "connections"))
	}
	return nil
}

// maxEvents is how many changes of a cluster are shown.
const maxEvents = 100

// mergeEvents merges equal changes on several nodes, and names the slowest node.
func mergeEvents(out io.Writer, answers []nodeAnswer, wide bool) error {
	all, err := decodeAll[inspect.Changes](answers)
	if err != nil {
		return err
	}
	type key struct {
		object, what, family string
		api                  time.Time
	}
	type change struct {
		inspect.Change
		nodes []string
		slow  string // node
	}
	by := map[key]*change{}
	var changes []*change
	for i, c := range all {
		for _, x := range c.Changes {
			k := key{object: x.Object, what: x.What, family: x.Family}
			if k.api = timeOf(x.API, x.Done); x.API == nil {
				k.api = k.api.Truncate(time.Minute) // without a time of the API, events of one minute are merged
			}
			of := by[k]
			if of == nil {
				of = &change{Change: x}
				by[k], changes = of, append(changes, of)
			}
			of.nodes = append(of.nodes, answers[i].node)
			if of.slow == "" || slower(x, of.Change) {
				of.Change, of.slow = x, answers[i].node
			}
		}
	}
	slices.SortStableFunc(changes, func(a, b *change) int {
		return timeOf(a.Done, a.API).Compare(timeOf(b.Done, b.API))
	})
	if len(changes) == 0 {
		fmt.Fprintln(out, "nothing has changed")
		return nil
	}
	if more := len(changes) - maxEvents; more > 0 && !wide {
		fmt.Fprintf(out, "%s; -o wide shows all\n", plural.Count(more, "older change", "older changes"))
		changes = changes[more:]
	}
	lines := [][]string{{"IN FORCE", "OBJECT", "FAMILY", "NODES", "SLOWEST", "AFTER", "WHAT"}}
	if wide {
		lines = [][]string{{"IN FORCE", "OBJECT", "FAMILY", "NODES", "SLOWEST", "SINCE API", "SINCE LEARNED", "WHAT"}}
	}
	for _, c := range changes {
		at := "-"
		if c.Done != nil {
			at = c.Done.Format("15:04:05.000")
		}
		line := []string{at, c.Object, orDash(c.Family), strconv.Itoa(len(c.nodes)), c.slow}
		if wide {
			line = append(line, took(c.SinceAPI))
		}
		lines = append(lines, append(line, took(c.SinceLearned), c.What))
	}
	columns(out, lines, wide)
	return nil
}

// timeOf returns the first known time.
func timeOf(times ...*time.Time) time.Time {
	for _, t := range times {
		if t != nil {
			return *t
		}
	}
	return time.Time{}
}

// slower reports whether a took longer than b: since the API, or else since the proxy learned of
// it.
func slower(a, b inspect.Change) bool {
	if a.SinceAPI != nil && b.SinceAPI != nil {
		return *a.SinceAPI > *b.SinceAPI
	}
	return a.SinceLearned != nil && b.SinceLearned != nil && *a.SinceLearned > *b.SinceLearned
}

// quietNodes is how many nodes without a problem status lists.
const quietNodes = 20

// mergeStatus prints a line for each node, the worst first, and below them each problem once.
func mergeStatus(out io.Writer, answers []nodeAnswer, wide bool) error {
	all, err := decodeAll[inspect.Status](answers)
	if err != nil || len(all) == 0 {
		return err
	}
	type node struct {
		name string
		*inspect.Status
	}
	var nodes []node
	quiet := 0
	for i, s := range all {
		if quiet += 1; s.Severity.Bad() {
			quiet--
		}
		nodes = append(nodes, node{answers[i].node, s})
	}
	slices.SortStableFunc(nodes, func(a, b node) int { return b.Severity.Compare(a.Severity) })
	lines := [][]string{{"NODE", "STATE", "MODE", "VERSION", "UP", "SERVICES", "FRONTENDS",
		"PENDING", "FAILING", "CONNTRACK", "LAST CHANGE"}}
	shown := len(nodes)
	if !wide && quiet > quietNodes {
		shown -= quiet - quietNodes
	}
	now := time.Now()
	for _, n := range nodes[:shown] {
		lines = append(lines, append([]string{n.name, string(n.Severity)}, statusCells(n.Status, now)...))
	}
	io.WriteString(out, "\n")
	columns(out, lines, true)
	if more := len(nodes) - shown; more > 0 {
		fmt.Fprintf(out, "and %s without a problem; -o wide lists all\n", plural.Count(more, "node", "nodes"))
	}
	problemsText(out, answers, all)
	return nil
}

func statusCells(s *inspect.Status, now time.Time) []string {
	rows, pending, failing := 0, 0, 0
	for _, f := range s.Families {
		rows, pending, failing = rows+f.Frontends, pending+f.Pending, failing+len(f.Failing)
	}
	up, full, last := "-", "-", "-"
	if s.Started != nil {
		up = ageText(now.Sub(*s.Started))
	}
	if c := s.Conntrack; c != nil && c.Limit > 0 {
		full = fmt.Sprintf("%d%%", c.Entries*100/c.Limit)
	}
	if c := s.LastChange; c != nil && c.Done != nil {
		last = ageText(now.Sub(*c.Done)) + " ago, in " + took(c.SinceLearned)
	}
	return []string{s.Mode, s.Version, up, strconv.Itoa(s.Services), strconv.Itoa(rows),
		strconv.Itoa(pending), strconv.Itoa(failing), full, last}
}

// problemsText prints each finding once, the worst first, with its nodes and the next command.
func problemsText(out io.Writer, answers []nodeAnswer, all []*inspect.Status) {
	type problem struct {
		inspect.Finding
		nodes []string
	}
	at := map[string]int{}
	var problems []problem
	for i, s := range all {
		for _, f := range s.Findings {
			if !f.Severity.Bad() {
				continue
			}
			k := string(f.Severity) + f.About + f.Text
			n, known := at[k]
			if !known {
				n, at[k] = len(problems), len(problems)
				problems = append(problems, problem{Finding: f})
			}
			problems[n].nodes = append(problems[n].nodes, answers[i].node)
		}
	}
	slices.SortStableFunc(problems, func(a, b problem) int {
		return cmp.Or(b.Severity.Compare(a.Severity), cmp.Compare(len(b.nodes), len(a.nodes)))
	})
	for _, p := range problems {
		fmt.Fprintf(out, "\n%s  %s: %s\n", word(p.Severity), nodesText(p.nodes), lb.Printable(p.Text))
		if p.Next != "" {
			fmt.Fprintf(out, "  next: %s\n", lb.Printable(nextCommand(p.Next, p.nodes[0])))
		}
	}
}

// nextCommand returns a command of the node in the plugin's form, or, if the plugin lacks it, where
// to run it.
func nextCommand(next, node string) string {
	words := strings.Fields(next)
	if len(words) < 2 || words[0] != "kube-proxy" {
		return next
	}
	if slices.ContainsFunc(queryCommands(), func(a queryCommand) bool { return a.name == words[1] }) {
		return PluginName + strings.TrimPrefix(next, "kube-proxy") + " --node " + node
	}
	return next + ", on node " + node
}
