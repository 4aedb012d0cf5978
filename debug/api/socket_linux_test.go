package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/debug/inspect"
	"kube-proxy/lb"
	"kube-proxy/policy"
	"kube-proxy/test/logtest"
)

// about is a proxy with so many Services, in no kernel.
func about(t testing.TB, services int) *inspect.Inspector {
	t.Helper()
	store := cluster.NewStore("n1")
	for i := range services {
		name := cluster.Name{Namespace: "shop", Name: fmt.Sprintf("s%d", i)}
		store.Fold(cluster.ServiceSet{Service: &cluster.Service{Name: name, Ports: []cluster.ServicePort{
			{Protocol: cluster.TCP, Port: 80}}}})
	}
	table := &lb.Table{}
	return inspect.New(inspect.Config{Store: store,
		Families: []inspect.Family{{Family: lb.IPv4, Query: func(f func(*lb.Table)) {
			f(table)
		}, Settings: func(cluster.Name) policy.Settings { return policy.Settings{Family: lb.IPv4} }}}})
}

// running is a server at a path, until the test ends or stop is called.
func running(t testing.TB, h http.Handler, path string) (s *Server, log *logtest.Buffer, stop func()) {
	t.Helper()
	log = new(logtest.Buffer)
	s = NewServer(h, path, slog.New(slog.NewTextHandler(log, nil)))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { s.Run(ctx); close(done) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return s, log, stop
}

// until calls what until it returns "".
func until(t testing.TB, what func() string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		says := what()
		if says == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatal(says)
		}
	}
}

// answers returns the reason why the proxy at path does not answer; "" if it does.
func answers(path string) string {
	var s inspect.Status
	if err := NewClient(path).Get(context.Background(), "status", nil, &s); err != nil {
		return err.Error()
	}
	return ""
}

func mode(t testing.TB, path string) string {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().String()
}

// Only root has access to the socket and its folder, a reload moves and closes it, and it is
// removed at the end.
func TestSocketLives(t *testing.T) {
	dir := t.TempDir()
	at, other := filepath.Join(dir, "run", "a.sock"), filepath.Join(dir, "b.sock")
	s, log, stop := running(t, NewHandler(about(t, 1)), at)
	until(t, func() string { return answers(at) })
	if is := mode(t, filepath.Dir(at)) + " " + mode(t, at); is != "drwx------ Srw-------" {
		t.Errorf("folder and socket are %s", is)
	}
	s.Listen(other)
	until(t, func() string { return answers(other) })
	if _, err := os.Stat(at); !os.IsNotExist(err) {
		t.Errorf("the socket before is there still: %v", err)
	}
	s.Listen("")
	until(t, func() string {
		if answers(other) == "" {
			return "it answers after it was turned off"
		}
		return ""
	})
	s.Listen(at)
	until(t, func() string { return answers(at) })
	if err := os.Remove(at); err != nil { // another program cleans up
		t.Fatal(err)
	}
	s.Listen(at) // or 5 s later
	until(t, func() string { return answers(at) })
	stop()
	if _, err := os.Stat(at); !os.IsNotExist(err) {
		t.Errorf("the socket is there after the end: %v", err)
	}
	if strings.Contains(log.String(), "level=WARN") {
		t.Errorf("it warns:\n%s", log.String())
	}
}

// Only root has access to the socket from its creation on, whatever the umask. Nothing changes the
// path afterwards: a program with write access to the folder could have replaced the file by then.
func TestSocketIsBornClosed(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	at := filepath.Join(t.TempDir(), "a.sock")
	l, err := listenUnix(at)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if is := mode(t, at); is != "Srw-------" {
		t.Errorf("the socket is %s", is)
	}
}

// The socket of a killed process is replaced, that of a live one is not: the conflict is logged
// once, and the path is taken over when that process ends, whose end does not remove the
// successor's socket.
func TestSocketOfAnother(t *testing.T) {
	at := filepath.Join(t.TempDir(), "a.sock")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: at})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	_, _, endOld := running(t, NewHandler(about(t, 1)), at)
	until(t, func() string { return answers(at) })

	s, log, _ := running(t, NewHandler(about(t, 2)), at)
	until(t, func() string {
		if !strings.Contains(log.String(), fmt.Sprintf("in use by process %d", os.Getpid())) {
			return "it does not say who has the socket: " + log.String()
		}
		return ""
	})
	for range 3 {
		s.Listen(at) // tried again
	}
	if says := answers(at); says != "" {
		t.Errorf("the one before does not answer any more: %s", says)
	}
	endOld()
	s.Listen(at)
	until(t, func() string { return answers(at) })
	var now inspect.Status
	if err := NewClient(at).Get(t.Context(), "status", nil, &now); err != nil || now.Services != 2 {
		t.Errorf("another answers than the next one: %+v, %v", now, err)
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 {
		t.Errorf("it warns %d times, want once:\n%s", n, log.String())
	}
}

// An unusable path causes one warning, and nothing else; an existing file stays.
func TestSocketCannotBeHad(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ path, says string }{
		"a file":                          {file, "is not a socket"},
		"a folder that is a file":         {file + "/a.sock", "not a directory"},
		"a folder that is never writable": {"/proc/kube-proxy/a.sock", "no such file or directory"},
	} {
		s, log, stop := running(t, NewHandler(about(t, 1)), c.path)
		until(t, func() string {
			if !strings.Contains(log.String(), c.says) {
				return name + ": " + log.String()
			}
			return ""
		})
		s.Listen(c.path)
		stop()
		if n := strings.Count(log.String(), "\n"); n != 1 {
			t.Errorf("%s: it writes %d lines:\n%s", name, n, log.String())
		}
	}
	if text, err := os.ReadFile(file); string(text) != "mine" || err != nil {
		t.Errorf("the file has %q, %v", text, err)
	}
}

// The client distinguishes other servers at the socket from a proxy of this version, and does not
// wait forever.
func TestClientTellsWhoAnswers(t *testing.T) {
	at := filepath.Join(t.TempDir(), "a.sock")
	for name, c := range map[string]struct {
		serve http.HandlerFunc
		says  string
	}{
		"an older one": {http.NotFound, "not a known kube-proxy (HTTP 404)"},
		"another version": {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set(Header, "7") },
			`API version "7"`},
		"half an answer": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(Header, "1")
			io.WriteString(w, `{"version":`)
		}, "incomplete or invalid answer"},
		"an error as HTML": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(Header, "1")
			w.WriteHeader(500)
			io.WriteString(w, "<html>")
		}, "HTTP 500 without a reason"},
		"a header without end": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(Header, strings.Repeat("x", 10<<20))
		}, "cannot query the proxy"},
		"a connection that ends": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "EOF"},
	} {
		l, err := net.Listen("unix", at)
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: c.serve, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
		go server.Serve(l)
		var s inspect.Status
		err = NewClient(at).Get(t.Context(), "status", nil, &s)
		if !errors.Is(err, ErrNotAsked) || !strings.Contains(err.Error(), c.says) || len(err.Error()) > 500 {
			t.Errorf("%s: %.600v", name, err)
		}
		server.Close()
	}
}

// An invalid query gets an error as the answer, and leaves no state.
func TestBadQuestions(t *testing.T) {
	at := filepath.Join(t.TempDir(), "a.sock")
	_, log, _ := running(t, NewHandler(about(t, 1)), at)
	until(t, func() string { return answers(at) })
	quiet := log.String()
	raw := func(text string) string {
		c, err := net.Dial("unix", at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(20 * time.Second))
		go io.WriteString(c, text) // the server may stop reading
		answer, _ := io.ReadAll(io.LimitReader(c, 1<<20))
		return string(answer)
	}
	get := func(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" }
	for name, c := range map[string]struct{ send, code, says string }{
		"garbage in the query string": {get("/v1/trace?from=%zz"), "400", "invalid query string"},
		"an unknown parameter":        {get("/v1/trace?frm=1"), "400", `takes from, pod, port, in, to`},
		"a parameter twice":           {get("/v1/service?name=a&name=b"), "400", "each once"},
		"no parameter":                {get("/v1/trace"), "400", "want a source"},
		"an unknown question":         {get("/v1/delete"), "404", "unknown query"},
		"another version":             {get("/v2/trace"), "404", "unknown query"},
		"a filter without end":        {get("/v1/table?filter=" + strings.Repeat("a", 5000)), "400", "at most 300"},
		"a name without end": {get("/v1/service?name=" + strings.Repeat("a", 5000)), "400",
			"too long for a Service: 5000 characters"},
		"a wait for ever":           {get("/v1/events?wait=9999h"), "400", "up to 1m0s"},
		"a wait for a bare name":    {get("/v1/events?service=nope&wait=50s"), "404", "no Service nope"},
		"a number that is none":     {get("/v1/events?after=-1"), "400", "want a number"},
		"no number of a change":     {get("/v1/states?after=x&wait=1s"), "400", "after=x: want a number"},
		"an interface with a slash": {get("/v1/trace?from=node&to=a&in=../../x"), "400", "invalid name"},
		"a header of 10 MB": {"GET /v1/status HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 10<<20) +
			"\r\n\r\n", "431", "Request Header Fields Too Large"},
		"a body": {"GET /v1/status HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\nx", "400", "has no body"},
		"another verb": {"DELETE /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "405",
			"only GET is allowed"},
		"no HTTP": {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", "400", "Bad Request"},
		"a name of <script>": {get("/v1/service?name=%3Cscript%3E%1b%5b31m"), "404",
			`no Service \u003cscript\u003e\u001b[31m`},
	} {
		got := raw(c.send)
		if !strings.HasPrefix(got, "HTTP/1.1 "+c.code) || !strings.Contains(got, c.says) {
			t.Errorf("%s: want %s and %q, got %.400q", name, c.code, c.says, got)
		}
	}
	if says := answers(at); says != "" {
		t.Error(says)
	}
	if log.String() != quiet {
		t.Errorf("it writes into the log:\n%s", log.String())
	}
}

// A thousand clients that connect and send nothing, or query and do not read, use a limited number
// of connections and memory. The next client gets an answer when the time of the slow ones is over.
func TestCrowd(t *testing.T) {
	at := filepath.Join(t.TempDir(), "a.sock")
	_, log, _ := running(t, NewHandler(about(t, 20_000)), at)
	until(t, func() string { return answers(at) })
	before := memory()
	goroutines := runtime.NumGoroutine()
	var crowd []net.Conn
	defer func() {
		for _, c := range crowd {
			c.Close()
		}
	}()
	for i := range 1000 {
		c, err := net.DialTimeout("unix", at, time.Second)
		if err != nil {
			break // as many as the kernel keeps waiting
		}
		crowd = append(crowd, c)
		if i%2 == 0 { // requests much data, and does not read
			fmt.Fprintf(c, "GET /v1/services HTTP/1.1\r\nHost: x\r\n\r\n")
		}
	}
	if len(crowd) < 200 {
		t.Fatalf("%d could connect", len(crowd))
	}
	until(t, func() string {
		if n := runtime.NumGoroutine(); n > goroutines+4*maxConnections {
			return fmt.Sprintf("%d goroutines for %d who connect", n-goroutines, len(crowd))
		}
		return ""
	})
	if grown := memory() - before; grown > 64<<20 {
		t.Errorf("%d MiB more for %d who connect", grown>>20, len(crowd))
	}
	for _, c := range crowd {
		c.Close()
	}
	until(t, func() string { return answers(at) })
	if n := strings.Count(log.String(), "\n"); n != 1 {
		t.Errorf("%d lines of the log:\n%s", n, log.String())
	}
}

// However many clients wait for changes, watch or compare, short queries are answered, and further
// long ones get an error.
func TestLongQuestions(t *testing.T) {
	at := filepath.Join(t.TempDir(), "a.sock")
	h := NewHandler(about(t, 1))
	running(t, h, at)
	until(t, func() string { return answers(at) })
	ask := func(path string) net.Conn {
		c, err := net.Dial("unix", at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", path)
		return c
	}
	read := func(c net.Conn) string {
		c.SetReadDeadline(time.Now().Add(20 * time.Second))
		text, _ := io.ReadAll(io.LimitReader(c, 1<<20))
		return string(text)
	}
	var waiting []net.Conn
	for range maxLong {
		waiting = append(waiting, ask("/v1/events?after=999&wait=60s"))
	}
	until(t, func() string { // before another client takes the place of one of them
		if n := len(h.long); n < maxLong {
			return fmt.Sprintf("%d wait", n)
		}
		return ""
	})
	for _, path := range []string{"/v1/diff", "/v1/top", "/v1/events?after=999&wait=60s",
		"/v1/states?after=0&wait=60s"} {
		until(t, func() string {
			if got := read(ask(path)); !strings.HasPrefix(got, "HTTP/1.1 503 ") ||
				!strings.Contains(got, "end some of them") {
				return path + ": " + got
			}
			return ""
		})
	}
	if says := answers(at); says != "" {
		t.Errorf("beside %d who wait: %s", len(waiting), says)
	}
	if got := read(ask("/v1/events?after=999")); !strings.HasPrefix(got, "HTTP/1.1 200 ") {
		t.Errorf("who does not wait for changes: %s", got)
	}
	for _, c := range waiting {
		c.Close()
	}
	until(t, func() string {
		if got := read(ask("/v1/diff")); strings.Contains(got, "end some of them") {
			return got
		}
		return ""
	})
}

func memory() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// A list of any length arrives completely, in pieces.
func TestLongList(t *testing.T) {
	at := filepath.Join(t.TempDir(), "a.sock")
	running(t, NewHandler(about(t, 20_000)), at)
	until(t, func() string { return answers(at) })
	for _, c := range []*Client{NewClient(at), Local(about(t, 20_000))} {
		var all struct{ Services []string }
		if err := c.Get(t.Context(), "services", nil, &all); err != nil || len(all.Services) != 20_000 {
			t.Errorf("%d Services, %v", len(all.Services), err)
		}
		states := struct {
			Node     string
			Services []inspect.Service
			inspect.Since
		}{Since: inspect.Since{Newest: 1}}
		if err := c.Get(t.Context(), "states", nil, &states); err != nil || len(states.Services) != 20_000 ||
			states.Node != "n1" || states.Newest != 0 {
			t.Errorf("%d Services of %s as of %d, %v", len(states.Services), states.Node, states.Newest, err)
		}
		var raw json.RawMessage
		p := (*inspect.Problem)(nil)
		if err := c.Get(t.Context(), "service", url.Values{"name": {"unknown"}}, &raw); !errors.As(err, &p) ||
			p.Kind != inspect.Unknown {
			t.Errorf("of an unknown Service: %v", err)
		}
	}
}
