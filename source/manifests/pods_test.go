package manifests

import (
	"fmt"
	"testing"
	"testing/fstest"

	"kube-proxy/cluster"
)

// A Pod is found by itself, in a list too, and by an endpoint that it is; of another namespace it
// is another, and without one it is each.
func TestPods(t *testing.T) {
	fsys := fstest.MapFS{
		"a.yaml": {Data: []byte("kind: Pod\nmetadata: {name: web-1, namespace: shop}\n" +
			"status: {podIP: 10.1.1.11, podIPs: [{ip: 10.1.1.11}, {ip: 'fd00::11'}]}\n---\nnot: [a, mapping\n")},
		"b.yaml": {Data: []byte("kind: List\nitems:\n- kind: Pod\n  metadata: {name: lone}\n" +
			"  status: {podIP: 10.1.1.9}\n- 7\n")},
		"list.json": {Data: []byte(`{"kind": "PodList", "items": [{"kind": "Pod", "metadata": {"name": "lone"}, ` +
			`"status": {"podIP": "10.1.1.9"}}]}`)},
		"slice.yaml": {Data: []byte("kind: EndpointSlice\nmetadata: {name: s, namespace: shop}\nendpoints:\n" +
			"- addresses: [10.1.1.12]\n  targetRef: {kind: Pod, name: web-2}\n- addresses: [10.1.1.13]\n" +
			"  targetRef: {kind: Node, name: web-2}\n- addresses: [rubbish]\n  targetRef: {kind: Pod, name: web-2}\n")},
		"blog.yaml": {
			Data: []byte("kind: Pod\nmetadata: {name: web-1, namespace: blog}\nstatus: {podIP: 10.1.2.11}\n")},
		"other.txt": {
			Data: []byte("kind: Pod\nmetadata: {name: web-2, namespace: shop}\nstatus: {podIP: 10.9.9.9}\n")},
		".hide.yaml": {
			Data: []byte("kind: Pod\nmetadata: {name: web-2, namespace: shop}\nstatus: {podIP: 10.9.9.9}\n")},
		"broken.yaml": {Data: []byte("kind: Pod\nmetadata: 7\n")},
	}
	for pod, want := range map[cluster.Name]string{
		{Namespace: "shop", Name: "web-1"}:    "map[shop/web-1:[10.1.1.11 fd00::11]]",
		{Namespace: "default", Name: "lone"}:  "map[default/lone:[10.1.1.9]]",
		{Namespace: "shop", Name: "web-2"}:    "map[shop/web-2:[10.1.1.12]]",
		{Namespace: "default", Name: "web-1"}: "map[]",
		{Name: "lone"}:                        "map[default/lone:[10.1.1.9]]",
		{Name: "web-1"}:                       "map[blog/web-1:[10.1.2.11] shop/web-1:[10.1.1.11 fd00::11]]",
		{Name: "ghost"}:                       "map[]",
	} {
		got, err := Pods(fsys, pod)
		if err != nil || fmt.Sprint(got) != want {
			t.Errorf("%s: %v, %v; want %s", pod, got, err, want)
		}
	}
}
