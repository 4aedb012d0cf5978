package kube

import (
	"fmt"
	"reflect"
	"testing"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// sliceOf returns an EndpointSlice of n endpoints, in which each optional field is there at times.
func sliceOf(n int) *discovery.EndpointSlice {
	s := testSlice("web", fmt.Sprint("s-", n))
	s.Endpoints = nil
	for i := range n {
		e := discovery.Endpoint{Addresses: []string{fmt.Sprintf("192.0.2.%d", i)}}
		if i%2 == 0 {
			e.Conditions.Ready, e.NodeName, e.Zone = new(i%4 == 0), new(fmt.Sprint("n", i)), new("z")
			e.Hints = &discovery.EndpointHints{ForZones: []discovery.ForZone{{Name: "z"}}}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// A stream's decoder gives what the factory's does, for each object of a stream and in both
// encodings. Objects that it gave before stay as they are.
func TestDecoderIsTheFactorys(t *testing.T) {
	factory := serializer.NewCodecFactory(newScheme()).WithoutConversion()
	for _, json := range []bool{false, true} {
		info := (&apiServer{json: json}).info()
		base := factory.DecoderToVersion(info.Serializer, nil)
		ours := negotiated{factory}.DecoderToVersion(info.Serializer, nil)
		var before []runtime.Object
		var want []runtime.Object
		for _, o := range []runtime.Object{sliceOf(3), sliceOf(0), sliceOf(40), sliceOf(2), testService("a", 80),
			&core.Node{}, testService("b", 443), sliceOf(1)} {
			data, err := runtime.Encode(info.Serializer, withKind(t, o))
			if err != nil {
				t.Fatal(err)
			}
			for n := range len(data) + 1 {
				a, aerr := runtime.Decode(base, data[:n])
				b, berr := runtime.Decode(ours, data[:n])
				if fmt.Sprint(aerr) != fmt.Sprint(berr) || aerr == nil && !equal(a, b) {
					t.Fatalf("json %t: the first %d of %d bytes: %+v, %v; want %+v, %v", json, n, len(data), b, berr, a,
						aerr)
				}
				if n == len(data) {
					before, want = append(before, b), append(want, a)
				}
			}
		}
		for i := range before {
			if !equal(before[i], want[i]) {
				t.Errorf("json %t: object %d is now %+v; want %+v", json, i, before[i], want[i])
			}
		}
	}
}

// equal ignores whether an empty list is nil.
func equal(a, b runtime.Object) bool {
	for _, o := range []runtime.Object{a, b} {
		if s, ok := o.(*discovery.EndpointSlice); ok && len(s.Endpoints) == 0 {
			s.Endpoints = nil
		}
	}
	return reflect.DeepEqual(a, b)
}

func withKind(t *testing.T, o runtime.Object) runtime.Object {
	t.Helper()
	kinds, _, err := newScheme().ObjectKinds(o)
	if err != nil {
		t.Fatal(err)
	}
	o.GetObjectKind().SetGroupVersionKind(kinds[0])
	return o
}

// BenchmarkDecodeSlice shows the garbage of a slice with ten endpoints.
func BenchmarkDecodeSlice(b *testing.B) {
	info := (&apiServer{}).info()
	slice := sliceOf(10)
	slice.APIVersion, slice.Kind = "discovery.k8s.io/v1", "EndpointSlice"
	data, err := runtime.Encode(info.Serializer, slice)
	if err != nil {
		b.Fatal(err)
	}
	factory := serializer.NewCodecFactory(newScheme()).WithoutConversion()
	for name, d := range map[string]runtime.Decoder{
		"factory": factory.DecoderToVersion(info.Serializer, nil),
		"ours":    negotiated{factory}.DecoderToVersion(info.Serializer, nil),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := runtime.Decode(d, data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
