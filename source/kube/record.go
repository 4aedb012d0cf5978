package kube

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"kube-proxy/cluster"
)

// record stands for an API object where a Reflector expects one. A Reflector asks an object for its
// name and version, and a bookmark for its annotations; the other methods of [metav1.Object] are
// never called.
type record struct {
	metav1.Object // nil
	name          cluster.Name
	version       string
	annotations   map[string]string // of bookmarks only
	// value is the compact value, a *cluster.Service for instance; nil for objects that are not for
	// this proxy, deleted objects and bookmarks.
	value any
}

func (r *record) GetNamespace() string                 { return r.name.Namespace }
func (r *record) GetName() string                      { return r.name.Name }
func (r *record) GetResourceVersion() string           { return r.version }
func (r *record) GetAnnotations() map[string]string    { return r.annotations }
func (r *record) GetObjectKind() schema.ObjectKind     { return schema.EmptyObjectKind }
func (r *record) DeepCopyObject() runtime.Object       { return r }
func (l *recordList) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }
func (l *recordList) DeepCopyObject() runtime.Object   { return l }

// recordList is a LIST's answer, or one page of it. The field must have the name Items: the
// Reflector finds it by reflection.
type recordList struct {
	metav1.ListMeta
	Items []runtime.Object
}
