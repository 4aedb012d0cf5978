package lb

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ParseTable reads the text form of a table; see [Table.String]. Blank lines and lines that begin with "#"
// mean nothing. Rows, sets, backends and prefixes may stand in any order; routes keep theirs. An error names
// the line.
func ParseTable(text string) (*Table, error) {
	p := parser{sets: map[SetID]*BackendSet{}, setLines: map[SetID]int{}, backends: map[*BackendSet][]Backend{}}
	for i, line := range strings.Split(text, "\n") {
		p.line = i + 1
		if err := p.parseLine(line); err != nil {
			return nil, fmt.Errorf("table: line %d: %w", p.line, err)
		}
	}
	t, line, err := p.table()
	if err != nil {
		return nil, fmt.Errorf("table: line %d: %w", line, err)
	}
	return t, nil
}

// parser reads a table line by line.
type parser struct {
	line     int
	node     *Node
	rows     []*parsedRow
	sets     map[SetID]*BackendSet
	setLines map[SetID]int

	// Where an indented line belongs: at most one is not nil.
	row      *parsedRow
	set      *BackendSet
	backends map[*BackendSet][]Backend
}

// parsedRow is a row whose routes name sets that may not have been read yet.
type parsedRow struct {
	line    int
	front   *Frontend
	targets []SetID // of each route; the zero SetID if it has none
	serving SetID   // zero if the row names none
	created int64
	losesTo string
}

func (r *parsedRow) owner() Owner { return Owner{Name: OwnerOf(r.front.Service), Created: r.created} }

func (p *parser) parseLine(line string) error {
	words := strings.Fields(line)
	if len(words) == 0 || strings.HasPrefix(words[0], "#") {
		return nil
	}
	if line[0] == ' ' || line[0] == '\t' {
		switch {
		case p.row != nil:
			return p.parseRoute(words)
		case p.set != nil:
			return p.parseBackend(words)
		}
		return fmt.Errorf("%q: an indented line must follow a row or a set", strings.TrimSpace(line))
	}
	p.row, p.set = nil, nil
	switch words[0] {
	case "node":
		return p.parseNode(words[1:])
	case "set":
		return p.parseSet(words[1:])
	}
	return p.parseRow(words)
}

func (p *parser) parseNode(words []string) error {
	if p.node != nil {
		return fmt.Errorf("a second node")
	}
	p.node = &Node{}
	for ; len(words) > 0; words = words[2:] {
		if len(words) == 1 {
			return fmt.Errorf("node: %s needs a value", words[0])
		}
		var err error
		switch words[0] {
		case "nodeports":
			p.node.NodePorts, err = parsePrefixes(words[1])
		case "localhost":
			p.node.Localhost, err = netip.ParseAddr(words[1])
		case "pods":
			p.node.Pods.Prefixes, err = parsePrefixes(words[1])
		case "pods-interface":
			p.node.Pods.Interface = words[1]
		case "pods-interface-prefix":
			p.node.Pods.InterfacePrefix = words[1]
		case "services":
			p.node.ServiceCIDRs, err = parsePrefixes(words[1])
		default:
			err = fmt.Errorf("unknown word")
		}
		if err != nil {
			return fmt.Errorf("node: %s: %w", words[0], err)
		}
	}
	return nil
}

func (p *parser) parseRow(words []string) error {
	if len(words) < 3 {
		return fmt.Errorf("want KEY SERVICE KIND, or node, or set")
	}
	key, err := ParseKey(words[0])
	if err != nil {
		return err
	}
	kind, err := parseName[Kind](kindNames[:], "kind", words[2])
	if err != nil {
		return err
	}
	if key.IsNodePort() != (kind == NodePort || kind == HealthCheck) || kind == HealthCheck && key.Proto != TCP {
		return fmt.Errorf("%s: kind %s does not go with this key", key, kind)
	}
	row := &parsedRow{line: p.line, front: &Frontend{Key: key, Service: words[1], Kind: kind}}
	if err := row.parseAttributes(words[3:]); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	p.rows = append(p.rows, row)
	p.row = row
	return nil
}

func (r *parsedRow) parseAttributes(words []string) error {
	for ; len(words) > 0; words = words[2:] {
		if len(words) == 1 {
			return fmt.Errorf("%s needs a value", words[0])
		}
		if !r.takes(words[0]) {
			return fmt.Errorf("%s: not for kind %s", words[0], r.front.Kind)
		}
		var err error
		switch words[0] {
		case "affinity":
			r.front.Affinity, err = parseAffinity(words[1])
		case "sources":
			r.front.Sources, err = parsePrefixes(words[1])
		case "endpoints":
			var n uint64
			n, err = strconv.ParseUint(words[1], 10, 31)
			r.front.LocalEndpoints = int(n)
		case "preserve":
			if words[1] != "destination" {
				return fmt.Errorf("want: preserve destination")
			}
			r.front.PreserveDestination = true
		case "created":
			r.created, err = strconv.ParseInt(words[1], 10, 64)
		case "loses":
			if words[1] != "to" || len(words) < 3 {
				return fmt.Errorf("want: loses to NS/NAME")
			}
			r.losesTo, words = words[2], words[1:]
		default:
			return fmt.Errorf("unknown word %s", words[0])
		}
		if err != nil {
			return fmt.Errorf("%s: %w", words[0], err)
		}
	}
	return nil
}

// takes reports whether rows of this kind may have the attribute.
func (r *parsedRow) takes(word string) bool {
	switch word {
	case "affinity", "sources":
		return r.front.Kind != HealthCheck
	case "preserve":
		return r.front.Kind == ExternalIP || r.front.Kind == LoadBalancer
	case "endpoints":
		return r.front.Kind == HealthCheck
	}
	return true
}

func parseAffinity(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err == nil && (d < time.Second || d > 24*time.Hour || d%time.Second != 0) {
		err = fmt.Errorf("%s: want whole seconds from 1s to 86400s", s)
	}
	return d, err
}

func (p *parser) parseRoute(words []string) error {
	if words[0] == scopeNames[Serving] {
		return p.parseServing(words[1:])
	}
	from, err := parseName[From](fromNames[:], "source", words[0])
	if err != nil {
		return err
	}
	if len(words) < 2 {
		return fmt.Errorf("%s: want an action", from)
	}
	do, err := parseName[Action](actionNames[:], "action", words[1])
	if err != nil {
		return err
	}
	f := p.row.front
	if (do == Accept) != (f.Kind == HealthCheck) || do == Accept && from != Anywhere {
		return fmt.Errorf("route %s %s: not for kind %s", from, do, f.Kind)
	}
	if n := len(f.Routes); n > 0 && f.Routes[n-1].From >= from {
		return fmt.Errorf("a route from %s cannot follow one from %s", from, f.Routes[n-1].From)
	}
	route, target, rest := Route{From: from, Do: do}, SetID{}, words[2:]
	if do == Balance {
		if len(rest) == 0 {
			return fmt.Errorf("balance: want a set")
		}
		if target, err = parseSetID(rest[0]); err != nil {
			return err
		}
		if target.Scope == Serving {
			return fmt.Errorf("balance: no route goes to a set of scope %s", target.Scope)
		}
		if rest = rest[1:]; len(rest) > 0 && rest[0] == "masquerade" {
			route.Masq, rest = true, rest[1:]
		}
	}
	if len(rest) > 0 {
		return fmt.Errorf("route: unknown word %s", rest[0])
	}
	f.Routes = append(f.Routes, route)
	p.row.targets = append(p.row.targets, target)
	return nil
}

// parseServing reads what follows "serving" in a row.
func (p *parser) parseServing(words []string) error {
	switch proto := p.row.front.Key.Proto; {
	case proto == TCP:
		return fmt.Errorf("serving: not for %s", proto)
	case p.row.serving != SetID{}:
		return fmt.Errorf("serving: a second time")
	case len(words) != 1:
		return fmt.Errorf("serving: want a set")
	}
	id, err := parseSetID(words[0])
	if err == nil && id.Scope != Serving {
		err = fmt.Errorf("serving: %s is of another scope", id)
	}
	p.row.serving = id
	return err
}

func (p *parser) parseSet(words []string) error {
	if len(words) != 1 {
		return fmt.Errorf("want: set SERVICE/PROTOCOL/SCOPE")
	}
	id, err := parseSetID(words[0])
	if err != nil {
		return err
	}
	if p.sets[id] != nil {
		return fmt.Errorf("a second set %s", id)
	}
	p.set = &BackendSet{ID: id}
	p.sets[id], p.setLines[id] = p.set, p.line
	return nil
}

func (p *parser) parseBackend(words []string) error {
	addr, err := netip.ParseAddrPort(words[0])
	if err != nil {
		return fmt.Errorf("backend: %w", err)
	}
	be, rest := Backend{Addr: addr}, words[1:]
	if len(rest) > 0 && rest[0] == "local" {
		be.Local, rest = true, rest[1:]
	} else if len(rest) > 0 && rest[0] == "unplaced" {
		be.Unplaced, rest = true, rest[1:]
	}
	if len(rest) > 0 && rest[0] == "draining" {
		be.Draining, rest = true, rest[1:]
	}
	if len(rest) > 0 {
		return fmt.Errorf("backend %s: unknown word %s", addr, rest[0])
	}
	if p.set.ID.Scope == Serving && (be.Local || be.Unplaced || be.Draining) {
		return fmt.Errorf("backend %s: a set of scope %s tells addresses only", addr, Serving)
	}
	p.backends[p.set] = append(p.backends[p.set], be)
	return nil
}

// table puts the lines together. With an error comes the number of the line that caused it.
func (p *parser) table() (*Table, int, error) {
	for id, s := range p.sets {
		if line, err := p.setLines[id], s.fill(p.backends[s]); err != nil {
			return nil, line, err
		}
	}
	used := map[SetID]bool{}
	fronts, order := map[string][]*Frontend{}, []*parsedRow{}
	for _, r := range p.rows {
		if err := p.finish(r, used); err != nil {
			return nil, r.line, err
		}
		name := r.owner().Name
		if fronts[name] == nil {
			order = append(order, r)
		}
		fronts[name] = append(fronts[name], r.front)
	}
	for id, line := range p.setLines {
		if !used[id] {
			return nil, line, fmt.Errorf("no row uses set %s", id)
		}
	}
	t := &Table{}
	if p.node != nil {
		t.Node = *p.node
	}
	for _, r := range order {
		t.Replace(r.owner(), fronts[r.owner().Name])
	}
	for _, r := range p.rows {
		if err := t.check(r); err != nil {
			return nil, r.line, fmt.Errorf("%s: %w", r.front.Key, err)
		}
	}
	return t, 0, nil
}

// fill gives the set its backends, which it sorts.
func (s *BackendSet) fill(all []Backend) error {
	if len(all) == 0 {
		return fmt.Errorf("set %s has no backend", s.ID)
	}
	slices.SortFunc(all, Backend.Compare)
	for i, b := range all[1:] {
		if all[i].Addr == b.Addr {
			return fmt.Errorf("set %s has %s twice", s.ID, b.Addr)
		}
	}
	s.Backends = BackendsOf(all...)
	return nil
}

// finish gives the row of r its sets.
func (p *parser) finish(r *parsedRow, used map[SetID]bool) error {
	routes := r.front.Routes
	for i := range routes {
		if routes[i].Do != Balance {
			continue
		}
		id := r.targets[i]
		if routes[i].To = p.sets[id]; routes[i].To == nil {
			return fmt.Errorf("%s: there is no set %s", r.front.Key, id)
		}
		used[id] = true
	}
	if r.serving != (SetID{}) {
		if r.front.Serving = p.sets[r.serving]; r.front.Serving == nil {
			return fmt.Errorf("%s: there is no set %s", r.front.Key, r.serving)
		}
		used[r.serving] = true
	}
	return Check(0, r.front)
}

// check compares what the text says about r's claim with what the table made of it.
func (t *Table) check(r *parsedRow) error {
	o := r.owner()
	head := t.rows[r.front.Key]
	if t.owners[o.Name].owner != o {
		return fmt.Errorf("%s has another creation time above", o.Name)
	}
	if !slices.Contains(t.Owned(o.Name), r.front) {
		return fmt.Errorf("%s claims the key twice", o.Name)
	}
	switch winner := head.owner.Name; {
	case r.losesTo == "" && winner != o.Name:
		return fmt.Errorf("%s loses to %s, so the line must say so", o.Name, winner)
	case r.losesTo != "" && winner != r.losesTo:
		return fmt.Errorf("%s loses to %s: the winner is %s", o.Name, r.losesTo, winner)
	case r.losesTo == o.Name:
		return fmt.Errorf("%s cannot lose to itself", o.Name)
	}
	return nil
}

func parseSetID(s string) (SetID, error) {
	rest, scope, ok1 := cutLast(s, "/")
	service, proto, ok2 := cutLast(rest, "/")
	if !ok1 || !ok2 || service == "" {
		return SetID{}, fmt.Errorf("set %q: want SERVICE/PROTOCOL/SCOPE", s)
	}
	sc, err := parseName[Scope](scopeNames[:], "scope", scope)
	if err != nil {
		return SetID{}, fmt.Errorf("set %q: %w", s, err)
	}
	pr, err := ParseProto(proto)
	if err != nil {
		return SetID{}, fmt.Errorf("set %q: %w", s, err)
	}
	return SetID{Service: service, Proto: pr, Scope: sc}, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// parsePrefixes reads "10.0.0.0/8,192.0.2.7/32" and sorts it.
func parsePrefixes(s string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for word := range strings.SplitSeq(s, ",") {
		p, err := netip.ParsePrefix(word)
		if err != nil {
			return nil, err
		}
		if p != p.Masked() {
			return nil, fmt.Errorf("%s has bits beyond its length, want %s", p, p.Masked())
		}
		out = append(out, p)
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	for i, p := range out[1:] {
		if out[i].Overlaps(p) {
			return nil, fmt.Errorf("%s and %s overlap", out[i], p)
		}
	}
	return out, nil
}

func parseName[T ~uint8](names []string, what, s string) (T, error) {
	for i, n := range names {
		if i > 0 && n == s {
			return T(i), nil
		}
	}
	return 0, fmt.Errorf("unknown %s %q, want one of %s", what, s, strings.Join(names[1:], ", "))
}
