package kube

import (
	"bytes"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// negotiated decodes as the factory does, but Services and EndpointSlices in protobuf with half of
// the garbage: a large cluster's first lists are most of what a start decodes.
type negotiated struct{ runtime.NegotiatedSerializer }

// DecoderToVersion returns a decoder for one answer.
func (n negotiated) DecoderToVersion(d runtime.Decoder, gv runtime.GroupVersioner) runtime.Decoder {
	return &decoder{Decoder: n.NegotiatedSerializer.DecoderToVersion(d, gv)}
}

// decoder is for one goroutine.
type decoder struct {
	runtime.Decoder                 // for all other objects
	envelope        runtime.Unknown // its memory is used again
	endpoints       int             // of the last slice: the next one mostly has as many
}

// Decode decodes one object.
func (d *decoder) Decode(data []byte, gvk *schema.GroupVersionKind, into runtime.Object) (
	runtime.Object, *schema.GroupVersionKind, error) {
	if into == nil {
		if o := d.known(data); o != nil {
			kind := schema.FromAPIVersionAndKind(d.envelope.APIVersion, d.envelope.Kind)
			return o, &kind, nil
		}
	}
	return d.Decoder.Decode(data, gvk, into) // which also finds what is wrong with the data
}

// known returns the Service or EndpointSlice in data, or nil.
func (d *decoder) known(data []byte) apiObject {
	raw, ok := bytes.CutPrefix(data, []byte(protobufMagic))
	d.envelope = runtime.Unknown{Raw: d.envelope.Raw[:0]}
	if !ok || d.envelope.Unmarshal(raw) != nil {
		return nil
	}
	var o apiObject
	switch d.envelope.TypeMeta {
	case runtime.TypeMeta{APIVersion: "v1", Kind: "Service"}:
		o = &core.Service{}
	case runtime.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}:
		o = &discovery.EndpointSlice{Endpoints: make([]discovery.Endpoint, 0, d.endpoints)}
	default:
		return nil
	}
	if o.Unmarshal(d.envelope.Raw) != nil {
		return nil
	}
	if s, ok := o.(*discovery.EndpointSlice); ok {
		d.endpoints = len(s.Endpoints)
	}
	return o
}
