package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // has client-go's metrics registered
)

// PR-11, CF-03, CF-04: the configured types are requested from the server, except what could not be
// read.
func TestContentTypes(t *testing.T) {
	const protobuf, json = "application/vnd.kubernetes.protobuf", "application/json"
	for _, c := range []struct{ contentType, acceptTypes, send, accept, ignored string }{
		{"", "", protobuf, protobuf + "," + json, ""},
		{protobuf, "", protobuf, protobuf + "," + json, ""},
		{json, "", json, json, ""},
		{protobuf, json, protobuf, json, ""},
		{json, protobuf, json, protobuf + "," + json, ""},
		{"", json + ";q=0.9, " + protobuf, protobuf, json + ";q=0.9," + protobuf, ""},
		{"application/cbor", "", protobuf, protobuf + "," + json, "application/cbor"},
		{"", "application/yaml,,application/cbor", protobuf, protobuf + "," + json,
			"application/yaml application/cbor"},
	} {
		t.Run(c.contentType+" "+c.acceptTypes, func(t *testing.T) {
			withServer(t, func(t *testing.T, r *rig) {
				r.api.put(testService("web", 80), testNode("n1", "192.0.2.1"))
				r.api.json = !strings.HasPrefix(c.accept, protobuf) // as a server answers a request for JSON first
				accepts := map[string]bool{}
				r.api.answer = func(req *http.Request) *metav1.Status {
					accepts[req.Header.Get("Accept")] = true
					return nil
				}
				cfg := r.config()
				cfg.ContentType, cfg.AcceptContentTypes = c.contentType, c.acceptTypes
				rest, err := cfg.RESTConfig()
				if err != nil || rest.ContentType != c.send || rest.AcceptContentTypes != c.accept {
					t.Errorf("sends %q, accepts %q, %v", rest.ContentType, rest.AcceptContentTypes, err)
				}
				r.startWith(cfg)
				r.wait("web:80 node:192.0.2.1")
				r.api.set(func() {
					for accept := range accepts {
						if types, _, _ := strings.Cut(accept, ";stream=watch"); !strings.HasPrefix(c.accept, types) {
							t.Errorf("the server was asked for %q", accept)
						}
					}
				})
				reported := r.log.Lines("content types")
				if (c.ignored != "") != (len(reported) == 1) || len(reported) == 1 && !strings.Contains(reported[0],
					c.ignored) {
					t.Errorf("log %q", reported)
				}
			})
		})
	}
}

// The annotation of S0 by which a Node chooses the mode: one GET, bounded by the caller's time.
func TestNodeAnnotation(t *testing.T) {
	t.Parallel()
	const name = "net.experimental.kubernetes.io/proxy-mode"
	var requests atomic.Int32
	hang := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		w.Header().Set("Content-Type", "application/json")
		node := core.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}}
		switch r.URL.Path {
		case "/api/v1/nodes/n1":
			node.Annotations = map[string]string{name: "userspace"}
		case "/api/v1/nodes/plain":
		case "/api/v1/nodes/hangs":
			<-hang
		case "/api/v1/nodes/busy":
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(429)
			_ = json.NewEncoder(w).Encode(failure(429, metav1.StatusReasonTooManyRequests, "busy"))
			return
		default:
			w.WriteHeader(404)
			_ = json.NewEncoder(w).Encode(failure(404, metav1.StatusReasonNotFound, "no such Node"))
			return
		}
		_ = json.NewEncoder(w).Encode(node)
	}))
	defer server.Close()
	defer close(hang)
	for _, c := range []struct{ node, want, err string }{
		{"n1", "userspace", ""},
		{"plain", "", ""},
		{"gone", "", "kube: read annotation " + name + " of Node gone from " + server.URL + ": no such Node"},
		{"busy", "", "busy"},
		{"hangs", "", "context deadline exceeded"},
		{"", "", "the name of this node is not known"},
	} {
		requests.Store(0)
		within := time.Minute
		if c.node == "hangs" {
			within = 500 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), within)
		got, err := NodeAnnotation(ctx, Config{Master: server.URL, NodeName: c.node}, name)
		cancel()
		if got != c.want || (c.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %q, %v; want %q, %s", c.node, got, err, c.want, c.err)
		}
		if c.node != "" && requests.Load() != 1 {
			t.Errorf("%s: %d requests", c.node, requests.Load())
		}
	}
	if _, err := NodeAnnotation(t.Context(), Config{Kubeconfig: "/does/not/exist", NodeName: "n1"}, name); err == nil ||
		!strings.Contains(err.Error(), "/does/not/exist") {
		t.Errorf("without a kubeconfig: %v", err)
	}
}

// PR-12: a token file is read for each request, not once for all.
func TestTokenFile(t *testing.T) {
	config := writeKubeconfig(t, "https://api.example:6443", nil, "good\n")
	rest, err := Config{Kubeconfig: config, NodeName: "n1"}.RESTConfig()
	if err != nil || rest.BearerTokenFile != filepath.Join(filepath.Dir(config), "token") {
		t.Errorf("the token's file is %q, %v", rest.BearerTokenFile, err)
	}
}

// PR-12: HTTP_PROXY counts. The environment is read once in a process, so this test is two of them.
func TestEnvironment(t *testing.T) {
	const inside = "KUBE_TEST_MASTER"
	if master := os.Getenv(inside); master != "" {
		cfg := Config{Master: master, NodeName: "n1"}
		if got, err := NodeAnnotation(t.Context(), cfg, "a"); err != nil || got != "through the proxy" {
			t.Fatalf("%q, %v", got, err)
		}
		return
	}
	t.Parallel()
	var asked atomic.Value
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r.URL.String())
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(core.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"a": "through the proxy"}}})
	}))
	defer proxy.Close()
	cmd := exec.Command(os.Args[0], "-test.run=^TestEnvironment$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"=http://api.example:6443", "HTTP_PROXY="+proxy.URL, "http_proxy="+proxy.URL,
		"NO_PROXY=", "no_proxy=")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestEnvironment") {
		t.Fatalf("%v\n%s", err, out)
	}
	if want := "http://api.example:6443/api/v1/nodes/n1"; asked.Load() != want {
		t.Errorf("the proxy saw %q, want %q", asked.Load(), want)
	}
}

// MT-21: LISTs count in the latency of requests, though their answers stream.
func TestListLatency(t *testing.T) {
	withServer(t, func(t *testing.T, r *rig) {
		r.api.watchList, r.api.page = false, 500
		r.api.put(testService("web", 80), testNode("n1", "192.0.2.1"), testCIDR("10.96.0.0/16"))
		cfg := r.config()
		cfg.Master = "http://192.0.2.9:6443" // of this test alone
		r.startWith(cfg)
		r.wait("web:80 node:192.0.2.1 cidr:10.96.0.0/16")
		measured := func() uint64 { return latencies(t, "192.0.2.9:6443") }
		r.until(func() bool { return measured() >= 4 }, func() string {
			return fmt.Sprintf("%d requests were measured, of at least 4", measured())
		})
	})
}

// latencies is how many requests to a host rest_client_request_duration_seconds counts.
func latencies(t *testing.T, host string) (n uint64) {
	all, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range all {
		if family.GetName() != "rest_client_request_duration_seconds" {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["host"] == host && labels["verb"] == "GET" {
				n += m.GetHistogram().GetSampleCount()
			}
		}
	}
	return n
}
