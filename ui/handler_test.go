package ui

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"kube-proxy/changes"
	"kube-proxy/cluster"
	"kube-proxy/engine"
	"kube-proxy/inspect"
	"kube-proxy/lb"
)

// A page that is not ours, which a browser on this machine shows, has nothing done here: no question in a frame, none from another port
// of localhost, where an operator may have forwarded the pod of a tenant. A link that somebody follows is answered.
func TestOtherPages(t *testing.T) {
	w := newWorld(t, Config{}, cluster.Name{Namespace: "shop", Name: "web"})
	for _, c := range []struct {
		site, mode, dest string
		code             int
	}{
		{"none", "navigate", "document", 200}, // typed
		{"same-origin", "navigate", "document", 200},
		{"same-origin", "cors", "empty", 200},
		{"same-origin", "no-cors", "style", 200},
		{"cross-site", "navigate", "document", 200},
		{"same-site", "navigate", "document", 200},
		{"cross-site", "navigate", "iframe", 403},
		{"same-site", "navigate", "iframe", 403},
		{"cross-site", "navigate", "object", 403},
		{"cross-site", "navigate", "embed", 403},
		{"cross-site", "cors", "empty", 403},
		{"same-site", "cors", "empty", 403},
		{"same-site", "no-cors", "script", 403},
		{"same-site", "no-cors", "image", 403},
		{"cross-site", "websocket", "websocket", 403},
	} {
		r := request("GET", "/ui/")
		r.Header.Set("Sec-Fetch-Site", c.site)
		r.Header.Set("Sec-Fetch-Mode", c.mode)
		r.Header.Set("Sec-Fetch-Dest", c.dest)
		a := httptest.NewRecorder()
		w.h.ServeHTTP(a, r)
		if a.Code != c.code {
			t.Errorf("%s %s %s: %d, want %d", c.site, c.mode, c.dest, a.Code, c.code)
		}
	}
}

// TN-84: of the programs in the host's network, those of root see the page.
func TestOtherUsers(t *testing.T) {
	for _, c := range []struct {
		name string
		uid  uint32
		err  error
		code int
	}{{"root", 0, nil, 200}, {"this process's user", uint32(os.Geteuid()), nil, 200}, {"another user", 65534, nil, 403}, {"nobody knows", 0, errors.New("gone"), 403}} {
		w := newWorld(t, Config{Owner: func(_ context.Context, client, server netip.AddrPort) (uint32, error) {
			if client.String() != "127.0.0.1:40000" || server.String() != "127.0.0.1:10249" {
				t.Errorf("asked for %v at %v", client, server)
			}
			return c.uid, c.err
		}}, cluster.Name{Namespace: "shop", Name: "web"})
		body := w.get("/ui/", c.code)
		if c.code == 403 && strings.Contains(body, "shop") {
			t.Errorf("%s learns of Services: %s", c.name, body)
		}
	}
}

// Who asks from elsewhere, or by a name that may be anybody's, is told how to get the page, and nothing else.
func TestWhoIsAnswered(t *testing.T) {
	w := newWorld(t, Config{}, cluster.Name{Namespace: "shop", Name: "web"})
	for _, c := range []struct {
		name, local, remote, host string
		header                    [2]string
		method                    string
		code                      int
	}{
		{name: "a browser here", code: 200},
		{name: "kubectl port-forward to another port", host: "localhost:8080", code: 200},
		{name: "by the address", host: "127.0.0.1:10249", code: 200},
		{name: "over IPv6", local: "[::1]:10249", remote: "[::1]:4", host: "[::1]:10249", code: 200},
		{name: "mapped", local: "[::ffff:127.0.0.1]:10249", remote: "[::ffff:127.0.0.1]:4", code: 200},
		{name: "another loopback address", local: "127.0.0.2:1", host: "127.0.0.2:1", code: 200},
		{name: "a link on another page", header: [2]string{"Sec-Fetch-Site", "cross-site"}, code: 403},
		{name: "at an address of the node", local: "172.18.0.2:10249", remote: "172.18.0.9:4", host: "172.18.0.2:10249", code: 403},
		{name: "at an address of the node, as localhost", local: "172.18.0.2:10249", remote: "172.18.0.9:4", code: 403},
		{name: "at an address of the node, from the node", local: "172.18.0.2:10249", remote: "127.0.0.1:4", code: 403},
		{name: "who comes to the loopback address from elsewhere", remote: "172.18.0.9:4", code: 403},
		{name: "who says to be here", local: "172.18.0.2:10249", remote: "172.18.0.9:4", header: [2]string{"X-Forwarded-For", "127.0.0.1"}, code: 403},
		{name: "who says so otherwise", local: "172.18.0.2:10249", remote: "172.18.0.9:4", header: [2]string{"Forwarded", "for=127.0.0.1;host=localhost"}, code: 403},
		{name: "a name of the web that points here", host: "evil.example:10249", code: 403},
		{name: "a name that begins well", host: "localhost.evil.example", code: 403},
		{name: "an address in a name", host: "127.0.0.1.evil.example", code: 403},
		{name: "another host by a header", host: "evil.example", header: [2]string{"X-Forwarded-Host", "localhost"}, code: 403},
		{name: "no name", host: "-", code: 403},
		{name: "a zone", host: "[::1%25lo]:10249", code: 403},
		{name: "a name with <script>", host: "<script>alert(1)</script>", code: 403},
		{name: "POST", method: "POST", code: 405},
		{name: "PUT", method: "PUT", code: 405},
		{name: "DELETE", method: "DELETE", code: 405},
		{name: "HEAD", method: "HEAD", code: 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, path := range []string{"/ui/", "/ui/services.json", "/ui/static/style.css", "/ui/service?name=shop/web"} {
				r := request("GET", path)
				if c.method != "" {
					r.Method = c.method
				}
				if c.host == "-" {
					r.Host = ""
				} else if c.host != "" {
					r.Host = c.host
				}
				if c.remote != "" {
					r.RemoteAddr = c.remote
				}
				if c.local != "" {
					a, err := net.ResolveTCPAddr("tcp", c.local)
					if err != nil {
						t.Fatal(err)
					}
					r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(a)))
				}
				if c.header[0] != "" {
					r.Header.Set(c.header[0], c.header[1])
				}
				a := httptest.NewRecorder()
				w.h.ServeHTTP(a, r)
				if a.Code != c.code {
					t.Errorf("%s: %d, want %d: %s", path, a.Code, c.code, a.Body)
				}
				if c.code == 403 {
					has(t, a.Body.String(), "port-forward")
					if strings.Contains(a.Body.String(), "shop") {
						t.Error("it tells what it must not")
					}
				}
				if c.method == "HEAD" && a.Body.Len() > 0 {
					t.Error("HEAD has a body")
				}
			}
		})
	}
}

// --ui=false, which a reload may say.
func TestOff(t *testing.T) {
	on := true
	w := newWorld(t, Config{On: func() bool { return on }})
	w.get("/ui/", 200)
	on = false
	for _, path := range []string{"/ui", "/ui/", "/ui/services.json", "/ui/events", "/ui/static/page.js"} {
		has(t, w.get(path, 404), "--ui=false")
	}
}

// inline is what the content security policy would refuse in a page.
var inline = regexp.MustCompile(`<script>|<script [^>]*>[^<]|\son[a-z]+=|\sstyle=|<style|javascript:|https?://`)

// Every answer says what a browser may do with it, and no page needs more than that.
func TestHeaders(t *testing.T) {
	w := newWorld(t, Config{}, many(3)...)
	for _, path := range []string{"/ui/", "/ui/service?name=ns/svc-00001", "/ui/changes", "/ui/trace", "/ui/trace?from=10.0.0.1&to=10.96.0.1:80", "/ui/node", "/ui/node?compare=now",
		"/ui/services.json", "/ui/static/page.js", "/ui/static/style.css", "/ui/static/icon.svg", "/ui/nothing", "/ui/?page=x", "/ui"} {
		a := httptest.NewRecorder()
		w.h.ServeHTTP(a, request("GET", path))
		csp := a.Header().Get("Content-Security-Policy")
		for _, part := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'"} {
			has(t, csp, part)
		}
		if strings.Contains(csp, "unsafe") {
			t.Errorf("%s: %s", path, csp)
		}
		for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin"} {
			if got := a.Header().Get(name); got != want {
				t.Errorf("%s: %s: %q, want %q", path, name, got, want)
			}
		}
		if strings.HasPrefix(a.Header().Get("Content-Type"), "text/html") {
			if found := inline.FindString(strings.ReplaceAll(a.Body.String(), "http://www.w3.org", "")); found != "" {
				t.Errorf("%s has %q", path, found)
			}
			if h1 := strings.Count(a.Body.String(), "<h1"); h1 != 1 && a.Code != 308 {
				t.Errorf("%s has %d headings of the first level", path, h1)
			}
		}
	}
}

// tag is an element of a page without its content.
var tag = regexp.MustCompile(`<[^>]*>`)

// What tenants write stays text, and what cannot be seen is spelled out.
func TestHostileNames(t *testing.T) {
	evil := []cluster.Name{
		{Namespace: "evil", Name: "<script>alert(1)</script>"},
		{Namespace: "evil", Name: `"><img src=x onerror=alert(1)>`},
		{Namespace: "evil", Name: "web\u202egnp.exe"},
		{Namespace: "evil", Name: "bell\a\x00\x1b[31m\r\nx"},
		{Namespace: "evil", Name: "{{.}}'`${x}"},
		{Namespace: "evil", Name: strings.Repeat("x", 253)},
		{Namespace: "evil", Name: "bad\xff\xfeutf8"},
		{Namespace: "<b>", Name: "&lt;b&gt;"},
	}
	w := newWorld(t, Config{}, evil...)
	w.stats.LastError, w.stats.Failing = "<script>alert(2)</script>\u202e", []engine.Failing{{Key: lb.Key{Port: 80, Proto: lb.TCP}, Service: evil[0].String(), Err: "<script>alert(3)</script>"}}
	w.ring.Add(changes.Entry{Kind: changes.Failed, Service: evil[0], Why: "<script>alert(4)</script>", Done: time.Now().UnixNano()})
	paths := []string{"/ui/", "/ui/changes", "/ui/node", "/ui/?q=%3Cscript%3Ealert(5)%3C/script%3E", "/ui/trace?from=%3Cscript%3Ealert(6)%3C/script%3E&to=%E2%80%AE", "/ui/service?name=%3Cscript%3E%E2%80%AE"}
	link := regexp.MustCompile(`href="(/ui/service\?name=[^"]+)"`)
	for _, m := range link.FindAllStringSubmatch(w.get("/ui/", 200), -1) {
		path := strings.ReplaceAll(m[1], "&amp;", "&")
		paths = append(paths, path)
		if !strings.Contains(path, "%ef%bf%bd") && !strings.Contains(path, "%ff") { // a name that is no UTF-8 is none in a URL
			w.get(path, 200)
		}
	}
	if len(paths) != 6+len(evil) {
		t.Errorf("%d links to Services, want %d", len(paths)-6, len(evil))
	}
	for _, path := range paths {
		a := httptest.NewRecorder()
		w.h.ServeHTTP(a, request("GET", path))
		page := a.Body.String()
		for _, bad := range []string{"<script>", "<img", "<b>evil", "<b>/", "\a", "\x00", "\x1b"} {
			if strings.Contains(page, bad) {
				t.Errorf("%s has %q", path, bad)
			}
		}
		if text := tag.ReplaceAllString(page, ""); strings.ContainsRune(text, '\u202e') { // in attributes nobody sees it
			t.Errorf("%s has marks that turn the text around", path)
		}
	}
	has(t, w.get("/ui/", 200), `web\u{202e}gnp.exe`)
	has(t, w.get("/ui/", 200), `&lt;script&gt;alert(1)&lt;/script&gt;`)
	has(t, w.get("/ui/", 200), `bad\xff\xfeutf8`)
}

// The table can be searched and turned over without scripts; what needs a look comes first.
func TestTable(t *testing.T) {
	w := newWorld(t, Config{}, many(250)...)
	w.service(cluster.Name{Namespace: "ns", Name: "svc-00200"}, 200, 0)
	page := w.get("/ui/", 200)
	if n := strings.Count(page, "/ui/service?name="); n != perPage {
		t.Errorf("%d rows, want %d", n, perPage)
	}
	if strings.Index(page, "svc-00200") > strings.Index(page, "svc-00000") {
		t.Error("the Service without backends is not first")
	}
	has(t, page, "nothing serves")
	has(t, page, `href="?page=2"`)
	has(t, page, "250 Services")
	has(t, w.get("/ui/?page=3", 200), "svc-00249")
	found := w.get("/ui/?q=SVC-0012+10.96", 200)
	has(t, found, "10 of 250 Services")
	if n := strings.Count(found, "/ui/service?name="); n != 10 {
		t.Errorf("%d rows, want 10", n)
	}
	has(t, w.get("/ui/?show=problems", 200), "1 of 250 Services")
	has(t, w.get("/ui/?q=nothing-like-it", 200), "No Service has all of these words")
	has(t, w.get("/ui/?q=svc&show=all&page=2", 200), `href="?page=3&amp;q=svc"`)
}

// Garbage in the query string is told, with its name and what is wanted.
func TestBadQueryStrings(t *testing.T) {
	w := newWorld(t, Config{}, many(3)...)
	for path, text := range map[string]string{
		"/ui/?page=x":                               "page=x: want a number from 1",
		"/ui/?page=-1":                              "page=-1: want a number from 1",
		"/ui/?page=99999999999999999999":            "want a number from 1",
		"/ui/?page=2":                               "page=2: want a number from 1 to 1",
		"/ui/?show=some":                            "show=some: want all or problems",
		"/ui/?q=" + strings.Repeat("a", 400):        "want 300 bytes at most",
		"/ui/?q=" + strings.Repeat("a", 4000):       "want 600 at most",
		"/ui/?q=%zz":                                "the query string cannot be read",
		"/ui/?q=a&q=b":                              "q is given 2 times",
		"/ui/?sort=name":                            "there is no parameter",
		"/ui/?q=a;b=c":                              "the query string cannot be read",
		"/ui/service":                               "want a Service, as namespace/name",
		"/ui/trace?from=10.0.0.1":                   "to is empty",
		"/ui/trace?to=10.0.0.1":                     "from is empty",
		"/ui/trace?from=x&to=10.0.0.1:80":           "x",
		"/ui/trace?from=10.0.0.1&to=10.0.0.1:99999": "99999",
		"/ui/trace?from=10.0.0.1&to=10.0.0.1:80&proto=icmp": "want tcp, udp or sctp",
		"/ui/node?compare=yes":                              "want now",
		"/ui/changes?x=y":                                   "there is no parameter",
		"/ui/events?since=x":                                "want the number of a change",
		"/ui/services.json?x=y":                             "takes no parameters",
	} {
		has(t, w.get(path, 400), text)
	}
	w.get("/ui/service?name=ns/none", 404)
	w.get("/ui/nothing", 404)
	w.get("/ui/static/../handler.go", 404)
}

// Ten thousand Services are less than a megabyte, compressed much less, and made once however many ask.
func TestListing(t *testing.T) {
	w := newWorld(t, Config{}, many(10000)...)
	var asking sync.WaitGroup
	for range 50 {
		asking.Go(func() {
			r := request("GET", "/ui/services.json")
			r.Header.Set("Accept-Encoding", "br, gzip")
			a := httptest.NewRecorder()
			w.h.ServeHTTP(a, r)
			z, err := gzip.NewReader(a.Body)
			if err != nil {
				t.Error(err)
				return
			}
			var l listing
			if err := json.NewDecoder(z).Decode(&l); err != nil || len(l.Services) != 10000 {
				t.Errorf("%d Services, %v", len(l.Services), err)
			}
		})
	}
	asking.Wait()
	if w.h.cache.renders != 1 {
		t.Errorf("made %d times", w.h.cache.renders)
	}
	page, list := len(w.get("/ui/", 200)), len(w.get("/ui/services.json", 200))
	zipped := len(w.h.cache.zipped)
	t.Logf("page %d bytes, listing %d, compressed %d", page, list, zipped)
	if page+list > 1<<20 || zipped > 1<<18 {
		t.Errorf("page %d bytes, listing %d, compressed %d", page, list, zipped)
	}
	w.service(cluster.Name{Namespace: "ns", Name: "new"}, 10001, 1)
	w.h.cache.made = time.Now().Add(-time.Hour) // whatever it cost, it is time
	has(t, w.get("/ui/services.json", 200), "ns/new")
	w.h.cache.made = time.Now().Add(-time.Hour)
	if w.h.cache.forget(); w.h.cache.all != nil || w.h.cache.plain != nil {
		t.Error("the listing is kept though nobody asks")
	}
	has(t, w.get("/ui/?q=new", 200), "1 of 10,001 Services")
}

// A Service of 5,000 endpoints has a page that can be read, and a picture that can be seen.
func TestBigService(t *testing.T) {
	name := cluster.Name{Namespace: "shop", Name: "big"}
	w := newWorld(t, Config{})
	w.service(name, 1, 5000)
	page := w.get("/ui/service?name=shop/big", 200)
	has(t, page, "5,000 ready of 5,000")
	has(t, page, "more")
	if len(page) > 1<<20 {
		t.Errorf("%d bytes", len(page))
	}
	if n := strings.Count(page, `<g class="end`); n != shownEnds {
		t.Errorf("%d endpoints in the picture, want %d", n, shownEnds)
	}
	has(t, page, `role="img" aria-labelledby="pt" aria-describedby="pd"`)
}

// The question what becomes of a packet.
func TestTraceForm(t *testing.T) {
	w := newWorld(t, Config{}, cluster.Name{Namespace: "shop", Name: "web"})
	page := w.get("/ui/trace?from=10.1.1.11&to=10.96.0.0:80&proto=tcp", 200)
	for _, text := range []string{"Balanced over 1 backend", "100.64.0.0:8080", "100 %", `href="/ui/service?name=shop%2fweb"`} {
		has(t, page, text)
	}
	has(t, w.get("/ui/trace?from=10.1.1.11&to=10.9.9.9:80", 200), "Passed")
	bad := w.get("/ui/trace?from=nonsense&to=10.96.0.0:80", 400)
	has(t, bad, `aria-invalid="true"`)
	has(t, bad, `value="nonsense"`)
}

// What is wrong stands on top of every page.
func TestHead(t *testing.T) {
	w := newWorld(t, Config{}, many(2)...)
	has(t, w.get("/ui/trace", 200), "2 Services, all rows in force")
	w.stats.Failing = []engine.Failing{{Key: lb.Key{Port: 80, Proto: lb.TCP}, Service: "ns/svc-00001:http", Err: "no buffer space", Tries: 3}}
	for _, path := range []string{"/ui/", "/ui/trace", "/ui/changes", "/ui/node"} {
		page := w.get(path, 200)
		has(t, page, `class="head alarm"`)
		has(t, page, "1 row is not in force")
	}
	has(t, w.get("/ui/node", 200), "no buffer space")
}

// An asset that the browser has is not sent again.
func TestAssets(t *testing.T) {
	w := newWorld(t, Config{})
	a := httptest.NewRecorder()
	w.h.ServeHTTP(a, request("GET", "/ui/static/style.css"))
	r := request("GET", "/ui/static/style.css")
	r.Header.Set("If-None-Match", a.Header().Get("ETag"))
	again := httptest.NewRecorder()
	w.h.ServeHTTP(again, r)
	if a.Code != 200 || again.Code != 304 || again.Body.Len() != 0 {
		t.Errorf("%d, then %d with %d bytes", a.Code, again.Code, again.Body.Len())
	}
	for name, a := range w.h.assets {
		if a.kind == "" || len(a.plain) == 0 {
			t.Errorf("%s has no type, or nothing in it", name)
		}
		if strings.Contains(string(a.plain), "innerHTML") {
			t.Errorf("%s makes HTML of text", name)
		}
	}
}

// What cannot be seen is spelled out.
func TestVisible(t *testing.T) {
	for in, want := range map[string]string{
		"shop/web": "shop/web", "größe": "größe", "日本": "日本", "a\u202eb": `a\u{202e}b`, "a\u200bb": `a\u{200b}b`, "\ufeff": `\u{feff}`,
		"a\nb": `a\u{a}b`, "\x7f": `\u{7f}`, "\u0085": `\u{85}`, "\u2028": `\u{2028}`, "\xff": `\xff`, "\uFFFD": "\uFFFD", "\u2066x\u2069": `\u{2066}x\u{2069}`,
	} {
		if got := visible(in); got != want {
			t.Errorf("visible(%q) = %q, want %q", in, got, want)
		}
	}
}

// stuck is who does not read what he asked for.
type stuck struct {
	httptest.ResponseRecorder
	asked chan int // the code
	read  chan struct{}
	until time.Time // when we give up
}

func (s *stuck) WriteHeader(code int)               { s.asked <- code }
func (s *stuck) SetWriteDeadline(t time.Time) error { s.until = t; return nil }
func (s *stuck) Write(b []byte) (int, error)        { <-s.read; return len(b), nil }

// Many who ask for a long page and do not read it fill no memory: few such answers are kept, none for long, and short ones are given still.
func TestNobodyReads(t *testing.T) {
	w := newWorld(t, Config{}, cluster.Name{Namespace: "shop", Name: "web"})
	w.service(cluster.Name{Namespace: "shop", Name: "fat"}, 1, 5000)
	read, asked := make(chan struct{}), make(chan int)
	var waiting sync.WaitGroup
	codes := map[int]int{}
	for range 3 * mostLong {
		s := &stuck{ResponseRecorder: *httptest.NewRecorder(), asked: asked, read: read}
		waiting.Go(func() {
			w.h.ServeHTTP(s, request("GET", "/ui/service?name=shop/fat"))
			if s.until.IsZero() {
				t.Error("it waits for ever for who does not read")
			}
		})
		codes[<-asked]++
	}
	if codes[200] != mostLong || codes[503] != 2*mostLong {
		t.Errorf("answers: %v, want %d long ones", codes, mostLong)
	}
	w.get("/ui/service?name=shop/web", 200)
	w.get("/ui/", 200)
	close(read)
	waiting.Wait()
	w.get("/ui/service?name=shop/fat", 200)
}

// A question waits for its turn, and is told if that does not come.
func TestTurns(t *testing.T) {
	w := newWorld(t, Config{})
	w.h.turns <- struct{}{}
	w.h.turns <- struct{}{}
	r := request("GET", "/ui/")
	ctx, end := context.WithCancel(r.Context())
	end()
	a := httptest.NewRecorder()
	w.h.ServeHTTP(a, r.WithContext(ctx))
	if a.Code != 503 || a.Header().Get("Retry-After") == "" {
		t.Errorf("%d: %s", a.Code, a.Body)
	}
	<-w.h.turns
	w.get("/ui/", 200)
}

// FuzzQuery: no query string is too odd for an answer, and none is an error of ours.
func FuzzQuery(f *testing.F) {
	for _, q := range []string{"", "q=a&page=1", "q=%00", "page=-1", "name=ns/svc-00001", "from=10.0.0.1&to=10.96.0.1:80", "since=1", "%", ";;", "q=" + strings.Repeat("%41", 400)} {
		f.Add(q)
	}
	w := newWorld(f, Config{}, many(3)...)
	f.Fuzz(func(t *testing.T, q string) {
		for _, path := range []string{"/ui/", "/ui/service", "/ui/changes", "/ui/trace", "/ui/node"} {
			r := request("GET", path)
			r.URL.RawQuery = q
			a := httptest.NewRecorder()
			w.h.ServeHTTP(a, r)
			if a.Code >= 500 {
				t.Errorf("%s?%s: %d: %s", path, q, a.Code, a.Body)
			}
			if inline.MatchString(strings.ReplaceAll(a.Body.String(), "http://www.w3.org", "")) && strings.Contains(a.Body.String(), "<script>") {
				t.Errorf("%s?%s: %s", path, q, a.Body)
			}
		}
	})
}

// An answer has the connections that are open, and how many have ended.
func TestAnswerTellsOfConnections(t *testing.T) {
	for _, c := range []struct {
		of   inspect.TraceAnswer
		want string // "" for nothing of ended ones
	}{
		{inspect.TraceAnswer{ConntrackEnded: 300}, ">300 connections that have ended are remembered still.<"},
		{inspect.TraceAnswer{ConntrackEnded: 1, ConntrackMore: true}, ">At least 1 connection that has ended is remembered still.<"},
		{inspect.TraceAnswer{Conntrack: []inspect.Connection{{State: "ESTABLISHED"}}}, ""},
	} {
		var b strings.Builder
		if err := templates().ExecuteTemplate(&b, "answer", &c.of); err != nil {
			t.Fatal(err)
		}
		if got := b.String(); !strings.Contains(got, c.want) || c.want == "" && strings.Contains(got, "remembered") || strings.Count(got, "ESTABLISHED") != len(c.of.Conntrack) {
			t.Errorf("want %q:\n%s", c.want, got)
		}
	}
}
