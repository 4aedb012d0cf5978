package kube

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"kube-proxy/cluster"
	"kube-proxy/source/convert"
)

// encoded returns a list of services as a server sends it.
func encoded(t testing.TB, json bool, names ...string) []byte {
	t.Helper()
	list := &core.ServiceList{TypeMeta: metav1.TypeMeta{Kind: "ServiceList", APIVersion: "v1"},
		ListMeta: metav1.ListMeta{ResourceVersion: "77", Continue: "more", RemainingItemCount: new(int64(5))}}
	for _, n := range names {
		list.Items = append(list.Items, *testService(n, 80))
	}
	data, err := runtime.Encode((&apiServer{json: json}).info().Serializer, list)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func decodeNames(in io.Reader) (metav1.ListMeta, string, error) {
	var names []string
	meta, err := decodeList(in, services(), func(o apiObject) { names = append(names, o.GetName()) })
	return meta, strings.Join(names, " "), err
}

// Lists in both encodings are decoded, whatever pieces they arrive in; one that ends early is an
// error.
func TestDecodeList(t *testing.T) {
	for _, json := range []bool{true, false} {
		for _, names := range []string{"", "a", "a b c"} {
			data := encoded(t, json, strings.Fields(names)...)
			in, left, all := bytes.NewReader(data), 0, []string(nil)
			meta, err := decodeList(iotest.OneByteReader(in), services(), func(o apiObject) {
				all, left = append(all, o.GetName()), max(left, in.Len())
			})
			if len(all) > 1 && left < 50 { // all at once would take too much memory
				t.Errorf("json=%v: %d bytes had not arrived when the first object was taken", json, left)
			}
			got := strings.Join(all, " ")
			if err != nil || got != names || meta.ResourceVersion != "77" || meta.Continue != "more" ||
				*meta.RemainingItemCount != 5 {
				t.Errorf("json=%v %q: got %q, %+v, %v", json, names, got, meta, err)
			}
			end := len(bytes.TrimSpace(data))
			for n := range end {
				if _, _, err := decodeNames(bytes.NewReader(data[:n])); err == nil && !wholeFields(data, n, json) {
					t.Errorf("json=%v %q: the first %d of %d bytes are a list", json, names, n, end)
				}
			}
		}
	}
	if _, _, err := decodeNames(strings.NewReader("<html>")); err == nil ||
		!strings.HasPrefix(err.Error(), "kube: decode the list of services: ") {
		t.Errorf("a web page: %v", err)
	}
}

// A change that a stream reports before its initial events end counts after them. Several pages are
// one list.
func TestListing(t *testing.T) {
	facts := cluster.NewStore("n1")
	s := &store{resource: services(), reporter: convert.NewReporter(nil),
		sink: func(ev cluster.Event) { facts.Fold(ev) }}
	var pages []any
	for _, page := range []string{"+a +b +c", "", "+d ~a -b +e -e +e -c"} {
		l := &listing{}
		for _, event := range strings.Fields(page) {
			what := map[byte]watch.EventType{'+': watch.Added, '~': watch.Modified, '-': watch.Deleted}[event[0]]
			o := testService(event[1:], 80)
			if what == watch.Modified {
				o.Spec.Ports[0].Port = 81
			}
			l.take(what, s.resource.record(o))
		}
		pages = append(pages, &record{value: l})
	}
	for range 2 { // the second time, a list of what is known already
		if err := s.Replace(pages, ""); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, n := range facts.Names() {
			got = append(got, fmt.Sprint(n.Name, facts.View(n).Service.Ports[0].Port))
		}
		slices.Sort(got)
		if want := []string{"a81", "d80", "e80"}; !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
}

// wholeFields reports whether the cut is after the list itself, between the two empty fields that
// end the protobuf envelope.
func wholeFields(data []byte, n int, json bool) bool {
	const envelopeEnd = "\x1a\x00\x22\x00" // contentEncoding and contentType, both empty
	return !json && bytes.HasSuffix(data, []byte(envelopeEnd)) && len(data)-n <= len(envelopeEnd)
}

// FuzzDecodeList: whatever arrives, the answer is a list or an error.
func FuzzDecodeList(f *testing.F) {
	f.Add(encoded(f, true, "a", "b"))
	f.Add(encoded(f, false, "a", "b"))
	f.Add([]byte("k8s\x00\x12\xff\xff\xff\xff\xff\x1f"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<16 {
			return
		}
		meta, names, err := decodeNames(bytes.NewReader(data))
		again, namesAgain, errAgain := decodeNames(iotest.HalfReader(bytes.NewReader(data)))
		if (err == nil) != (errAgain == nil) || names != namesAgain || meta.ResourceVersion != again.ResourceVersion {
			t.Errorf("in pieces: %q %v, in one: %q %v", namesAgain, errAgain, names, err)
		}
	})
}
