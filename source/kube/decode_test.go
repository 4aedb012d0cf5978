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

// A stream's decoder returns the record of what the factory's returns, for each object of a stream
// and in both encodings. Earlier records stay as they are.
func TestDecoderIsTheFactorys(t *testing.T) {
	factory := serializer.NewCodecFactory(newScheme()).WithoutConversion()
	for _, json := range []bool{false, true} {
		info := (&apiServer{json: json}).info()
		base := factory.DecoderToVersion(info.Serializer, nil)
		ours := negotiated{factory, services(), endpointSlices()}.DecoderToVersion(info.Serializer, nil)
		var before, want []*record
		for _, o := range []runtime.Object{sliceOf(3), sliceOf(0), sliceOf(40), sliceOf(2), testService("a", 80),
			&core.Node{}, testService("b", 443), sliceOf(1)} {
			data, err := runtime.Encode(info.Serializer, withKind(t, o))
			if err != nil {
				t.Fatal(err)
			}
			for n := range len(data) + 1 {
				a, aerr := runtime.Decode(base, data[:n])
				b, berr := runtime.Decode(ours, data[:n])
				if fmt.Sprint(aerr) != fmt.Sprint(berr) ||
					aerr == nil && !reflect.DeepEqual(recordOf(t, a), recordOf(t, b)) {
					t.Fatalf("json %t: the first %d of %d bytes: %+v, %v; want %+v, %v", json, n, len(data), b, berr, a,
						aerr)
				}
				if n == len(data) {
					before, want = append(before, recordOf(t, b)), append(want, recordOf(t, a))
				}
			}
		}
		for i := range before {
			if !reflect.DeepEqual(before[i], want[i]) {
				t.Errorf("json %t: object %d is now %+v; want %+v", json, i, before[i], want[i])
			}
		}
	}
}

// recordOf returns the record of an object, which a stream of its kind may send.
func recordOf(t *testing.T, o runtime.Object) *record {
	t.Helper()
	for _, r := range []*resource{services(), endpointSlices(), node("n1"), serviceCIDRs()} {
		if rec, err := r.check(o); err == nil {
			return rec
		}
	}
	t.Fatalf("no stream takes a %T", o)
	return nil
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

// BenchmarkDecodeSlice shows the garbage of a slice with ten endpoints; ours includes its record.
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
		"ours":    negotiated{factory, services(), endpointSlices()}.DecoderToVersion(info.Serializer, nil),
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
