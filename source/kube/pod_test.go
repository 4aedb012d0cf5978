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

// A Pod is found by the slices of its own namespace, page by page; who may not list them says so.
func TestPodAddrs(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path+" "+r.URL.Query().Get("continue"))
		w.Header().Set("Content-Type", "application/json")
		const list = `{"kind":"EndpointSliceList","apiVersion":"discovery.k8s.io/v1","metadata":{"continue":%q},"items":[%s]}`
		switch {
		case !strings.HasPrefix(r.URL.Path, "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices"):
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"no","code":403}`)
		case r.URL.Query().Get("continue") == "":
			fmt.Fprintf(w, list, "more", `{"endpoints":[{"addresses":["10.1.1.11"],"targetRef":{"kind":"Pod","name":"web-1","namespace":"shop"}},{"addresses":["10.1.1.12"]}]}`)
		default:
			fmt.Fprintf(w, list, "", `{"endpoints":[{"addresses":["fd00::11"],"targetRef":{"kind":"Pod","name":"web-1"}},{"addresses":["10.1.1.13"],"targetRef":{"kind":"Node","name":"web-1"}}]}`)
		}
	}))
	defer server.Close()
	cfg := Config{Master: server.URL, Log: slog.New(slog.DiscardHandler)}
	for _, c := range []struct{ namespace, name, want string }{
		{"shop", "web-1", "[10.1.1.11 fd00::11] <nil>"},
		{"shop", "web-2", "[] <nil>"},
		{"vault", "web-1", "[] kube: list EndpointSlices of namespace vault: no"},
	} {
		asked = nil
		got, err := PodAddrs(context.Background(), cfg, cluster.Name{Namespace: c.namespace, Name: c.name})
		if text := fmt.Sprint(got, " ", err); text != c.want {
			t.Errorf("%s/%s: %s, want %s; asked for %v", c.namespace, c.name, text, c.want, asked)
		}
		for _, a := range asked {
			if !strings.Contains(a, "/namespaces/"+c.namespace+"/") {
				t.Errorf("%s/%s: asked for %s", c.namespace, c.name, a)
			}
		}
	}
}
