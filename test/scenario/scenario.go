package scenario

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"golang.org/x/tools/txtar"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// A Scenario is one file.
type Scenario struct {
	// Name is the file's name without directory and ".txtar".
	Name string
	// Story is the text at the top, without the line of row ids.
	Story string
	// Rows are the ids of docs/behaviour.md that the scenario proves, as "SV-52", in the file's
	// order.
	Rows     []string
	Settings Settings
	// States are the first state and one for each step, in the file's order; never empty.
	States []*State
}

// A State is the cluster at one moment, with the outcomes of packets.
type State struct {
	// Name is the step's name; "" for the first state.
	Name string
	// Changes are the user's actions from the previous state to this one, in order.
	Changes []Change
	// Restart: the proxy was not running during the changes; a new process finds the state of the
	// old one.
	Restart bool
	// Tables are the golden texts, by family; a family that the file has no table for is absent.
	Tables map[lb.Family]string
	// Refused has a line for each refused address, by family.
	Refused map[lb.Family]string
	// Problems has a line for each reported fault of an object.
	Problems string
	// Packets are the lines of the section, in order.
	Packets []Packet

	read     sync.Once
	events   []cluster.Event
	problems []string
	readErr  error
}

// Events returns the events of the state's changes, in order, and the reported faults. The text is
// parsed once, however often the scenario is replayed; callers must not change the result.
func (st *State) Events() (events []cluster.Event, problems []string, err error) {
	st.read.Do(func() {
		for _, c := range st.Changes {
			events, problems, err := c.Events()
			if err != nil {
				st.readErr = fmt.Errorf("line %d: %w", c.Line, err)
				return
			}
			st.events = append(st.events, events...)
			st.problems = append(st.problems, problems...)
		}
	})
	return st.events, st.problems, st.readErr
}

// prefix is the prefix of the state's section names.
func (st *State) prefix() string {
	if st.Name == "" {
		return ""
	}
	return "step " + st.Name + "/"
}

// A Change is one file that the user applies, one object that she deletes, or a verdict of
// failover.
type Change struct {
	Line   int    // where its section begins in the scenario file
	YAML   string // the applied documents; "" for the others
	Delete ObjectRef
	// Unreachable replaces what this node does not reach, unless it is nil.
	Unreachable *cluster.Unreachable
}

// ObjectRef names an object to delete: "Service shop/web", "Node node1".
type ObjectRef struct{ Kind, Namespace, Name string }

// String returns the reference in the format of a delete section.
func (r ObjectRef) String() string {
	if r.Namespace == "" {
		return r.Kind + " " + r.Name
	}
	return r.Kind + " " + r.Namespace + "/" + r.Name
}

// Dir returns the folder test/testdata/scenarios of the module that holds the working directory.
func Dir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find scenarios: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, "test", "testdata", "scenarios"), nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("find scenarios: no go.mod above the working directory")
		}
		dir = up
	}
}

// LoadDir reads all scenarios of a folder, sorted by name. LabFile of that folder is the state of
// the cluster before any scenario: its objects precede those of each one.
func LoadDir(dir string) ([]*Scenario, error) {
	lab, err := os.ReadFile(filepath.Join(dir, LabFile))
	if err != nil {
		return nil, fmt.Errorf("read scenarios: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil {
		return nil, fmt.Errorf("read scenarios: %w", err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("read scenarios: no .txtar file in %s", dir)
	}
	var all []*Scenario
	var errs []error
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read scenarios: %w", err)
		}
		s, err := Parse(filepath.Base(file), data, string(lab))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *Scenario) int { return cmp.Compare(a.Name, b.Name) })
	return all, errors.Join(errs...)
}

// LabFile is the file of the scenarios folder that describes the lab itself: this node and the
// service network.
const LabFile = "lab.yaml"

// Parse reads one scenario. lab is YAML that is applied before the scenario's own. Errors begin
// with "file:line:"; all errors of a file are reported, not only the first.
func Parse(file string, data []byte, lab string) (*Scenario, error) {
	p := &parser{file: file, s: &Scenario{Name: strings.TrimSuffix(file, ".txtar"), Settings: defaults()}}
	first := p.state("")
	if lab != "" {
		first.Changes = append(first.Changes, Change{YAML: lab})
	}
	archive := txtar.Parse(data)
	p.comment(string(archive.Comment))
	line := 1 + bytes.Count(archive.Comment, []byte("\n"))
	for _, f := range archive.Files {
		p.section(line, f.Name, string(f.Data))
		line += 1 + bytes.Count(f.Data, []byte("\n"))
	}
	if len(first.Changes) == 0 && len(p.errs) == 0 {
		p.errorf(1, "no section cluster.yaml")
	}
	p.check()
	return p.s, errors.Join(p.errs...)
}

type parser struct {
	file string
	s    *Scenario
	seen map[string]bool
	errs []error
}

func (p *parser) errorf(line int, format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf("%s:%d: %w", p.file, line, fmt.Errorf(format, args...)))
}

var rowID = regexp.MustCompile(`^([A-Z]{2}-[0-9]{2}|G[0-9])$`)

// comment splits the text at the top into the story and the rows.
func (p *parser) comment(text string) {
	var story []string
	for i, l := range strings.Split(text, "\n") {
		rows, ok := strings.CutPrefix(l, "Rows:")
		if !ok {
			story = append(story, l)
			continue
		}
		for row := range strings.FieldsFuncSeq(rows, func(r rune) bool { return r == ' ' || r == ',' }) {
			if !rowID.MatchString(row) {
				p.errorf(i+1, "row %q: want an id of docs/behaviour.md, such as SV-52", row)
			}
			p.s.Rows = append(p.s.Rows, row)
		}
	}
	p.s.Story = strings.TrimSpace(strings.Join(story, "\n"))
	if p.s.Story == "" {
		p.errorf(1, "no story at the top of the file")
	}
	if len(p.s.Rows) == 0 {
		p.errorf(1, `no line "Rows: SV-…" at the top of the file`)
	}
}

// state returns the state of that name, a new one if it is the first mention.
func (p *parser) state(name string) *State {
	for _, st := range p.s.States {
		if st.Name == name {
			return st
		}
	}
	st := &State{Name: name, Tables: map[lb.Family]string{}, Refused: map[lb.Family]string{}}
	p.s.States = append(p.s.States, st)
	return st
}

var stepName = regexp.MustCompile(`^[a-z0-9-]+$`)

// section reads one section; line is that of its marker.
func (p *parser) section(line int, name, data string) {
	if p.seen[name] {
		p.errorf(line, "section %q stands here twice", name)
		return
	}
	if p.seen == nil {
		p.seen = map[string]bool{}
	}
	p.seen[name] = true
	part, step := name, ""
	if rest, ok := strings.CutPrefix(name, "step "); ok {
		step, part, ok = strings.Cut(rest, "/")
		if !ok || !stepName.MatchString(step) {
			p.errorf(line, "section %q: want step NAME/PART, where NAME is of a-z, 0-9 and -", name)
			return
		}
	}
	if part == "settings" && step == "" {
		p.settings(line, data)
		return
	}
	// A part of a step opens the step, so that a step may consist of packets alone.
	switch part {
	case "cluster.yaml":
		st := p.state(step)
		st.Changes = append(st.Changes, Change{Line: line, YAML: data})
	case "restart":
		p.state(step).Restart = true
		if step == "" || strings.TrimSpace(data) != "" {
			p.errorf(line, "section %q: only a step can be a restart, and its section is empty", name)
		}
	case "delete":
		p.deletions(p.state(step), line, data)
	case "unreachable":
		p.unreachable(p.state(step), line, data)
	case "table":
		p.state(step).Tables[lb.IPv4] = data
	case "table6":
		p.state(step).Tables[lb.IPv6] = data
	case "refused":
		p.state(step).Refused[lb.IPv4] = data
	case "refused6":
		p.state(step).Refused[lb.IPv6] = data
	case "problems":
		p.state(step).Problems = data
	case "packets":
		p.packets(p.state(step), line, data)
	default:
		p.errorf(line, "section %q is unknown: want settings, or cluster.yaml, delete, unreachable, problems, "+
			"refused, refused6, table, table6 or packets, alone or after step NAME/, or step NAME/restart", name)
	}
}

func (p *parser) deletions(st *State, line int, data string) {
	for i, l := range lines(data) {
		ref, err := parseRef(l)
		if err != nil {
			p.errorf(line+i, "%w", err)
			continue
		}
		st.Changes = append(st.Changes, Change{Line: line + i, Delete: ref})
	}
}

// unreachable reads lines "Node NAME", for a node with all its endpoints, and "ADDRESS:PORT", for a
// TCP endpoint alone.
func (p *parser) unreachable(st *State, line int, data string) {
	u := &cluster.Unreachable{Nodes: map[string]bool{}, Endpoints: map[netip.AddrPort]bool{}}
	for i, l := range lines(data) {
		if ref, err := parseRef(l); err == nil && ref.Kind == "Node" {
			u.Nodes[ref.Name] = true
		} else if at, err := netip.ParseAddrPort(l); err == nil {
			u.Endpoints[at] = true
		} else {
			p.errorf(line+i, "unreachable %q: want Node and a name, or an address and a port", l)
		}
	}
	st.Changes = append(st.Changes, Change{Line: line, Unreachable: u})
}

var namespaced = map[string]bool{"Service": true, "EndpointSlice": true, "Node": false, "ServiceCIDR": false}

func parseRef(s string) (ObjectRef, error) {
	kind, name, _ := strings.Cut(s, " ")
	ns, ok := namespaced[kind]
	if !ok {
		return ObjectRef{}, fmt.Errorf("delete %q: want Service, EndpointSlice, Node or ServiceCIDR and a name", s)
	}
	ref := ObjectRef{Kind: kind, Name: name}
	if ns {
		ref.Namespace, ref.Name, _ = strings.Cut(name, "/")
	}
	if ref.Name == "" || ref.String() != s || strings.ContainsAny(ref.Name, "/ ") {
		return ObjectRef{}, fmt.Errorf("delete %q: want a name, as NAMESPACE/NAME for %s", s, kind)
	}
	return ref, nil
}

// lines iterates over the non-empty lines of a section, without comments; the number is relative to
// the section's marker.
func lines(data string) func(yield func(int, string) bool) {
	return func(yield func(int, string) bool) {
		for i, l := range strings.Split(data, "\n") {
			if at := strings.Index(l, "#"); at >= 0 {
				l = l[:at]
			}
			l = strings.TrimSpace(l)
			if l != "" && !yield(i+1, l) {
				return
			}
		}
	}
}

// check finds the faults that only the whole file shows.
func (p *parser) check() {
	how := map[string]Verb{} // the verb of each connection: Open or Begin
	for _, st := range p.s.States {
		for _, pkt := range st.Packets {
			switch pkt.Verb {
			case Open, Begin:
				if _, twice := how[pkt.Conn]; twice {
					p.errorf(pkt.Line, "connection %q is opened twice", pkt.Conn)
				}
				how[pkt.Conn] = pkt.Verb
			case KeepsWorking, IsDead, MovesTo:
				if how[pkt.Conn] != Open {
					p.errorf(pkt.Line, "connection %q was not opened before", pkt.Conn)
				}
			case Reaches:
				if how[pkt.Conn] != Begin {
					p.errorf(pkt.Line, "connection %q was not begun before", pkt.Conn)
				}
				how[pkt.Conn] = Open // and stays so
			}
		}
	}
}
