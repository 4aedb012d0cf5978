package ui

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/debug/api"
	"kube-proxy/debug/changes"
	"kube-proxy/debug/inspect"
	"kube-proxy/engine"
	"kube-proxy/failover"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/policy"
	"kube-proxy/trace"
)

// TN-84: every user of the machine can connect. Without the whole secret of the URL, a client
// learns nothing, whatever host name it uses; with it the page is read-only.
func TestAddressIsSecret(t *testing.T) {
	w := newWorld(t, cluster.Name{Namespace: "shop", Name: "web"})
	if other := New(w.h.client); other.Path() == w.h.Path() || len(w.h.Path()) < 20 {
		t.Errorf("two processes have the addresses %s and %s", w.h.Path(), other.Path())
	}
	secret := w.h.Path()
	for _, c := range []struct {
		method, path string
		code         int
	}{
		{"GET", secret, 200},
		{"HEAD", secret, 200},
		{"GET", strings.TrimSuffix(secret, "/"), 308},
		{"GET", secret + "nothing", 404},
		{"GET", secret + "static/../handler.go", 404},
		{"POST", secret, 405},
		{"DELETE", secret + "service?name=shop/web", 405},
		{"GET", "/", 403},
		{"GET", "//", 403},
		{"GET", "/ui/", 403},
		{"GET", "/services.json", 403},
		{"GET", "/static/page.js", 403},
		{"GET", secret[:len(secret)-2] + "/", 403},
		{"GET", "/" + secret, 403},
		{"GET", strings.ToLower(secret), 403},
		{"GET", "/x" + secret, 403},
		{"POST", "/", 403},
	} {
		for _, host := range []string{"localhost:10300", "evil.example"} {
			r := httptest.NewRequest(c.method, c.path, nil)
			r.Host = host
			a := httptest.NewRecorder()
			w.h.ServeHTTP(a, r)
			if a.Code != c.code {
				t.Errorf("%s %s: %d, want %d: %s", c.method, c.path, a.Code, c.code, a.Body)
			}
			if text := fmt.Sprint(a.Header(), a.Body); a.Code == 403 &&
				(strings.Contains(text, "shop") || strings.Contains(text, strings.Trim(secret, "/"))) {
				t.Errorf("%s %s: it reveals a secret: %s", c.method, c.path, text)
			}
			if c.method == "HEAD" && a.Body.Len() > 0 {
				t.Error("HEAD has a body")
			}
		}
	}
}

// inline matches content that the content security policy would refuse in a page.
var inline = regexp.MustCompile(`<script>|<script [^>]*>[^<]|\son[a-z]+=|\sstyle=|<style|javascript:|https?://`)

// Every response limits what a browser may do with it, and no page needs more.
func TestHeaders(t *testing.T) {
	w := newWorld(t, many(3)...)
	for _, path := range []string{"", "service?name=ns/svc-00001", "changes", "trace",
		"trace?from=10.0.0.1&to=10.96.0.1:80", "node", "node?compare=now",
		"services.json", "static/page.js", "static/style.css", "static/icon.svg", "nothing", "?page=x"} {
		a := w.ask("GET", path, nil)
		csp := a.Header().Get("Content-Security-Policy")
		for _, part := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'",
			"frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'"} {
			has(t, csp, part)
		}
		if strings.Contains(csp, "unsafe") {
			t.Errorf("%s: %s", path, csp)
		}
		for name, want := range map[string]string{"X-Content-Type-Options": "nosniff",
			"Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin"} {
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

// tag matches an element of a page without its content.
var tag = regexp.MustCompile(`<[^>]*>`)

// Text of tenants stays text, and invisible characters are spelled out.
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
	w := newWorld(t, evil...)
	w.stats.LastError, w.stats.Failing = "<script>alert(2)</script>\u202e",
		[]engine.Failing{{Key: lb.Key{Port: 80, Proto: lb.TCP}, Service: evil[0].String(),
			Err: "<script>alert(3)</script>"}}
	w.ring.Add(changes.Entry{Kind: changes.Failed, Service: evil[0], Why: "<script>alert(4)</script>",
		Done: time.Now().UnixNano()})
	paths := []string{"", "changes", "node", "?q=%3Cscript%3Ealert(5)%3C/script%3E",
		"trace?from=%3Cscript%3Ealert(6)%3C/script%3E&to=%E2%80%AE", "service?name=%3Cscript%3E%E2%80%AE"}
	link := regexp.MustCompile(`href="(service\?name=[^"]+)"`)
	for _, m := range link.FindAllStringSubmatch(w.get("", 200), -1) {
		path := strings.ReplaceAll(m[1], "&amp;", "&")
		paths = append(paths, path)
		if !strings.Contains(path, "%ef%bf%bd") { // a name with invalid UTF-8 does not match in a URL
			w.get(path, 200)
		}
	}
	if len(paths) != 6+len(evil) {
		t.Errorf("%d links to Services, want %d", len(paths)-6, len(evil))
	}
	for _, path := range paths {
		a := w.ask("GET", path, nil)
		page := a.Body.String()
		for _, bad := range []string{"<script>", "<img", "<b>evil", "<b>/", "\a", "\x00", "\x1b"} {
			if strings.Contains(page, bad) {
				t.Errorf("%s has %q", path, bad)
			}
		}
		// attributes are not displayed
		if text := tag.ReplaceAllString(page, ""); strings.ContainsRune(text, '\u202e') {
			t.Errorf("%s has marks that turn the text around", path)
		}
	}
	has(t, w.get("", 200), `web\u{202e}gnp.exe`)
	has(t, w.get("", 200), `&lt;script&gt;alert(1)&lt;/script&gt;`)
	has(t, w.get("", 200), "bad\uFFFD\uFFFDutf8")
}

// The table can be searched and paged without scripts; problems come first.
func TestTable(t *testing.T) {
	w := newWorld(t, many(250)...)
	w.service(cluster.Name{Namespace: "ns", Name: "svc-00200"}, 200, 0)
	page := w.get("", 200)
	if n := strings.Count(page, "service?name="); n != perPage {
		t.Errorf("%d rows, want %d", n, perPage)
	}
	if strings.Index(page, "svc-00200") > strings.Index(page, "svc-00000") {
		t.Error("the Service without backends is not first")
	}
	has(t, page, "has no backends")
	has(t, page, `href="?page=2"`)
	has(t, page, "250 Services")
	has(t, w.get("?page=3", 200), "svc-00249")
	found := w.get("?q=SVC-0012+10.96", 200)
	has(t, found, "10 of 250 Services")
	if n := strings.Count(found, "service?name="); n != 10 {
		t.Errorf("%d rows, want 10", n)
	}
	has(t, w.get("?show=problems", 200), "1 of 250 Services")
	has(t, w.get("?q=nothing-like-it", 200), "No Service matches all of these words")
	has(t, w.get("?q=svc&show=all&page=2", 200), `href="?page=3&amp;q=svc"`)
}

// The error for an invalid query string names the parameter and the expected form.
func TestBadQueryStrings(t *testing.T) {
	w := newWorld(t, many(3)...)
	for path, text := range map[string]string{
		"?page=x":                               "page=x: want a number from 1",
		"?page=-1":                              "page=-1: want a number from 1",
		"?page=99999999999999999999":            "want a number from 1",
		"?page=2":                               "page=2: want a number from 1 to 1",
		"?show=some":                            "show=some: want all or problems",
		"?q=" + strings.Repeat("a", 400):        "want 300 bytes at most",
		"?q=" + strings.Repeat("a", 4000):       "want 600 at most",
		"?q=%zz":                                "invalid query string",
		"?q=a&q=b":                              "q is given 2 times",
		"?sort=name":                            "there is no parameter",
		"?q=a;b=c":                              "invalid query string",
		"service":                               "want a Service, as namespace/name",
		"trace?from=10.0.0.1":                   "to is empty",
		"trace?to=10.0.0.1":                     "from is empty",
		"trace?from=x&to=10.0.0.1:80":           "x",
		"trace?from=10.0.0.1&to=10.0.0.1:99999": "99999",
		"trace?from=10.0.0.1&to=10.0.0.1:80&proto=icmp": "want tcp, udp or sctp",
		"node?compare=yes":  "want now",
		"changes?x=y":       "there is no parameter",
		"events?since=x":    "want a number",
		"services.json?x=y": "takes no parameters",
	} {
		has(t, w.get(path, 400), text)
	}
	w.get("service?name=ns/none", 404)
	w.get("nothing", 404)
}

// Ten thousand Services take less than a megabyte, and much less compressed. They are queried once;
// later queries only return changes, whatever the number of Services.
func TestListing(t *testing.T) {
	w := newWorld(t, many(10000)...)
	ask := func(want int) {
		t.Helper()
		before := w.looked
		a := w.ask("GET", "services.json", func(r *http.Request) { r.Header.Set("Accept-Encoding", "br, gzip") })
		sent := a.Body.Len()
		z, err := gzip.NewReader(a.Body)
		if err != nil {
			t.Fatal(err)
		}
		var l listing
		if err := json.NewDecoder(z).Decode(&l); err != nil || len(l.Services) != 10000 || sent > 1<<18 {
			t.Errorf("%d Services in %d bytes, %v", len(l.Services), sent, err)
		}
		if looked := w.looked - before; looked != want {
			t.Errorf("the proxy looked at %d Services, want %d", looked, want)
		}
	}
	ask(10000)
	ask(0)
	if page, list := len(w.get("", 200)), len(w.get("services.json", 200)); page+list > 1<<20 {
		t.Errorf("page %d bytes, list %d", page, list)
	}
	w.gone(cluster.Name{Namespace: "ns", Name: "svc-00007"})
	w.service(cluster.Name{Namespace: "ns", Name: "new"}, 10001, 1)
	w.looked = 0
	ask(1)
	has(t, w.get("?q=new", 200), "1 of 10,000 Services")
	has(t, w.get("?q=svc-00007", 200), "No Service matches all of these words")
	w.ring.Add(changes.Entry{Kind: changes.Reset})
	w.h.list.due = time.Now().Add(time.Hour) // all were queried a moment ago
	ask(0)
	if rev := w.h.list.rev; rev >= w.inspector.Newest() {
		t.Errorf("older rows are as of %d", rev)
	}
	w.h.list.due = time.Now()
	for names := w.inspector.Names(); !slices.ContainsFunc(names,
		func(n cluster.Name) bool { return n.Name == "new" }); names = w.inspector.Names() {
		time.Sleep(time.Millisecond) // names are read again at most 1 % of the time
	}
	ask(10000)
}

// KC-11: each port has a picture in each family, with its own addresses and endpoints; eight at
// most.
func TestPicturesByPortAndFamily(t *testing.T) {
	d := &inspect.Detail{Service: inspect.Service{Namespace: "ns", Name: "web"}}
	for _, family := range []string{"IPv4", "IPv6"} {
		f := inspect.DetailFamily{Family: family}
		for _, port := range []inspect.Port{{Name: "dns", Port: 53, Protocol: "udp"},
			{Name: "dns-tcp", Port: 53, Protocol: "tcp"}, {Name: "http", Port: 80, Protocol: "tcp"}} {
			service, at := "ns/web:"+port.Name, map[string]string{"IPv4": "10.96.0.1", "IPv6": "[fd00::1]"}[family]
			f.Ports = append(f.Ports, inspect.DetailPort{Port: port, Service: service, MoreEndpoints: 7})
			f.Frontends = append(f.Frontends, inspect.Frontend{Service: service, State: "in force",
				Key:    fmt.Sprintf("%s:%d/%s", at, port.Port, port.Protocol),
				Routes: []inspect.Route{{Do: "balance", Set: service + "/" + port.Protocol + "/cluster", Backends: 1}}})
			f.Endpoints = append(f.Endpoints, inspect.Endpoint{Service: service, Protocol: port.Protocol,
				In: []string{"cluster"}, Ready: true,
				Address: netip.AddrPortFrom(netip.MustParseAddr(strings.Trim(at, "[]")), 8000+port.Port)})
		}
		d.Families = append(d.Families, f)
	}
	all, more := pictures(d)
	var of []string
	for _, p := range all {
		of = append(of, p.Of)
		if len(p.Boxes) != 3 || len(p.Ways) != 2 ||
			!strings.HasPrefix(p.Says, "From 1 service address on the left over backend sets to 8 endpoints") {
			t.Errorf("%s: %d boxes, %d ways: %s", p.Of, len(p.Boxes), len(p.Ways), p.Says)
		}
	}
	want := []string{"dns (53/udp), IPv4", "dns-tcp (53/tcp), IPv4", "http (80/tcp), IPv4", "dns (53/udp), IPv6",
		"dns-tcp (53/tcp), IPv6", "http (80/tcp), IPv6"}
	if !slices.Equal(of, want) || more != 0 {
		t.Errorf("pictures of %q and %d more, want %q", of, more, want)
	}
	d.Families = append(d.Families, d.Families...)
	if all, more = pictures(d); len(all) != shownPictures || more != 12-shownPictures {
		t.Errorf("%d pictures and %d more", len(all), more)
	}
}

// The trace of a packet.
func TestTraceForm(t *testing.T) {
	w := newWorld(t, cluster.Name{Namespace: "shop", Name: "web"})
	page := w.get("trace?from=10.1.1.11&to=10.96.0.0:80&proto=tcp", 200)
	for _, text := range []string{"Balanced over 1 backend", "100.64.0.0:8080", "100.00 %",
		`href="service?name=shop%2fweb"`} {
		has(t, page, text)
	}
	has(t, w.get("trace?from=10.1.1.11&to=10.9.9.9:80", 200), "Passed")
	bad := w.get("trace?from=nonsense&to=10.96.0.0:80", 400)
	has(t, bad, `aria-invalid="true"`)
	has(t, bad, `value="nonsense"`)
}

// For a folder of objects the pages are those of a running proxy, but nothing changes, and no
// script follows changes.
func TestOffline(t *testing.T) {
	w := newWorld(t, cluster.Name{Namespace: "shop", Name: "web"})
	w.h = New(api.Local(inspect.New(inspect.Config{Store: w.store, Offline: true, Mode: mode.Mode{Name: "nftables"},
		Families: []inspect.Family{{Family: lb.IPv4, Query: w.query,
			Settings: func(cluster.Name) policy.Settings { return w.settings }}}})))
	for path, text := range map[string]string{"": "shop/web", "service?name=shop/web": "100.64.0.0:8080",
		"trace?from=node&to=10.96.0.0:80": "Balanced over 1 backend", "node": "Mode nftables"} {
		page := w.get(path, 200)
		has(t, page, text)
		if strings.Contains(page, "<script") {
			t.Errorf("%q is live", path)
		}
	}
	has(t, w.get("changes", 503), "no changes offline")
}

// Unreachable nodes stand on top of every page, and their names stay text.
func TestUnreachableNode(t *testing.T) {
	w := newWorld(t, cluster.Name{Namespace: "shop", Name: "web"})
	w.failover.Nodes = []failover.NodeStatus{{Name: "node-b<b>", For: 12 * time.Second, Endpoints: 41}}
	w.failover.Endpoints = []failover.EndpointStatus{{Address: netip.MustParseAddrPort("100.64.0.9:80"),
		For: time.Minute, Result: "silent", Why: "a NetworkPolicy may drop them"}}
	for _, path := range []string{"", "service?name=shop/web", "node"} {
		page := w.get(path, 200)
		has(t, page, "node-b&lt;b&gt; is unreachable from here since 12s: 41 endpoints avoided")
		has(t, page, "100.64.0.9:80 is silent for clients and not avoided: a NetworkPolicy may drop them")
	}
}

// Problems stand on top of every page.
func TestHead(t *testing.T) {
	w := newWorld(t, many(2)...)
	has(t, w.get("trace", 200), "2 Services, all frontends in force")
	w.stats.Failing = []engine.Failing{{Key: lb.Key{Port: 80, Proto: lb.TCP}, Service: "ns/svc-00001:http",
		Err: "no buffer space", Tries: 3}}
	for _, path := range []string{"", "trace", "changes", "node"} {
		page := w.get(path, 200)
		has(t, page, `class="head alarm"`)
		has(t, page, "1 frontend is not in force")
	}
	has(t, w.get("node", 200), "no buffer space")
}

// An asset that the browser has is not sent again.
func TestAssets(t *testing.T) {
	w := newWorld(t)
	a := w.ask("GET", "static/style.css", nil)
	again := w.ask("GET", "static/style.css", func(r *http.Request) {
		r.Header.Set("If-None-Match", a.Header().Get("ETag"))
	})
	if a.Code != 200 || again.Code != 304 || again.Body.Len() != 0 {
		t.Errorf("%d, then %d with %d bytes", a.Code, again.Code, again.Body.Len())
	}
	for name, a := range w.h.assets {
		if a.kind == "" || len(a.text) == 0 {
			t.Errorf("%s has no type, or nothing in it", name)
		}
		if strings.Contains(string(a.text), "innerHTML") {
			t.Errorf("%s makes HTML of text", name)
		}
	}
}

// Invisible characters are spelled out.
func TestVisible(t *testing.T) {
	for in, want := range map[string]string{
		"shop/web": "shop/web", "größe": "größe", "日本": "日本", "a\u202eb": `a\u{202e}b`, "a\u200bb": `a\u{200b}b`,
		"\ufeff": `\u{feff}`,
		"a\nb":   `a\u{a}b`, "\x7f": `\u{7f}`, "\u0085": `\u{85}`, "\u2028": `\u{2028}`, "\xff": `\xff`,
		"\uFFFD": "\uFFFD", "\u2066x\u2069": `\u{2066}x\u{2069}`,
	} {
		if got := visible(in); got != want {
			t.Errorf("visible(%q) = %q, want %q", in, got, want)
		}
	}
}

// FuzzQuery: every query string gets an answer, and none causes an internal error.
func FuzzQuery(f *testing.F) {
	for _, q := range []string{"", "q=a&page=1", "q=%00", "page=-1", "name=ns/svc-00001",
		"from=10.0.0.1&to=10.96.0.1:80", "since=1", "%", ";;", "q=" + strings.Repeat("%41", 400)} {
		f.Add(q)
	}
	w := newWorld(f, many(3)...)
	f.Fuzz(func(t *testing.T, q string) {
		for _, path := range []string{"", "service", "changes", "trace", "node"} {
			a := w.ask("GET", path, func(r *http.Request) { r.URL.RawQuery = q })
			if a.Code >= 500 {
				t.Errorf("%s?%s: %d: %s", path, q, a.Code, a.Body)
			}
			if inline.MatchString(strings.ReplaceAll(a.Body.String(), "http://www.w3.org", "")) &&
				strings.Contains(a.Body.String(), "<script>") {
				t.Errorf("%s?%s: %s", path, q, a.Body)
			}
		}
	})
}

// KC-10: State and Ready follow the name, which the row does not repeat.
func TestColumns(t *testing.T) {
	name := cluster.Name{Namespace: "ns", Name: "web"}
	w := newWorld(t, name)
	w.service(name, 0, 0)
	if page := w.get("", 200); !regexp.MustCompile(`<bdi>ns/web</bdi></a></th><td class="state"><span class="dot" ` +
		`aria-hidden="true"></span>http has no backends[^<]*</td><td class="n">0/0</td><td class="n conn">`).
		MatchString(page) {
		t.Errorf("the columns are others:\n%s", page)
	}
	for why, want := range map[string]string{"ns/web has no backends": "has no backends",
		"ns/web:http has none; ns/web:dns too": "http has none; dns too"} {
		if got := said(&inspect.Service{Namespace: "ns", Name: "web", Why: why}); got != want {
			t.Errorf("%q is said as %q, want %q", why, got, want)
		}
	}
}

// KC-14: README, manual and chart notes show the command.
func TestCommandIsPrinted(t *testing.T) {
	for file, command := range map[string]string{
		"README.md": "kube-proxy ui ", "docs/operate.md": "kube-proxy ui",
		"charts/kube-proxy/templates/NOTES.txt": "kube-proxy ui --listen 127.0.0.1:10300",
	} {
		text, err := os.ReadFile(filepath.Join("..", "..", file))
		if err != nil || !strings.Contains(string(text), command) {
			t.Errorf("%s has no %q (%v)", file, command, err)
		}
	}
}

// KC-09: the form traces through the whole node, with source port and interface. If the node stops
// the packet, that is the heading, above the answer of the table, and everything is as "kube-proxy
// trace" prints it.
func TestTraceOfTheNode(t *testing.T) {
	w := newWorld(t, many(1)...)
	by := `table inet firewall, chain forward, rule 3 "drop <b>"`
	dropped := trace.Node{Verdict: trace.Dropped, By: by, Stage: "forward", Share: 1, Do: "nft delete rule",
		Steps:        []trace.Step{{Stage: "route", Text: "to eth0"}, {Stage: "route", Text: "back", Reply: true}},
		NotEvaluated: []string{"bpf\u202e on eth0"}}
	some, rejected := dropped, dropped
	some.Share, rejected.Verdict = .5, trace.Rejected
	for _, c := range []struct {
		rest          trace.Node
		class, says   string
		alert, screen string
	}{
		{dropped, "wrong", "Dropped on this node",
			"DROPPED on this node, not by kube-proxy: table inet firewall, chain forward, rule 3 &#34;drop " +
				"&lt;b&gt;&#34;", "packet: route to eth0"},
		{some, "wrong", "Dropped on this node for some connections", "do: nft delete rule", "reply: route back"},
		{rejected, "wrong", "Rejected on this node", "REJECTED on this node", `not evaluated: bpf\u202e on eth0`},
		{trace.Node{Verdict: trace.Undecided}, "balance",
			"Balanced over 1 backend, as far as this node could be evaluated", "NOT DECIDED", "this node: unknown"},
		{trace.Node{Verdict: trace.Delivered}, "balance", "Balanced over 1 backend", "", "this node: delivered"},
	} {
		w.rest = &c.rest
		page := w.get("trace?from=10.1.1.9&port=40000&to=ns/svc-00000&in=eth1", 200)
		has(t, page, fmt.Sprintf(`class="verdict %s">%s</h2>`, c.class, c.says))
		has(t, page, c.alert)
		if strings.Contains(page, `role="alert"`) != (c.alert != "") {
			t.Errorf("%s: an alert, or none:\n%s", c.says, page)
		}
		has(t, page, c.screen)
		has(t, page, `name="in" class="brief" maxlength="15" value="eth1"`)
		if got, want := w.followed.Packet, (trace.Packet{From: netip.MustParseAddrPort("10.1.1.9:40000"), In: "eth1",
			To: netip.MustParseAddrPort("10.96.0.0:80"), Proto: lb.TCP}); got != want {
			t.Errorf("traced %+v, want %+v", got, want)
		}
	}
	for says, rest := range map[string]trace.Node{
		`class="verdict wrong">A connection stays with a former backend</h2>`: {Pinned: []trace.Pinned{{Proto: "tcp",
			Do: "conntrack -D"}}},
		`<pre class="remark" role="alert">ask node2`: {Elsewhere: "ask node2"},
	} {
		var b strings.Builder
		if err := templates().ExecuteTemplate(&b, "answer", &inspect.TraceAnswer{Rest: &rest}); err != nil {
			t.Fatal(err)
		}
		has(t, b.String(), says)
	}
	w.get("trace?from=shop/web-1&port=40000&to=ns/svc-00000", 200)
	if got := w.followed.Packet.From.String(); got != "100.64.0.7:40000" {
		t.Errorf("the Pod is at %s", got)
	}
	has(t, w.get("trace?from=shop/absent&to=ns/svc-00000", 404), "shop/absent")
	for _, port := range []string{"0", "x", "99999"} {
		has(t, w.get("trace?from=10.1.1.9&to=ns/svc-00000&port="+port, 400), "want a number from 1 to 65535")
	}
	has(t, w.get("trace?from=10.1.1.9:1&to=ns/svc-00000&port=2", 400), "and none in the source")
}
