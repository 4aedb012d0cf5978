package manifests

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// fault is a malformed place in a document.
type fault struct {
	line         int
	field, value string
	what         string
}

// checker compares a YAML tree with the Go type that it should fill. Decoders of YAML or JSON name
// neither the line nor the whole path of a wrong field; the tree has both.
type checker struct {
	faults []fault
	// budget bounds the nodes that are visited: with aliases a small text can be an endless tree.
	budget int
}

var errTooLarge = errors.New("aliases make it too large")

// maxFaults is the number of faults reported for one document.
const maxFaults = 10

func (c *checker) fault(n *yaml.Node, field, what string) {
	f := fault{line: n.Line, field: field, what: what}
	if n.Kind == yaml.ScalarNode {
		f.value = n.Value
	}
	c.add(f)
}

func (c *checker) add(f fault) {
	if len(c.faults) < maxFaults {
		c.faults = append(c.faults, f)
	}
}

// spend takes one node from the budget; at its end there is one fault.
func (c *checker) spend(n *yaml.Node, field string) bool {
	c.budget--
	if c.budget == 0 {
		c.fault(n, field, errTooLarge.Error())
	}
	return c.budget > 0
}

var jsonUnmarshaler = reflect.TypeFor[json.Unmarshaler]()

// check visits the node and records where it does not fit the type.
func (c *checker) check(n *yaml.Node, t reflect.Type, field string) {
	n = deref(n)
	if !c.spend(n, field) || n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(jsonUnmarshaler) {
		c.checkUnmarshaler(n, t, field)
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		c.checkStruct(n, t, field)
	case reflect.Map:
		pairs, ok := c.pairs(n, field)
		if !ok {
			return
		}
		for _, p := range pairs {
			c.check(p.value, t.Elem(), join(field, p.key.Value))
		}
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			c.fault(n, field, "is not a list")
			return
		}
		for i, item := range n.Content {
			c.check(item, t.Elem(), fmt.Sprintf("%s[%d]", field, i))
		}
	default:
		c.checkScalar(n, t, field)
	}
}

func (c *checker) checkStruct(n *yaml.Node, t reflect.Type, field string) {
	pairs, ok := c.pairs(n, field)
	if !ok {
		return
	}
	fields := jsonFields(t)
	for _, p := range pairs {
		ft, known := fields[p.key.Value]
		if !known {
			c.add(fault{line: p.key.Line, field: join(field, p.key.Value), what: "is an unknown field"})
			continue
		}
		c.check(p.value, ft, join(field, p.key.Value))
	}
}

func (c *checker) checkUnmarshaler(n *yaml.Node, t reflect.Type, field string) {
	left := c.budget
	if err := decode(n, reflect.New(t).Interface(), &left); err != nil {
		c.fault(n, field, "is not a valid "+t.Name()+": "+err.Error())
	}
}

func (c *checker) checkScalar(n *yaml.Node, t reflect.Type, field string) {
	tag := n.ShortTag()
	if n.Kind != yaml.ScalarNode {
		tag = ""
	}
	switch t.Kind() {
	case reflect.String:
		if tag != "!!str" && tag != "!!timestamp" {
			c.fault(n, field, "is not a text"+quoteHint(tag))
		}
	case reflect.Bool:
		if tag != "!!bool" {
			c.fault(n, field, "is neither true nor false")
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		var i int64
		if tag != "!!int" || n.Decode(&i) != nil {
			c.fault(n, field, "is not a whole number")
		} else if reflect.Zero(t).OverflowInt(i) {
			c.fault(n, field, fmt.Sprintf("does not fit %d bits", t.Bits()))
		}
	default:
		c.fault(n, field, "cannot be given in a file")
	}
}

func quoteHint(tag string) string {
	switch tag {
	case "!!int", "!!float", "!!bool":
		return "; put it in quotes"
	}
	return ""
}

// pair is one entry of a mapping.
type pair struct{ key, value *yaml.Node }

func (c *checker) pairs(n *yaml.Node, field string) ([]pair, bool) {
	if n.Kind != yaml.MappingNode {
		c.fault(n, field, "is not a mapping of fields to values")
		return nil, false
	}
	all, dup, err := pairs(n, &c.budget)
	if err != nil {
		c.fault(n, field, err.Error())
		return nil, false
	}
	if dup != nil {
		c.add(fault{line: dup.Line, field: join(field, dup.Value), what: "is given twice"})
	}
	return all, true
}

// pairs returns a mapping's entries with merge keys ("<<") resolved, and a repeated key.
func pairs(n *yaml.Node, budget *int) (all []pair, dup *yaml.Node, err error) {
	seen := make(map[string]bool, len(n.Content)/2)
	var merged []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := deref(n.Content[i]), deref(n.Content[i+1])
		switch {
		case key.Kind != yaml.ScalarNode:
			return nil, nil, fmt.Errorf("has a key that is not a text, in line %d", key.Line)
		case key.ShortTag() == "!!merge" && value.Kind == yaml.SequenceNode:
			merged = append(merged, value.Content...)
		case key.ShortTag() == "!!merge":
			merged = append(merged, value)
		case seen[key.Value]:
			dup = key
		default:
			seen[key.Value] = true
			all = append(all, pair{key, value})
		}
	}
	for _, m := range merged {
		*budget--
		if *budget <= 0 {
			return nil, nil, errTooLarge
		}
		m = deref(m)
		if m.Kind != yaml.MappingNode {
			return nil, nil, fmt.Errorf("merges something that is not a mapping, in line %d", m.Line)
		}
		more, _, err := pairs(m, budget)
		if err != nil {
			return nil, nil, err
		}
		for _, p := range more {
			if !seen[p.key.Value] {
				seen[p.key.Value] = true
				all = append(all, p)
			}
		}
	}
	return all, dup, nil
}

// deref follows aliases; the parser makes no alias of an alias.
func deref(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

// decode decodes the tree as if it were JSON.
func decode(n *yaml.Node, into any, budget *int) error {
	tree, err := plain(n, budget)
	if err != nil {
		return err
	}
	text, err := json.Marshal(tree)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// plain returns the tree as encoding/json takes it.
func plain(n *yaml.Node, budget *int) (any, error) {
	*budget--
	if *budget <= 0 {
		return nil, errTooLarge
	}
	n = deref(n)
	switch n.Kind {
	case yaml.MappingNode:
		all, _, err := pairs(n, budget)
		if err != nil {
			return nil, err
		}
		out := make(map[string]any, len(all))
		for _, p := range all {
			out[p.key.Value], err = plain(p.value, budget)
			if err != nil {
				return nil, err
			}
		}
		return out, nil
	case yaml.SequenceNode:
		out := make([]any, len(n.Content))
		for i, item := range n.Content {
			var err error
			out[i], err = plain(item, budget)
			if err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return plainScalar(n), nil
}

// plainScalar returns what JSON has a form for, and the text of all else.
func plainScalar(n *yaml.Node) any {
	switch n.ShortTag() {
	case "!!null", "!!bool", "!!int", "!!float":
		var v any
		err := n.Decode(&v)
		if f, _ := v.(float64); err == nil && !math.IsNaN(f) && !math.IsInf(f, 0) {
			return v
		}
	}
	return n.Value
}

// jsonFields returns the fields of a struct by their JSON names, embedded structs included.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case f.Anonymous && name == "":
			maps.Copy(fields, jsonFields(f.Type))
		case name != "":
			fields[name] = f.Type
		}
	}
	return fields
}

func join(field, name string) string {
	if field == "" {
		return name
	}
	return field + "." + name
}

// lineOf returns the line of a field such as "spec.ports[1].port"; if it is missing, that of the
// nearest enclosing field.
func lineOf(n *yaml.Node, field string) int {
	n = deref(n)
	line := n.Line
	for part := range strings.FieldsFuncSeq(field, func(r rune) bool { return r == '.' || r == '[' || r == ']' }) {
		next := child(n, part)
		if next == nil {
			break
		}
		n = deref(next)
		line = next.Line
	}
	return line
}

func child(n *yaml.Node, part string) *yaml.Node {
	switch n.Kind {
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(part); err == nil && i >= 0 && i < len(n.Content) {
			return n.Content[i]
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == part {
				return n.Content[i+1]
			}
		}
	}
	return nil
}

// scalar returns the text of a field directly below a mapping; "" if it is not there or is no text.
func scalar(n *yaml.Node, field string) string {
	if c := child(n, field); c != nil {
		c = deref(c)
		if c.Kind == yaml.ScalarNode && c.ShortTag() == "!!str" {
			return c.Value
		}
	}
	return ""
}
