package kube

import (
	"fmt"
	"reflect"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"kube-proxy/cluster"
	"kube-proxy/source/convert"
)

// apiObject is an API object of one of our four kinds, as its generated code makes it.
type apiObject interface {
	runtime.Object
	metav1.Object
	Unmarshal([]byte) error
	Reset()
}

// resource is all that is particular to one of the four.
type resource struct {
	plural, kind string
	version      schema.GroupVersion
	// labels and field select on the server's side.
	labels, field string
	// object is the name of the only object that field selects.
	object string
	// optional: the API may be absent or forbidden, and then the proxy does without (SV-03).
	optional bool

	typ     reflect.Type
	convert func(apiObject) (any, []convert.Problem)
	listed  func(values []any) cluster.Event

	client rest.Interface
	progress
}

func services() *resource {
	return &resource{
		plural: "services", kind: "Service", version: core.SchemeGroupVersion, labels: convert.ServiceSelector,
		typ:     reflect.TypeFor[core.Service](),
		convert: converter(convert.Service),
		listed:  func(v []any) cluster.Event { return cluster.ServicesListed{Services: typed[cluster.Service](v)} },
	}
}

func endpointSlices() *resource {
	return &resource{
		plural: "endpointslices", kind: "EndpointSlice", version: discovery.SchemeGroupVersion,
		labels:  convert.SliceSelector,
		typ:     reflect.TypeFor[discovery.EndpointSlice](),
		convert: converter(convert.Slice),
		listed:  func(v []any) cluster.Event { return cluster.SlicesListed{Slices: typed[cluster.Slice](v)} },
	}
}

// node is the one Node of that name. A list without it says that the Node does not exist.
func node(name string) *resource {
	return &resource{
		plural: leader, kind: "Node", version: core.SchemeGroupVersion, object: name,
		field:   fields.OneTermEqualSelector(metav1.ObjectNameField, name).String(),
		typ:     reflect.TypeFor[core.Node](),
		convert: converter(convert.Node),
		listed: func(values []any) cluster.Event {
			for _, n := range typed[cluster.Node](values) {
				if n.Name == name {
					return cluster.NodeSet{Node: n}
				}
			}
			return cluster.NodeGone{Name: name}
		},
	}
}

func serviceCIDRs() *resource {
	return &resource{
		plural: "servicecidrs", kind: "ServiceCIDR", version: networking.SchemeGroupVersion, optional: true,
		typ:     reflect.TypeFor[networking.ServiceCIDR](),
		convert: converter(convert.ServiceCIDR),
		listed:  func(v []any) cluster.Event { return cluster.CIDRsListed{CIDRs: typed[cluster.ServiceCIDR](v)} },
	}
}

// converter makes a function of one kind fit any kind. A nil value becomes an untyped nil.
func converter[In any, Out any](f func(*In) (*Out, []convert.Problem)) func(apiObject) (any, []convert.Problem) {
	return func(o apiObject) (any, []convert.Problem) {
		out, problems := f(any(o).(*In))
		if out == nil {
			return nil, problems
		}
		return out, problems
	}
}

func typed[T any](values []any) []*T {
	out := make([]*T, 0, len(values))
	for _, v := range values {
		out = append(out, v.(*T))
	}
	return out
}

// new returns an empty object.
func (r *resource) new() apiObject { return reflect.New(r.typ).Interface().(apiObject) }

// record converts an API object.
func (r *resource) record(o apiObject) *record {
	rec := &record{kind: r.kind, version: o.GetResourceVersion(),
		last: o.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"}
	rec.value, rec.problems = r.convert(o)
	switch v := rec.value.(type) { // share the strings of the value
	case *cluster.Service:
		rec.name = v.Name
	case *cluster.Slice:
		rec.name = v.Name
	default:
		rec.name = cluster.Name{Namespace: o.GetNamespace(), Name: o.GetName()}
	}
	return rec
}

// check returns the record of a stream's object. It fails if the object is of another kind than
// was requested.
func (r *resource) check(o runtime.Object) (*record, error) {
	switch o := o.(type) {
	case *record:
		if o.kind == r.kind {
			return o, nil
		}
		return nil, fmt.Errorf("kube: watch %s: the API server sent a %s", r.plural, o.kind)
	case apiObject:
		if reflect.TypeOf(o).Elem() == r.typ {
			return r.record(o), nil
		}
	}
	return nil, fmt.Errorf("kube: watch %s: the API server sent a %T", r.plural, o)
}
