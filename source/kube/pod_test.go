package kube

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"kube-proxy/cluster"
)

// A Pod is found by the slices of its own namespace, or without one by those of all, page by page;
// who may not list them says so. No slice speaks for a Pod of another namespace.
func TestPods(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path+" "+r.URL.Query().Get("continue"))
		w.Header().Set("Content-Type", "application/json")
		const list = `{"kind":"EndpointSliceList","apiVersion":"discovery.k8s.io/v1","metadata":{"continue":%q},` +
			`"items":[%s]}`
		switch {
		case r.URL.Path == "/apis/discovery.k8s.io/v1/endpointslices":
			fmt.Fprintf(w, list, "",
				`{"metadata":{"namespace":"shop"},"endpoints":[{"addresses":["10.1.1.11"],"targetRef":{"kind":"Pod","name":"web-1"}}]},
				{"metadata":{"namespace":"blog"},"endpoints":[{"addresses":["10.1.2.11"],"targetRef":{"kind":"Pod","name":"web-1","namespace":"blog"}},
					{"addresses":["10.9.9.9"],"targetRef":{"kind":"Pod","name":"web-1","namespace":"shop"}}]}`)
		case strings.HasPrefix(r.URL.Path, "/apis/discovery.k8s.io/v1/namespaces/huge/"):
			fmt.Fprintf(w, list, "more", "")
		case !strings.HasPrefix(r.URL.Path, "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices"):
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden",`+
				`"message":"no","code":403}`)
		case r.URL.Query().Get("continue") == "":
			fmt.Fprintf(w, list, "more", `{"metadata":{"namespace":"shop"},"endpoints":[{"addresses":["10.1.1.11"],`+
				`"targetRef":{"kind":"Pod","name":"web-1","namespace":"shop"}},{"addresses":["10.1.1.12"]}]}`)
		default:
			fmt.Fprintf(w, list, "", `{"metadata":{"namespace":"shop"},"endpoints":[{"addresses":["fd00::11"],`+
				`"targetRef":{"kind":"Pod","name":"web-1"}},{"addresses":["10.1.1.13"],"targetRef":{"kind":"Node",`+
				`"name":"web-1"}}]}`)
		}
	}))
	defer server.Close()
	cfg := Config{Master: server.URL, Log: slog.New(slog.DiscardHandler)}
	for _, c := range []struct{ namespace, name, want string }{
		{"shop", "web-1", "map[shop/web-1:[10.1.1.11 fd00::11]] <nil>"},
		{"shop", "web-2", "map[] <nil>"},
		{"", "web-1", "map[blog/web-1:[10.1.2.11] shop/web-1:[10.1.1.11]] <nil>"},
		{"", "web-2", "map[] <nil>"},
		{"huge", "web-1", "map[] kube: namespace huge has more than 5000 EndpointSlices, and the first do not name it"},
		{"vault", "web-1", "map[] kube: list EndpointSlices of namespace vault: no"},
	} {
		asked = nil
		got, err := Pods(context.Background(), cfg, cluster.Name{Namespace: c.namespace, Name: c.name})
		if text := fmt.Sprint(got, " ", err); text != c.want {
			t.Errorf("%s/%s: %s, want %s; asked for %v", c.namespace, c.name, text, c.want, asked)
		}
		for _, a := range asked {
			if c.namespace != "" && !strings.Contains(a, "/namespaces/"+c.namespace+"/") {
				t.Errorf("%s/%s: asked for %s", c.namespace, c.name, a)
			}
		}
	}
}
