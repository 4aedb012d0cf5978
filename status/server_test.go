package status_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"kube-proxy/status"
	"kube-proxy/test/logtest"
)

var anyPort = netip.MustParseAddrPort("127.0.0.1:0")

// serve runs a server until the test ends, and returns its URL. It calls the func with the server
// before it runs.
func serve(t *testing.T, cfg status.ServerConfig, with func(*status.Server)) string {
	t.Helper()
	if !cfg.Addr.IsValid() {
		cfg.Addr = anyPort
	}
	cfg.HardFail = true
	s := start(t, cfg)
	if with != nil {
		with(s)
	}
	return "http://" + waitFor(t, s, func(a net.Addr) bool { return a != nil }).String()
}

func start(t *testing.T, cfg status.ServerConfig) *status.Server {
	t.Helper()
	if cfg.Metrics == nil {
		cfg.Metrics = status.FillMetrics(status.MetricsConfig{Mode: cfg.Mode})
	}
	if cfg.Log == nil {
		cfg.Log = discard
	}
	s := status.FillServer(cfg)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if a := s.Addr(); a != nil {
			t.Errorf("ended, and still on %v", a)
		}
	})
	return s
}

// waitFor waits until the server's address satisfies good.
func waitFor(t *testing.T, s *status.Server, good func(net.Addr) bool) net.Addr {
	t.Helper()
	for limit := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		if a := s.Addr(); good(a) {
			return a
		}
		if time.Now().After(limit) {
			t.Fatalf("the server is on %v", s.Addr())
		}
	}
}

// HT-20 to HT-24, HT-27: status, headers and body of each path.
func TestAnswers(t *testing.T) {
	var mode atomic.Pointer[any]
	set := func(v any) { mode.Store(&v) }
	set("old")
	url := serve(t, status.ServerConfig{
		Mode: "nftables", Version: "v1.37.2",
		Config: func() (any, error) { return map[string]any{"mode": *mode.Load()}, nil },
	}, nil)
	const text, jsonType = "text/plain; charset=utf-8", "application/json"
	for _, x := range []struct {
		row, path string
		code      int
		typ, body string
	}{
		{"HT-20", "/healthz", 200, text, "ok"},
		{"HT-20", "/healthz?verbose", 200, text, "[+]ping ok\nhealthz check passed\n"},
		{"HT-20", "/healthz/ping", 200, text, "ok"},
		{"HT-23", "/proxyMode", 200, text, "nftables"},
		{"HT-24", "/configz", 200, jsonType, `{"kubeproxy.config.k8s.io":{"mode":"old"}}`},
		{"HT-27", "/", 404, text, "404 page not found\n"},
		{"HT-27", "/healthz/", 404, text, "404 page not found\n"},
		{"HT-27", "/livez", 404, text, "404 page not found\n"},
		{"HT-27", "/proxymode", 404, text, "404 page not found\n"},
		{"HT-26", "/debug/pprof", 404, text, "404 page not found\n"},
		{"HT-26", "/debug/pprof/", 404, text, "404 page not found\n"},
		{"HT-26", "/debug/pprof/heap", 404, text, "404 page not found\n"},
		{"HT-26", "/debug/flags/v", 404, text, "404 page not found\n"},
	} {
		res, body := get(t, url+x.path)
		if res.StatusCode != x.code || res.Header.Get("Content-Type") != x.typ || body != x.body ||
			res.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %s: %s, %v\n%q, want %d, %s\n%q", x.row, x.path, res.Status, res.Header, body, x.code, x.typ,
				x.body)
		}
	}
	set("new")
	if _, body := get(t, url+"/configz"); body != `{"kubeproxy.config.k8s.io":{"mode":"new"}}` {
		t.Errorf("HT-24 after a reload: %s", body)
	}
	set(func() {}) // no JSON
	if res, body := get(t, url+"/configz"); res.StatusCode != 500 || !strings.Contains(body, "cannot be shown") {
		t.Errorf("HT-24, a configuration that is no JSON: %s %s", res.Status, body)
	}
}

// HT-21: text, OpenMetrics on request, and compressed.
func TestMetricsFormats(t *testing.T) {
	url := serve(t, status.ServerConfig{Mode: "nftables"}, nil) + "/metrics"
	res, body := get(t, url)
	if typ := res.Header.Get("Content-Type"); !strings.HasPrefix(typ, "text/plain; version=0.0.4") {
		t.Errorf("without Accept: %s", typ)
	}
	if !strings.Contains(body, "# TYPE kubeproxy_mode_info gauge\n") {
		t.Errorf("text:\n%.300s", body)
	}
	res, body = get(t, url, "Accept", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
	if typ := res.Header.Get("Content-Type"); !strings.HasPrefix(typ, "application/openmetrics-text; version=1.0.0") {
		t.Errorf("asked for OpenMetrics: %s", typ)
	}
	if !strings.HasSuffix(body, "# EOF\n") {
		t.Errorf("OpenMetrics ends in %q", body[max(0, len(body)-50):])
	}
	res, zipped := get(t, url, "Accept-Encoding", "gzip")
	if res.Header.Get("Content-Encoding") != "gzip" || len(zipped) > len(body)/3 {
		t.Errorf("asked for gzip: %q, %d bytes of %d", res.Header.Get("Content-Encoding"), len(zipped), len(body))
	}
}

// HT-22: the checks of /healthz are counted.
func TestSLIs(t *testing.T) {
	url := serve(t, status.ServerConfig{Mode: "nftables"}, nil)
	req, _ := http.NewRequest("DELETE", url+"/metrics/slis", nil)
	if res, err := http.DefaultClient.Do(req); err != nil || res.StatusCode != 200 {
		t.Fatalf("reset: %v, %v", res, err)
	}
	for range 3 {
		get(t, url+"/healthz")
	}
	_, body := get(t, url+"/metrics/slis")
	parser := expfmt.NewTextParser(model.LegacyValidation)
	all, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if n := all["kubernetes_healthchecks_total"].GetMetric(); len(n) != 1 || n[0].Counter.GetValue() != 3 {
		t.Errorf("kubernetes_healthchecks_total %v", n)
	}
	if n := all["kubernetes_healthcheck"].GetMetric(); len(n) != 1 || n[0].Gauge.GetValue() != 1 {
		t.Errorf("kubernetes_healthcheck %v", n)
	}
}

// A feature gate that is off takes its page away, and /statusz does not name it.
func TestPagesOff(t *testing.T) {
	url := serve(t, status.ServerConfig{
		Mode: "nftables", Off: []string{"/flagz", "/metrics/slis"}, Machine: map[string]string{"Machine id": "m1",
			"Boot id": "b1"},
	}, nil)
	for path, code := range map[string]int{"/flagz": 404, "/metrics/slis": 404, "/statusz": 200, "/metrics": 200} {
		if res, body := get(t, url+path); res.StatusCode != code {
			t.Errorf("%s: %s, want %d\n%s", path, res.Status, code, body)
		}
	}
	if _, body := get(t, url+"/statusz"); strings.Contains(body, "/flagz") || strings.Contains(body, "slis") ||
		!strings.Contains(body, "\nBoot id: b1\nMachine id: m1\n") {
		t.Errorf("/statusz:\n%s", body)
	}
	if res, _ := get(t, serve(t, status.ServerConfig{Mode: "nftables", Off: []string{"/statusz"}}, nil)+
		"/statusz"); res.StatusCode != 404 {
		t.Errorf("/statusz: %s, want 404", res.Status)
	}
}

// HT-25: text for people, JSON for clients that request a version, else 406.
func TestPages(t *testing.T) {
	started := time.Now().Add(-3*time.Hour - 25*time.Minute - 2*time.Second)
	url := serve(t, status.ServerConfig{
		Mode: "nftables", Version: "v1.37.2", Started: started,
		Flags:  func() map[string]string { return map[string]string{"v": "2", "bind-address": "0.0.0.0"} },
		Config: func() (any, error) { return nil, nil },
	}, nil)
	for _, x := range []struct {
		accept string
		code   int
		typ    string
	}{
		{"", 200, "text/plain; charset=utf-8"},
		{"*/*", 200, "text/plain; charset=utf-8"},
		{"text/plain", 200, "text/plain; charset=utf-8"},
		{"text/html,application/xhtml+xml,*/*;q=0.8", 200, "text/plain; charset=utf-8"},
		{"application/json;as=KIND;v=v1alpha1;g=config.k8s.io", 200, "application/json"},
		{"application/json;v=v1beta1;g=config.k8s.io;as=KIND", 200, "application/json"},
		{"text/plain;q=0.5, application/json;as=KIND;v=v1alpha1;g=config.k8s.io", 200, "application/json"},
		{"application/json;as=KIND;v=v1alpha1;g=config.k8s.io;q=0.1, text/plain", 200, "text/plain; charset=utf-8"},
		{"application/json", 406, "text/plain; charset=utf-8"},
		{"application/json;as=Other;v=v1alpha1;g=config.k8s.io", 406, "text/plain; charset=utf-8"},
		{"application/json;as=KIND;v=v7;g=config.k8s.io", 406, "text/plain; charset=utf-8"},
		{"application/json;as=KIND;v=v1alpha1;g=other", 406, "text/plain; charset=utf-8"},
		{"application/json;as=KIND", 406, "text/plain; charset=utf-8"},
		{"text/html", 406, "text/plain; charset=utf-8"},
		{"*/*;q=0", 406, "text/plain; charset=utf-8"},
		{"nonsense;;;", 406, "text/plain; charset=utf-8"},
	} {
		for path, kind := range map[string]string{"/flagz": "Flagz", "/statusz": "Statusz"} {
			var header []string
			if x.accept != "" {
				header = []string{"Accept", strings.ReplaceAll(x.accept, "KIND", kind)}
			}
			res, body := get(t, url+path, header...)
			if res.StatusCode != x.code || res.Header.Get("Content-Type") != x.typ {
				t.Errorf("%s, Accept %q: %s, %s; want %d, %s\n%s", path, x.accept, res.Status,
					res.Header.Get("Content-Type"), x.code, x.typ, body)
			}
		}
	}
	_, body := get(t, url+"/flagz")
	if !strings.HasPrefix(body, "\nkube-proxy flagz\n") || !strings.HasSuffix(body, "\n\nbind-address=0.0.0.0\nv=2\n") {
		t.Errorf("/flagz:\n%s", body)
	}
	_, body = get(t, url+"/statusz")
	for _, line := range []string{
		"kube-proxy statusz", "Started: " + started.UTC().Format(time.UnixDate), "Up: 3 hr 25 min 0", "Go version: " +
			runtime.Version(),
		"Binary version: 1.37.2\n", "Emulation version: 1.37\n",
		"Paths: /configz /flagz /healthz /healthz/ping /metrics /metrics/slis /proxyMode /statusz\n",
	} {
		if !strings.Contains(body, "\n"+line) {
			t.Errorf("/statusz has no line %q:\n%s", line, body)
		}
	}
	_, body = get(t, url+"/flagz", "Accept", "application/json;as=Flagz;v=v1beta1;g=config.k8s.io")
	if want := `{"kind":"Flagz","apiVersion":"config.k8s.io/v1beta1","metadata":{"name":"kube-proxy"},` +
		`"flags":{"bind-address":"0.0.0.0","v":"2"}}`; body != want {
		t.Errorf("/flagz as JSON: %s, want %s", body, want)
	}
	_, body = get(t, url+"/statusz", "Accept", "application/json;as=Statusz;v=v1alpha1;g=config.k8s.io")
	var s struct {
		Kind, APIVersion, GoVersion, BinaryVersion, EmulationVersion string
		StartTime                                                    time.Time
		UptimeSeconds                                                int
		Paths                                                        []string
	}
	if err := json.Unmarshal([]byte(body), &s); err != nil {
		t.Fatalf("/statusz as JSON: %v\n%s", err, body)
	}
	if s.Kind != "Statusz" || s.APIVersion != "config.k8s.io/v1alpha1" || s.BinaryVersion != "1.37.2" ||
		s.EmulationVersion != "1.37" ||
		!s.StartTime.Equal(started.Truncate(time.Second)) || s.UptimeSeconds < 3*3600+25*60+2 || len(s.Paths) != 8 ||
		s.GoVersion != runtime.Version() {
		t.Errorf("/statusz as JSON: %s", body)
	}
}

// HT-26, CF-17: profiles and the verbosity require profiling, which can change at any time.
func TestDebug(t *testing.T) {
	var verbosity atomic.Int64
	verbosity.Store(2)
	var s *status.Server
	url := serve(t, status.ServerConfig{
		Mode: "nftables", Profiling: true,
		Verbosity: func() int { return int(verbosity.Load()) }, SetVerbosity: func(v int) { verbosity.Store(int64(v)) },
	}, func(server *status.Server) { s = server })
	res, _ := get(t, url+"/debug/pprof")
	if res.StatusCode != 302 || res.Header.Get("Location") != "/debug/pprof/" {
		t.Errorf("/debug/pprof: %s, %s", res.Status, res.Header.Get("Location"))
	}
	for path, has := range map[string]string{
		"/debug/pprof/": "goroutine", "/debug/pprof/goroutine?debug=1": "goroutine profile",
		"/debug/pprof/symbol": "num_symbols",
		"/debug/pprof/heap":   "", "/debug/pprof/profile?seconds=1": "", "/debug/pprof/trace?seconds=0.1": "",
		"/debug/flags/v": "2\n",
	} {
		if res, body := get(t, url+path); res.StatusCode != 200 || !strings.Contains(body, has) || len(body) == 0 {
			t.Errorf("%s: %s\n%.200s", path, res.Status, body)
		}
	}
	put := func(method, body string) (int, string) {
		req, err := http.NewRequest(method, url+"/debug/flags/v", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(text)
	}
	for _, x := range []struct {
		method, body string
		code         int
		then         int64
	}{
		{"PUT", "5", 200, 5}, {"PUT", " 7\n", 200, 7}, {"PUT", "0", 200, 0}, {"PUT", "4", 200, 4},
		{"PUT", "much", 400, 4}, {"PUT", "-1", 400, 4}, {"PUT", "", 400, 4}, {"PUT", "99999999999", 400, 4},
		{"PUT", "1.5", 400, 4},
		{"PUT", strings.Repeat("1", 1<<20), 400, 4}, {"POST", "9", 405, 4}, {"DELETE", "", 405, 4},
	} {
		code, text := put(x.method, x.body)
		if code != x.code || verbosity.Load() != x.then {
			t.Errorf("%s %.20q: %d %.200s, verbosity %d; want %d, %d", x.method, x.body, code, text, verbosity.Load(),
				x.code, x.then)
		}
	}
	s.SetProfiling(false)
	if code, _ := put("PUT", "9"); code != 404 || verbosity.Load() != 4 {
		t.Errorf("without profiling: %d, verbosity %d", code, verbosity.Load())
	}
	if res, _ := get(t, url+"/debug/pprof/heap"); res.StatusCode != 404 {
		t.Errorf("without profiling: %s", res.Status)
	}
	s.SetProfiling(true)
	if res, _ := get(t, url+"/debug/pprof/heap"); res.StatusCode != 200 {
		t.Errorf("with profiling again: %s", res.Status)
	}
}

// free returns an address and a port without a listener, outside the range of ephemeral ports.
func free(t *testing.T) netip.AddrPort {
	t.Helper()
	for range 100 {
		a := netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(250)), byte(rand.IntN(256)), byte(1 + rand.IntN(250))})
		port := uint16(10300 + rand.IntN(20000))
		if l, err := net.Listen("tcp", fmt.Sprintf(":%d", port)); err == nil && l.Close() == nil {
			return netip.AddrPortFrom(a, port)
		}
	}
	t.Fatal("no port")
	return netip.AddrPort{}
}

// The address can change while requests are open, and be removed and added again; without one there
// is no server (FL-09). Run returns after the requests in hand.
func TestChangeOfAddress(t *testing.T) {
	log, inHand, release, ended := &logtest.Buffer{}, make(chan struct{}), make(chan struct{}), make(chan struct{})
	var tooEarly atomic.Bool
	s := status.FillServer(status.ServerConfig{
		Metrics: status.FillMetrics(status.MetricsConfig{}), Log: slog.New(slog.NewTextHandler(log, nil)),
		Config: func() (any, error) {
			inHand <- struct{}{}
			select {
			case <-release:
			case <-ended:
				tooEarly.Store(true)
			}
			return nil, nil
		},
	})
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		defer close(ended)
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	if a := s.Addr(); a != nil {
		t.Errorf("FL-09: listens on %v without an address", a)
	}
	at := func(want netip.AddrPort) {
		t.Helper()
		waitFor(t, s, func(a net.Addr) bool { return a != nil && a.String() == want.String() })
		if _, body := get(t, "http://"+want.String()+"/healthz"); body != "ok" {
			t.Errorf("%v: %q", want, body)
		}
	}
	slow := func(at netip.AddrPort) chan int {
		code := make(chan int)
		go func() {
			res, err := http.Get("http://" + at.String() + "/configz")
			if err != nil {
				code <- 0
				return
			}
			res.Body.Close()
			code <- res.StatusCode
		}()
		<-inHand
		return code
	}
	first, second := free(t), free(t)
	s.Listen(first)
	at(first)
	old := slow(first)
	s.Listen(second)
	at(second)
	if _, err := net.Dial("tcp", first.String()); err == nil {
		t.Error("the old address is still open")
	}
	release <- struct{}{}
	if code := <-old; code != 200 {
		t.Errorf("a request to the old address ended with %d", code)
	}
	// The new one is taken: the old one stays.
	third := free(t)
	if l, err := net.Listen("tcp", third.String()); err != nil {
		t.Error(err)
	} else {
		defer l.Close()
	}
	s.Listen(third)
	awaitLog(t, log, third.String())
	at(second)
	s.Listen(netip.AddrPort{})
	waitFor(t, s, func(a net.Addr) bool { return a == nil })
	s.Listen(first)
	at(first)
	last := slow(first)
	stop()
	waitFor(t, s, func(a net.Addr) bool { return a == nil })
	time.AfterFunc(100*time.Millisecond, func() { close(release) }) // a Run that does not wait ends sooner
	if code := <-last; code != 200 || tooEarly.Load() {
		t.Errorf("the request in hand ended with %d; Run ended before it: %t", code, tooEarly.Load())
	}
	<-ended
}

// awaitLog waits until the log has a word.
func awaitLog(t *testing.T, log *logtest.Buffer, word string) {
	t.Helper()
	for limit := time.Now().Add(30 * time.Second); !strings.Contains(log.String(), word); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("waited in vain for %q in the log:\n%s", word, log)
		}
	}
}

// Where the health server has the same address, its pages are answered by it, as long as that is so
// (S0).
func TestHealthToo(t *testing.T) {
	var health atomic.Pointer[http.Handler]
	url := serve(t, status.ServerConfig{Mode: "nftables", Health: func() http.Handler {
		if h := health.Load(); h != nil {
			return *h
		}
		return nil
	}}, nil)
	pages := func(want map[string]int) {
		t.Helper()
		for path, code := range want {
			res, body := get(t, url+path)
			if res.StatusCode != code || code == http.StatusServiceUnavailable && body != "health "+path {
				t.Errorf("%s: %s, want %d: %s", path, res.Status, code, body)
			}
		}
	}
	pages(map[string]int{"/healthz": 200, "/livez": 404, "/readyz": 404, "/proxyMode": 200})
	var other http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		io.WriteString(w, "health "+r.URL.Path)
	})
	health.Store(&other)
	pages(map[string]int{"/healthz": 503, "/livez": 503, "/readyz": 503, "/proxyMode": 200, "/healthz/ping": 200})
}
