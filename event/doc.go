// Package event is the catalogue of what the proxy tells the cluster, and one such event as a plain value.
//
//	whoever notices ──event.DriftRepaired(…)──▶ func(event.Event) ──▶ source/kube.Publisher ──▶ API server
//
// One table holds every reason, action and text; docs/events.md is made from it. The package knows neither
// Kubernetes' types nor how an event is sent. Whoever notices something writes it to the log too, so without an
// API server nothing is lost.
package event

import "strings"

// Type says whether somebody should look at an event.
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

// Object is what an event regards.
type Object struct {
	// Kind is one of the constants above.
	Kind string
	// Namespace is "" for Nodes.
	Namespace, Name string
	// UID is the Node's name for Nodes (EV-01). For other kinds it is "" here: who sends the event asks.
	UID string
}

// Node returns the Node of that name as an object of events.
func Node(name string) Object { return Object{Kind: KindNode, Name: name, UID: name} }

// Service returns the Service of "ns/name" or, as rows name it, "ns/name:port".
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
	// Note says what happened, in a sentence that needs no context.
	Note string
	// Subject tells events of one reason about one object apart, such as two contested keys of a Service. It
	// is not sent.
	Subject string
}

// Series returns e without what may differ from one repetition to the next: events of equal series are the
// same thing happening again.
func (e Event) Series() Event {
	e.Note = ""
	return e
}

// String returns "Warning KubeProxyNodeNotFound, Node n1: …".
func (e Event) String() string {
	return string(e.Type) + " " + e.Reason + ", " + e.Regarding.String() + ": " + e.Note
}
