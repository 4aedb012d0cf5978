package scenario

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"kube-proxy/cluster"
	"kube-proxy/source/manifests"
)

// Events returns the proxy's events for a change, in the order of the documents, and the problems
// reported for faults in them. Applying an object that is not for this proxy (SV-01) deletes the
// one of that name; one with a fault that makes it useless leaves the previous one.
func (c Change) Events() (events []cluster.Event, problems []string, err error) {
	if c.Unreachable != nil {
		return []cluster.Event{cluster.UnreachableSet{Unreachable: *c.Unreachable}}, nil, nil
	}
	if c.YAML == "" {
		ev, err := c.Delete.gone()
		return []cluster.Event{ev}, nil, err
	}
	for doc := range documents(c.YAML) {
		objects, reported := manifests.Parse("", []byte(doc))
		for _, p := range reported {
			p.Line = 0 // it would be relative to the document
			problems = append(problems, p.String())
		}
		evs := eventsOf(objects)
		if len(evs) == 0 {
			ref, err := identify(doc)
			if err != nil {
				return nil, nil, err
			}
			if len(reported) > 0 {
				continue
			}
			ev, err := ref.gone()
			if err != nil {
				return nil, nil, err
			}
			evs = []cluster.Event{ev}
		}
		events = append(events, evs...)
	}
	return events, problems, nil
}

// eventsOf returns one event for each object.
func eventsOf(o manifests.Objects) []cluster.Event {
	var out []cluster.Event
	for _, v := range o.Services {
		out = append(out, cluster.ServiceSet{Service: v})
	}
	for _, v := range o.Slices {
		out = append(out, cluster.SliceSet{Slice: v})
	}
	for _, v := range o.Nodes {
		out = append(out, cluster.NodeSet{Node: v})
	}
	for _, v := range o.CIDRs {
		out = append(out, cluster.CIDRSet{CIDR: v})
	}
	return out
}

// documents iterates over the YAML documents of a text that hold anything.
func documents(text string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for doc := range strings.SplitSeq("\n"+text, "\n---\n") {
			if strings.TrimSpace(doc) != "" && !yield(doc) {
				return
			}
		}
	}
}

// identify names the object of a document.
func identify(doc string) (ObjectRef, error) {
	var o struct {
		Kind     string
		Metadata struct{ Namespace, Name string }
	}
	if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
		return ObjectRef{}, fmt.Errorf("read an object's name: %w", err)
	}
	ref := ObjectRef{Kind: o.Kind, Namespace: o.Metadata.Namespace, Name: o.Metadata.Name}
	if ns, ok := namespaced[ref.Kind]; !ok || ref.Name == "" || ns != (ref.Namespace != "") {
		return ref, fmt.Errorf("object %s: want a Service, EndpointSlice, Node or ServiceCIDR with a name and, "+
			"where its kind has one, a namespace", ref)
	}
	return ref, nil
}

// gone is the event of the object's deletion.
func (r ObjectRef) gone() (cluster.Event, error) {
	name := cluster.Name{Namespace: r.Namespace, Name: r.Name}
	switch r.Kind {
	case "Service":
		return cluster.ServiceGone{Name: name}, nil
	case "EndpointSlice":
		return cluster.SliceGone{Name: name}, nil
	case "Node":
		return cluster.NodeGone{Name: r.Name}, nil
	case "ServiceCIDR":
		return cluster.CIDRGone{Name: r.Name}, nil
	}
	return nil, fmt.Errorf("object %s: unknown kind", r)
}
