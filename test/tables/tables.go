package tables

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"kube-proxy/lb"
)

// Parse parses a table. Frontends and sets may be in any order. Blank lines and lines that begin
// with "#" are ignored. Each frontend's Service must begin with the name of its owner.
func Parse(text string) (*lb.Table, error) {
	p := parser{sets: map[lb.SetID]*lb.BackendSet{}, backends: map[lb.SetID][]lb.Backend{}}
	for i, line := range strings.Split(text, "\n") {
		if err := p.parse(line); err != nil {
			return nil, fmt.Errorf("table: line %d: %w", i+1, err)
		}
	}
	t, err := p.table()
	if err != nil {
		return nil, fmt.Errorf("table: %w", err)
	}
	return t, nil
}

// parser holds the parsed parts. An indented line belongs to the last frontend or set.
type parser struct {
	node     lb.Node
	rows     []*row
	sets     map[lb.SetID]*lb.BackendSet
	backends map[lb.SetID][]lb.Backend
	row      *row
	set      lb.SetID
}

// row is a line about a frontend. Its sets may follow later.
type row struct {
	*lb.Frontend
	targets []lb.SetID // of each route
	serving lb.SetID
	created int64
	losesTo string
}

func (r *row) owner() lb.Owner { return lb.Owner{Name: lb.OwnerOf(r.Service), Created: r.created} }

func (p *parser) parse(line string) error {
	words := strings.Fields(line)
	switch {
	case len(words) == 0 || strings.HasPrefix(words[0], "#"):
		return nil
	case line[0] == ' ' || line[0] == '\t':
		if p.row != nil {
			return p.row.route(words)
		}
		return p.backend(words)
	case words[0] == "node":
		return pairs(words[1:], p.nodeFact)
	case words[0] == "set" && len(words) == 2:
		var err error
		p.row = nil
		p.set, err = setID(words[1])
		p.sets[p.set] = &lb.BackendSet{ID: p.set}
		return err
	case len(words) < 3:
		return errors.New("want KEY SERVICE KIND, or node, or set SERVICE/PROTOCOL/SCOPE")
	}
	key, err := Key(words[0])
	if err != nil {
		return err
	}
	kind, err := named[lb.Kind](words[2])
	p.row = &row{Frontend: &lb.Frontend{Key: key, Service: words[1], Kind: kind}}
	p.rows = append(p.rows, p.row)
	return errors.Join(err, pairs(words[3:], p.row.attribute))
}

// pairs calls f repeatedly with a word and its value. "loses to X" is the word "loses" with "to",
// and "X" without a value.
func pairs(words []string, f func(word, value string) error) error {
	for ; len(words) > 0; words = words[2:] {
		if words[0] == "loses" {
			words = words[1:]
		}
		if len(words) == 1 {
			return fmt.Errorf("%s needs a value", words[0])
		}
		if err := f(words[0], words[1]); err != nil {
			return fmt.Errorf("%s: %w", words[0], err)
		}
	}
	return nil
}

func (p *parser) nodeFact(word, value string) (err error) {
	switch word {
	case "nodeports":
		p.node.NodePorts, err = prefixes(value)
	case "localhost":
		p.node.Localhost, err = netip.ParseAddr(value)
	case "pods":
		p.node.Pods.Prefixes, err = prefixes(value)
	case "pods-interface":
		p.node.Pods.Interface = value
	case "pods-interface-prefix":
		p.node.Pods.InterfacePrefix = value
	case "services":
		p.node.ServiceCIDRs, err = prefixes(value)
	default:
		err = errors.New("unknown word")
	}
	return err
}

func (r *row) attribute(word, value string) (err error) {
	switch word {
	case "affinity":
		r.Affinity, err = time.ParseDuration(value)
	case "sources":
		r.Sources, err = prefixes(value)
	case "endpoints":
		r.LocalEndpoints, err = strconv.Atoi(value)
	case "preserve":
		r.PreserveDestination = value == "destination"
	case "created":
		r.created, err = strconv.ParseInt(value, 10, 64)
	case "to":
		r.losesTo = value
	default:
		err = errors.New("unknown word")
	}
	return err
}

func (r *row) route(words []string) (err error) {
	if words[0] == lb.Serving.String() && len(words) == 2 {
		r.serving, err = setID(words[1])
		return err
	}
	from, err := named[lb.From](words[0])
	if err != nil || len(words) < 2 {
		return errors.Join(err, errors.New("want SOURCE ACTION"))
	}
	do, err := named[lb.Action](words[1])
	if err != nil {
		return err
	}
	var target lb.SetID
	words = words[2:]
	if do == lb.Balance && len(words) > 0 {
		target, err = setID(words[0])
		if err != nil {
			return err
		}
		words = words[1:]
	}
	masq := slices.Equal(words, []string{"masquerade"})
	if !masq && len(words) > 0 {
		return fmt.Errorf("unknown word %s", words[0])
	}
	r.Routes = append(r.Routes, lb.Route{From: from, Do: do, Masq: masq})
	r.targets = append(r.targets, target)
	return nil
}

func (p *parser) backend(words []string) error {
	addr, err := netip.ParseAddrPort(words[0])
	if err != nil || p.sets[p.set] == nil {
		return errors.Join(err, errors.New("want a backend below a set"))
	}
	be := lb.Backend{Addr: addr}
	for _, w := range words[1:] {
		switch w {
		case "local":
			be.Local = true
		case "unplaced":
			be.Unplaced = true
		case "draining":
			be.Draining = true
		default:
			return fmt.Errorf("backend %s: unknown word %s", addr, w)
		}
	}
	p.backends[p.set] = append(p.backends[p.set], be)
	return nil
}

// table gives frontends their sets, and owners their frontends in the order of the text.
func (p *parser) table() (*lb.Table, error) {
	for id, s := range p.sets {
		slices.SortFunc(p.backends[id], lb.Backend.Compare)
		s.Backends = lb.BackendsOf(p.backends[id]...)
	}
	t := &lb.Table{Node: p.node}
	var owners []lb.Owner
	owned := map[lb.Owner][]*lb.Frontend{}
	for _, r := range p.rows {
		for i, id := range r.targets {
			r.Routes[i].To = p.sets[id]
			if r.Routes[i].To == nil && r.Routes[i].Do == lb.Balance {
				return nil, fmt.Errorf("row %s: no set %s", r.Key, id)
			}
		}
		r.Serving = p.sets[r.serving]
		if r.Serving == nil && r.serving != (lb.SetID{}) {
			return nil, fmt.Errorf("row %s: no set %s", r.Key, r.serving)
		}
		if err := lb.Check(0, r.Frontend); err != nil {
			return nil, err
		}
		if owned[r.owner()] == nil {
			owners = append(owners, r.owner())
		}
		owned[r.owner()] = append(owned[r.owner()], r.Frontend)
	}
	for _, o := range owners {
		t.Replace(o, owned[o])
	}
	for _, r := range p.rows {
		winner := t.Owner(r.Key).Name
		if loses := r.owner().Name != winner; loses != (r.losesTo != "") || loses && r.losesTo != winner {
			return nil, fmt.Errorf("row %s of %s loses to %q, not to %q", r.Key, r.Service, winner, r.losesTo)
		}
	}
	return t, nil
}

// Key is the inverse of [lb.Key.String].
func Key(s string) (lb.Key, error) {
	at, name, _ := strings.Cut(s, "/")
	proto, err := lb.ParseProto(name)
	if err != nil {
		return lb.Key{}, fmt.Errorf("key %q: %w", s, err)
	}
	if port, ok := strings.CutPrefix(at, "nodeport:"); ok {
		n, err := strconv.ParseUint(port, 10, 16)
		return lb.Key{Port: uint16(n), Proto: proto}, err
	}
	ap, err := netip.ParseAddrPort(at)
	if err != nil {
		return lb.Key{}, fmt.Errorf("key %q: %w", s, err)
	}
	return lb.Key{Addr: ap.Addr(), Port: ap.Port(), Proto: proto}, nil
}

// setID reads "shop/web:http/tcp/cluster".
func setID(s string) (id lb.SetID, err error) {
	words := strings.Split(s, "/")
	if len(words) < 3 {
		return id, fmt.Errorf("set %q: want SERVICE/PROTOCOL/SCOPE", s)
	}
	n := len(words) - 2
	id.Service = strings.Join(words[:n], "/")
	proto, err := lb.ParseProto(words[n])
	scope, err2 := named[lb.Scope](words[n+1])
	id.Proto, id.Scope = proto, scope
	return id, errors.Join(err, err2)
}

// prefixes reads "10.0.0.0/8,192.0.2.7/32".
func prefixes(s string) (out []netip.Prefix, err error) {
	for word := range strings.SplitSeq(s, ",") {
		p, err := netip.ParsePrefix(word)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return out, nil
}

// named finds a constant by its name.
func named[T interface {
	~uint8
	fmt.Stringer
}](s string) (T, error) {
	for v := T(1); v < 16; v++ {
		if v.String() == s {
			return v, nil
		}
	}
	return 0, fmt.Errorf("unknown %T %q", T(0), s)
}
