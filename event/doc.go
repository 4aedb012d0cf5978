// Package event is the catalogue of the events that the proxy sends to the cluster, and an event as
// a plain value.
//
//	a component ──event.DriftRepaired(…)──▶ func(event.Event) ──▶ source/kube.Publisher ──▶ API server
//
// One table holds every reason, action and text; docs/events.md is generated from it. The package
// depends neither on Kubernetes' types nor on the way in which an event is sent. Components log the
// same facts, so nothing is lost without an API server.
package event

import "strings"

// Type is the severity of an event.
type Type string

// The two types of the events API.
const (
	Normal  Type = "Normal"
	Warning Type = "Warning"
)

// The kinds of objects that events regard.
const (
	KindNode          = "Node"
	KindService       = "Service"
	KindEndpointSlice = "EndpointSlice"
)

// Object is the object that an event regards.
type Object struct {
	// Kind is one of the constants above.
	Kind string
	// Namespace is "" for Nodes.
	Namespace, Name string
	// UID is the Node's name for Nodes (EV-01). For other kinds it is ""; the sender looks it up.
	UID string
}

// Node returns the Node of that name as an object of events.
func Node(name string) Object { return Object{Kind: KindNode, Name: name, UID: name} }

// Service returns the Service of "ns/name" or "ns/name:port".
func Service(name string) Object {
	namespace, rest, _ := strings.Cut(name, "/")
	rest, _, _ = strings.Cut(rest, ":")
	return Object{Kind: KindService, Namespace: namespace, Name: rest}
}

// String returns "Node n1" or "Service shop/web".
func (o Object) String() string {
	if o.Namespace == "" {
		return o.Kind + " " + o.Name
	}
	return o.Kind + " " + o.Namespace + "/" + o.Name
}

// Event is one thing that happened. It is comparable.
type Event struct {
	Type           Type
	Reason, Action string
	Regarding      Object
	// Note is a sentence that needs no context.
	Note string
	// Subject distinguishes events of one reason about one object, such as two keys of a Service in
	// conflict. It is not sent.
	Subject string
}

// Series returns e without the parts that may differ between repetitions. Events of equal series
// are repetitions.
func (e Event) Series() Event {
	e.Note = ""
	return e
}

// String returns "Warning KubeProxyNodeNotFound, Node n1: …".
func (e Event) String() string {
	return string(e.Type) + " " + e.Reason + ", " + e.Regarding.String() + ": " + e.Note
}
