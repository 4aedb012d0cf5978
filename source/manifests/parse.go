package manifests

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"kube-proxy/cluster"
	"kube-proxy/internal/nearest"
	"kube-proxy/source/convert"
)

// Objects are the contents of a file or a folder, in its order.
type Objects struct {
	Services []*cluster.Service
	Slices   []*cluster.Slice
	Nodes    []*cluster.Node
	CIDRs    []*cluster.ServiceCIDR
}

// Parse reads one file's text. The name is used in problems only. It returns all usable objects,
// whatever the problems; the package comment lists faults and defaults.
func Parse(name string, data []byte) (Objects, []convert.Problem) {
	f := parse(name, data)
	var out Objects
	for _, o := range f.objects {
		out.add(o)
	}
	return out, f.problems
}

func (out *Objects) add(o object) {
	switch v := o.value.(type) {
	case *cluster.Service:
		out.Services = append(out.Services, v)
	case *cluster.Slice:
		out.Slices = append(out.Slices, v)
	case *cluster.Node:
		out.Nodes = append(out.Nodes, v)
	case *cluster.ServiceCIDR:
		out.CIDRs = append(out.CIDRs, v)
	}
}

// id names an object.
type id struct {
	kind string
	name cluster.Name
}

// object is one object of a file: a *cluster.Service, *cluster.Slice, *cluster.Node or
// *cluster.ServiceCIDR.
type object struct {
	id
	file  string
	line  int
	value any
}

// file is one file's text, understood.
type file struct {
	name    string
	objects []object
	// malformed: not all of the text could be understood.
	malformed bool
	// refused are the objects that exist but cannot be used.
	refused  map[id]bool
	problems []convert.Problem
	// other are the objects of kinds that do not concern the proxy.
	other []string
}

// parse understands one file's text.
func parse(name string, data []byte) *file {
	f := &file{name: name, refused: map[id]bool{}}
	defer f.firstCounts()
	dec := yaml.NewDecoder(bytes.NewReader(data))
	budget := 100_000 + 8*len(data)
	for {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return f
		}
		if err != nil {
			f.malformed = true
			line, what := yamlError(err)
			line = syntaxLine(data, line)
			f.problems = append(f.problems, convert.Problem{File: name, Line: line, What: "is not YAML: " + what,
				Then: thenNewFile})
			return f
		}
		if doc.Kind == yaml.DocumentNode && len(doc.Content) == 1 {
			f.document(doc.Content[0], "", &budget)
		}
	}
}

// The effect of a fault in a file or an object: if it is new, and if there was a good version
// before.
const (
	thenNewFile   = "what can be read of the file is used"
	thenNewObject = "the object is left out"
	thenFile      = "the file's last good objects stay"
	thenObject    = "the object's last good version stays"
)

var yamlLine = regexp.MustCompile(`^line (\d+): `)

// yamlError takes the line out of a message of the YAML parser.
func yamlError(err error) (line int, what string) {
	what = strings.TrimPrefix(err.Error(), "yaml: ")
	if m := yamlLine.FindStringSubmatch(what); m != nil {
		line, _ = strconv.Atoi(m[1])
		what = what[len(m[0]):]
	}
	return line, what
}

// maxSearched bounds how many bytes are parsed to find a broken line: some tenths of a second.
const maxSearched = 8 << 20

// syntaxLine makes the parser's line exact. The parser often names the line where the broken
// mapping or list began, or the one before it. The broken line is the one after the longest
// parsable part of the document.
func syntaxLine(data []byte, line int) int {
	lines := bytes.SplitAfter(data, []byte("\n"))
	start := 0 // the document's first line, from 0
	for i := 0; i < len(lines) && i < line; i++ {
		if bytes.HasPrefix(lines[i], []byte("---")) {
			start = i
		}
	}
	end := start + 1
	for end < len(lines) && !bytes.HasPrefix(lines[end], []byte("---")) {
		end++
	}
	size := 0
	for _, l := range lines[start:end] {
		size += len(l)
	}
	if (end-start)*size > maxSearched { // an exact line is not worth the time
		return line
	}
	for n := end; n > start; n-- {
		var doc yaml.Node
		if yaml.Unmarshal(bytes.Join(lines[start:n], nil), &doc) == nil {
			return min(n+1, end)
		}
	}
	return max(line, start+1)
}

func (f *file) malformation(line int, p convert.Problem) {
	f.malformed = true
	p.File, p.Line, p.Then = f.name, line, thenNewFile
	f.problems = append(f.problems, p)
}

// document reads one document or one item of a list. kind is that of the enclosing typed list, or
// "".
func (f *file) document(n *yaml.Node, kind string, budget *int) {
	n = deref(n)
	*budget--
	if *budget <= 0 {
		if *budget == 0 {
			f.malformation(n.Line, convert.Problem{What: errTooLarge.Error()})
		}
		return
	}
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return
	}
	if n.Kind != yaml.MappingNode {
		f.malformation(n.Line, convert.Problem{What: "is not an object: a mapping with apiVersion, kind and metadata " +
			"is expected"})
		return
	}
	apiVersion, ownKind := scalar(n, "apiVersion"), scalar(n, "kind")
	ownKind = cmp.Or(ownKind, kind)
	if ownKind == "" {
		f.malformation(n.Line, convert.Problem{Field: "kind", What: "is missing or not a text"})
		return
	}
	if item, isList := strings.CutSuffix(ownKind, "List"); isList {
		f.list(n, item, budget)
		return
	}
	group, version, _ := strings.Cut(apiVersion, "/")
	if version == "" {
		group, version = "", apiVersion
	}
	k, known := kinds[ownKind]
	for _, like := range nearest.Of(ownKind, maps.Keys(kinds)) {
		if !known && (apiVersion == "" || group == kinds[like].group) {
			f.malformation(lineOf(n, "kind"), convert.Problem{Field: "kind", Value: ownKind,
				What: "is unknown: did you mean " + like + "?"})
			return
		}
	}
	if !known || apiVersion != "" && group != k.group {
		f.other = append(f.other, fmt.Sprintf("%s %s", apiVersion, ownKind))
		return
	}
	if apiVersion != "" && version != "v1" && !(ownKind == "ServiceCIDR" && version == "v1beta1") {
		f.malformation(lineOf(n, "apiVersion"), convert.Problem{Kind: ownKind, Field: "apiVersion", Value: apiVersion,
			What: "is not supported, v1 is"})
		return
	}
	f.object(n, ownKind, k, budget)
}

func (f *file) list(n *yaml.Node, kind string, budget *int) {
	items := child(n, "items")
	if items == nil || deref(items).ShortTag() == "!!null" {
		return
	}
	items = deref(items)
	if items.Kind != yaml.SequenceNode {
		f.malformation(items.Line, convert.Problem{Kind: kind + "List", Field: "items", What: "is not a list"})
		return
	}
	for _, item := range items.Content {
		f.document(item, kind, budget)
	}
}

// kindOf describes how to read one kind.
type kindOf struct {
	group      string
	new        func() any
	namespaced bool
	// name validates metadata.name.
	name func(string) []string
	// convert fills in defaults and converts; nil without an error means that the object has no
	// effect.
	convert func(any) (any, []convert.Problem)
}

var kinds = map[string]kindOf{
	"Service": {"", func() any { return new(core.Service) }, true, validation.IsDNS1123Label,
		func(o any) (any, []convert.Problem) { return service(o.(*core.Service)) }},
	"EndpointSlice": {"discovery.k8s.io", func() any { return new(discovery.EndpointSlice) }, true,
		validation.IsDNS1123Subdomain,
		func(o any) (any, []convert.Problem) { return slice(o.(*discovery.EndpointSlice)) }},
	"Node": {"", func() any { return new(core.Node) }, false, validation.IsDNS1123Subdomain,
		func(o any) (any, []convert.Problem) { return convert.Node(o.(*core.Node)) }},
	"ServiceCIDR": {"networking.k8s.io", func() any { return new(networking.ServiceCIDR) }, false,
		validation.IsDNS1123Subdomain,
		func(o any) (any, []convert.Problem) { return convert.ServiceCIDR(o.(*networking.ServiceCIDR)) }},
}

// object reads one object of a known kind.
func (f *file) object(n *yaml.Node, kind string, k kindOf, budget *int) {
	o := object{id: identify(n, kind, k), file: f.name, line: n.Line}
	if o.name.Name == "" {
		f.malformation(lineOf(n, "metadata.name"), convert.Problem{Kind: kind, Field: "metadata.name",
			What: "is missing or not a text"})
		return
	}
	api := k.new()
	c := checker{budget: *budget}
	c.check(n, reflect.TypeOf(api), "")
	*budget = c.budget
	if len(c.faults) == 0 {
		if err := decode(n, api, budget); err != nil {
			c.faults = []fault{{line: n.Line, what: "cannot be read: " + err.Error()}}
		}
	}
	for _, x := range c.faults {
		f.malformation(x.line, convert.Problem{Kind: kind, Name: o.name, Field: x.field, Value: x.value, What: x.what})
	}
	if len(c.faults) > 0 {
		return
	}
	meta := api.(interface{ SetNamespace(string) })
	meta.SetNamespace(o.name.Namespace)
	found := validateNames(o.id, k)
	value, more := k.convert(api)
	for _, p := range append(found, more...) {
		p.File, p.Line, p.Kind, p.Name = f.name, lineOf(n, p.Field), kind, o.name
		if p.Refused {
			p.Then = thenNewObject
			f.refused[o.id] = true
		}
		f.problems = append(f.problems, p)
	}
	if !f.refused[o.id] && !reflect.ValueOf(value).IsNil() {
		o.value = value
		f.objects = append(f.objects, o)
	}
}

func identify(n *yaml.Node, kind string, k kindOf) id {
	out := id{kind: kind}
	meta := child(n, "metadata")
	if meta == nil {
		return out
	}
	meta = deref(meta)
	out.name.Name = scalar(meta, "name")
	if k.namespaced {
		out.name.Namespace = scalar(meta, "namespace")
		out.name.Namespace = cmp.Or(out.name.Namespace, core.NamespaceDefault)
	}
	return out
}

// firstCounts drops the second copy of an object, and the copies of refused objects: an object that
// is written once well and once badly is in doubt as a whole.
func (f *file) firstCounts() {
	at := map[id]int{}
	keep := f.objects[:0]
	for _, o := range f.objects {
		if f.refused[o.id] {
			continue
		}
		if line, twice := at[o.id]; twice {
			f.problems = append(f.problems, twiceProblem(o, f.name, line))
			continue
		}
		at[o.id] = o.line
		keep = append(keep, o)
	}
	f.objects = keep
}

func twiceProblem(o object, firstFile string, firstLine int) convert.Problem {
	return convert.Problem{File: o.file, Line: o.line, Kind: o.kind, Name: o.name,
		What: fmt.Sprintf("is already in %s:%d", firstFile, firstLine), Then: "this one is ignored"}
}
