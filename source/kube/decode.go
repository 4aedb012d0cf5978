package kube

import (
	"bytes"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// negotiated decodes as the factory does, but Services and EndpointSlices in protobuf become
// records at once, in memory that is used again: a large cluster's first lists are most of what a
// start decodes.
type negotiated struct {
	runtime.NegotiatedSerializer
	services, slices *resource
}

// DecoderToVersion returns a decoder for one answer.
func (n negotiated) DecoderToVersion(d runtime.Decoder, gv runtime.GroupVersioner) runtime.Decoder {
	return &decoder{negotiated: n, Decoder: n.NegotiatedSerializer.DecoderToVersion(d, gv)}
}

// decoder is for one goroutine.
type decoder struct {
	negotiated
	runtime.Decoder // for all other objects
	// The memory of these is used again.
	envelope runtime.Unknown
	service  core.Service
	slice    discovery.EndpointSlice
}

// Decode decodes one object.
func (d *decoder) Decode(data []byte, gvk *schema.GroupVersionKind, into runtime.Object) (
	runtime.Object, *schema.GroupVersionKind, error) {
	if into == nil {
		if rec := d.known(data); rec != nil {
			kind := schema.FromAPIVersionAndKind(d.envelope.APIVersion, d.envelope.Kind)
			return rec, &kind, nil
		}
	}
	return d.Decoder.Decode(data, gvk, into) // which also finds what is wrong with the data
}

// known returns the record of the Service or EndpointSlice in data, or nil.
func (d *decoder) known(data []byte) *record {
	raw, ok := bytes.CutPrefix(data, []byte(protobufMagic))
	d.envelope = runtime.Unknown{Raw: d.envelope.Raw[:0]}
	if !ok || d.envelope.Unmarshal(raw) != nil {
		return nil
	}
	var o apiObject
	var r *resource
	switch d.envelope.TypeMeta {
	case runtime.TypeMeta{APIVersion: "v1", Kind: "Service"}:
		d.service.Reset()
		o, r = &d.service, d.services
	case runtime.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}:
		d.slice = discovery.EndpointSlice{Endpoints: d.slice.Endpoints[:0]}
		o, r = &d.slice, d.slices
	default:
		return nil
	}
	if o.Unmarshal(d.envelope.Raw) != nil {
		return nil
	}
	return r.record(o)
}
