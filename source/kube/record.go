package kube

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"kube-proxy/cluster"
	"kube-proxy/source/convert"
)

// record stands for an API object where a Reflector expects one. A Reflector reads the name and
// version of an object, and the annotations of a bookmark; it never calls the other methods of
// [metav1.Object].
type record struct {
	metav1.Object // nil
	kind          string
	name          cluster.Name
	version       string
	last          bool // of a bookmark: the initial events end here
	// value is the compact value, a *cluster.Service for instance; nil for objects that are not for
	// this proxy. A *listing stands for many objects.
	value    any
	problems []convert.Problem
}

func (r *record) GetNamespace() string                 { return r.name.Namespace }
func (r *record) GetName() string                      { return r.name.Name }
func (r *record) GetResourceVersion() string           { return r.version }
func (r *record) GetObjectKind() schema.ObjectKind     { return schema.EmptyObjectKind }
func (r *record) DeepCopyObject() runtime.Object       { return r }
func (l *recordList) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }
func (l *recordList) DeepCopyObject() runtime.Object   { return l }

// GetAnnotations returns the only annotation that a Reflector reads.
func (r *record) GetAnnotations() map[string]string {
	if !r.last {
		return nil
	}
	return map[string]string{metav1.InitialEventsAnnotationKey: "true"}
}

// recordList is a LIST's answer, or one page of it. The field must have the name Items: the
// Reflector finds it by reflection.
type recordList struct {
	metav1.ListMeta
	Items []runtime.Object // one record with a listing
}

// listing has the objects of a LIST, or of the initial events of a stream. A Reflector handles it
// as a single record: a record for each object would be a second list beside that of the store.
type listing struct {
	values []any          // of the objects
	faulty []cluster.Name // objects with problems
	later  []watch.Event  // from the first change of an object on that the stream reported
}

func (l *listing) take(what watch.EventType, rec *record) {
	switch {
	case what != watch.Added || len(l.later) > 0:
		l.later = append(l.later, watch.Event{Type: what, Object: rec})
	case rec.value != nil:
		l.values = append(l.values, rec.value)
	}
	if len(rec.problems) > 0 {
		l.faulty = append(l.faulty, rec.name)
	}
}
