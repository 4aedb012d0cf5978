//go:build linux

package page

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	chromium = flag.Bool("chromium", false, "test the status page in Chromium (make test-status)")
	axe      = flag.String("axe", "", "the file axe.min.js of axe-core, which make test-status fetches")
	pictures = flag.Bool("pictures", false, "rewrite the screenshots in docs/pictures")
)

// services is the number of Services besides shop/web.
const services = 10_000

// node is the proxy with its page.
type node struct {
	*place
	proxy *program
	ask   func(args ...string) string // output of a command of kube-proxy
	dir   string                      // of manifests
	page  string                      // its URL
}

// newNode starts a proxy with 10,000 Services, and the page.
func newNode(t *testing.T) *node {
	n := &node{place: newPlace(t), dir: t.TempDir()}
	binary := filepath.Join(t.TempDir(), "kube-proxy")
	if out, err := exec.Command("go", "build", "-o", binary, "kube-proxy/cmd/kube-proxy").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
	socket := filepath.Join(t.TempDir(), "admin.sock")
	n.write("node",
		"kind: Node\nmetadata: {name: node1, labels: {topology.kubernetes.io/zone: zone-a}}\n"+
			"spec: {podCIDRs: [10.1.0.0/24]}\nstatus: {addresses: [{type: InternalIP, address: 172.18.0.2}]}\n")
	teams := []string{"shop", "blog", "auth", "payments", "search", "media", "mail", "billing", "data", "kube-system"}
	var text strings.Builder
	for k := range services {
		team := teams[k%len(teams)]
		ready := k%1999 != 7
		fmt.Fprintf(&text,
			"---\nkind: Service\nmetadata: {name: svc-%05d, namespace: %s}\n"+
				"spec: {clusterIP: 10.%d.%d.%d, ports: [{name: http, port: 80}]}\n", k, team, 96+k>>16, k>>8&255, k&255)
		fmt.Fprintf(&text,
			"---\nkind: EndpointSlice\nmetadata: {name: svc-%05d-1, namespace: %s, labels: "+
				"{kubernetes.io/service-name: svc-%05d}}\naddressType: IPv4\n"+
				"ports: [{name: http, port: 8080}]\nendpoints: [{addresses: [100.64.%d.%d], nodeName: node%d, "+
				"conditions: {ready: %v}}]\n", k, team, k, k>>8&255, k&255, 1+k%5, ready)
	}
	n.write("bulk", text.String())
	n.web(3, 0)
	n.proxy = n.start(binary, "--proxy-mode=nftables", "--hostname-override=node1", "--manifests="+n.dir,
		"--cluster-cidr=10.1.0.0/16",
		"--nodeport-addresses=172.18.0.0/24", "--conntrack-max-per-core=0", "--conntrack-min=0",
		"--admin-socket="+socket, "--detect-local-mode=ClusterCIDR",
		"--service-metrics=50")
	n.ask = func(args ...string) string { return n.run(binary, append(args, "--admin-socket="+socket)...) }
	until(t, "all Services are written", func() bool {
		return slices.ContainsFunc(n.proxy.out.Lines(`"Compared and wrote all frontends" family="IPv4"`),
			func(line string) bool { return strings.Contains(line, "frontends=10") })
	})
	ui := n.start(binary, "ui", "--admin-socket="+socket, "--listen=127.0.0.1:10300")
	until(t, "the page is there", func() bool {
		n.page = regexp.MustCompile(`http://127\S+`).FindString(ui.out.String())
		return n.page != ""
	})
	return n
}

// write replaces a manifest atomically.
func (n *node) write(name, text string) {
	n.t.Helper()
	part := filepath.Join(n.t.TempDir(), "part")
	err := os.WriteFile(part, []byte(text), 0o644)
	if err == nil {
		err = os.Rename(part, filepath.Join(n.dir, name+".yaml"))
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// web writes Service shop/web with so many ready endpoints on three nodes. times is the number of
// changes of the slice.
func (n *node) web(ready, times int) {
	n.t.Helper()
	text := `kind: Service
metadata: {name: web, namespace: shop, creationTimestamp: "2026-11-20T10:00:00Z"}
spec: {type: LoadBalancer, clusterIP: 10.111.0.1, externalTrafficPolicy: Local, healthCheckNodePort: 32100,
  sessionAffinity: ClientIP, ports: [{name: http, port: 80, nodePort: 30080}]}
status: {loadBalancer: {ingress: [{ip: 192.0.2.7}]}}
---
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}, annotations: {endpoints.kubernetes.io/last-change-trigger-time: "` +
		time.Now().Add(-time.Duration(20+times*13%90)*time.Millisecond).UTC().Format(time.RFC3339Nano) + `"}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [100.64.201.9], nodeName: node2, zone: zone-b, conditions: {ready: false, serving: false}}
`
	if ready > 0 { // else the terminating endpoint would serve
		text += "- {addresses: [100.64.202.9], nodeName: node3, zone: zone-b, conditions: {ready: false, serving: " +
			"true, terminating: true}}\n"
	}
	for k := range ready {
		text += fmt.Sprintf("- {addresses: [100.64.20%d.%d], nodeName: node%d, zone: zone-%c, conditions: {ready: "+
			"true}}\n", k, 1+times, k+1, 'a'+min(k, 1))
	}
	n.write("web", text)
}

// The page in a browser, in the steps of an operator (KC-09, KC-10, KC-12, KC-13).
func TestPage(t *testing.T) {
	if !*chromium {
		t.Skip("Chromium is not among what every test may use: make test-status starts this with -chromium, and " +
			"package ui proves what is answered")
	}
	n := newNode(t)
	b := newBrowser(t, n.place, n.page)
	step := func(name string, f func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			b.t, n.t = t, t
			f(t)
		})
	}
	step("first paint", func(t *testing.T) { firstPaint(t, b) })
	step("list", func(t *testing.T) { list(t, b) })
	step("search", func(t *testing.T) { search(t, b) })
	step("service", func(t *testing.T) { service(t, b) })
	step("live", func(t *testing.T) { live(t, n, b) })
	step("changes", func(t *testing.T) { changesAndPlot(t, n, b) })
	step("trace", func(t *testing.T) { trace(t, n, b) })
	step("traffic", func(t *testing.T) { traffic(t, n, b) })
	step("widths", func(t *testing.T) { widths(t, n, b) })
	step("keyboard", func(t *testing.T) { keyboard(t, b) })
	step("axe", func(t *testing.T) { audit(t, b) })
	step("contrast", func(t *testing.T) { contrast(t, b) })
	step("accessible", func(t *testing.T) { accessible(t, b) })
	step("without scripts", func(t *testing.T) { withoutScripts(t, b) })
	step("hostile", func(t *testing.T) { hostile(t, n, b) })
	b.t, n.t = t, t
}

// paint is the time of a first paint, in milliseconds since the request.
const paint = "const p = performance.getEntriesByName('first-contentful-paint')[0]; return p ? p.startTime : 0"

// painted returns the shortest time to the first paint in several loads of each page. It alternates
// between the pages, so that other load of the machine affects all.
func painted(b *browser, pages ...string) []float64 {
	best := make([]float64, len(pages))
	for range 5 {
		for k, at := range pages {
			b.load(at)
			var ms float64
			until(b.t, "something is seen", func() bool { ms = script[float64](b, paint); return ms > 0 })
			if best[k] == 0 || ms < best[k] {
				best[k] = ms
			}
		}
	}
	return best
}

// The table appears nearly as soon as a page with two letters: within the required 300 ms on a
// machine that shows the small page after 32 ms, and in proportion on a slow one. The responses for
// 10,000 Services take less than a megabyte.
func firstPaint(t *testing.T, b *browser) {
	both := painted(b, "http://localhost:10249/healthz", b.page)
	empty, full := both[0], both[1]
	b.clean("favicon.ico")
	until(t, "the list is there", func() bool { return b.text("#live") == "live" })
	sent := script[float64](b,
		"return [...performance.getEntriesByType('navigation'), "+
			"...performance.getEntriesByType('resource')].reduce((sum, e) => sum + e.transferSize, 0)")
	files := script[float64](b,
		"return performance.getEntriesByType('resource').filter(e => !e.name.startsWith(location.origin)).length")
	t.Logf("first paint after %.0f ms, that of a page with two letters after %.0f ms; %.0f bytes were sent", full,
		empty, sent)
	if full > 8*empty+20 {
		t.Errorf("first paint after %.0f ms, that of a page with two letters after %.0f ms: want 8 times that and 20 "+
			"ms at most", full, empty)
	}
	if sent < 10_000 || sent > 1<<20 {
		t.Errorf("%.0f bytes were sent", sent)
	}
	if files != 0 {
		t.Errorf("%v files came from elsewhere", files)
	}
	b.clean()
}

// The list has all Services, but only creates the visible rows; keys move in it.
func list(t *testing.T, b *browser) {
	b.load(b.page)
	until(t, "the list is there", func() bool { return b.text("#live") == "live" })
	if text := b.text("#found"); text != "10,001 Services" {
		t.Errorf("found %q", text)
	}
	rows := func() float64 {
		return script[float64](b, "return document.querySelectorAll('#services tbody tr').length")
	}
	if r := rows(); r > 80 || r < 10 {
		t.Errorf("%v rows are there", r)
	}
	if first := b.text("#services tbody th"); first == "" ||
		!strings.Contains(b.text("#services tbody tr.note .state"), "has no backends") {
		t.Errorf("what needs a look is not first: %q", first)
	}
	focus := func() string { return script[string](b, "return document.activeElement.innerText") }
	index := func() string {
		return script[string](b,
			"const r = document.activeElement.closest('tr'); return r ? r.getAttribute('aria-rowindex') : ''")
	}
	b.press("/")
	b.press(keyDown)
	for _, c := range []struct{ key, index string }{
		{"", "2"}, {keyDown, "3"}, {keyDown, "4"}, {keyUp, "3"}, {keyEnd, fmt.Sprint(services + 2)},
		{keyUp, fmt.Sprint(services + 1)}, {keyHome, "2"},
	} {
		if c.key != "" {
			b.press(c.key)
		}
		if i := index(); i != c.index {
			t.Errorf("after key %q the focus is in row %s (%s), want %s", c.key, i, focus(), c.index)
		}
	}
	b.press(keyPageDown)
	if i := index(); i == "2" || i == "" {
		t.Errorf("PageDown: row %s", i)
	}
	if r := rows(); r > 80 {
		t.Errorf("%v rows are there after moving", r)
	}
	// It scrolls smoothly: the work of a frame is proportional to the visible rows.
	worst := script[float64](b, `const box = document.getElementById('list'); let most = 0;
		for (let i = 0; i < 200; i++) { box.scrollTop = i * 1700; box.dispatchEvent(new Event('scroll')); most = Math.max(most, document.querySelectorAll('#services tbody tr').length) } return most`)
	if worst > 80 {
		t.Errorf("%v rows while it scrolls", worst)
	}
	b.press(keyHome) // the row with the focus was not visible
	name := focus()
	b.press(keyEnter)
	until(t, "Enter opens "+name, func() bool { return b.text("h1") == name && name != "" })
	b.clean()
	if *pictures || *chromium {
		b.load(b.page)
		until(t, "the list is there", func() bool { return b.text("#live") == "live" })
		keep(t, "page-light.png", b.screenshot())
		dark(b, true)
		keep(t, "page-dark.png", b.screenshot())
		dark(b, false)
	}
}

// dark selects dark or light colours.
func dark(b *browser, on bool) {
	b.t.Helper()
	value := map[bool]string{true: "dark", false: "light"}[on]
	b.cdp("Emulation.setEmulatedMedia",
		map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": value}}}, nil)
}

// The search starts while the user types, and is part of the URL.
func search(t *testing.T, b *browser) {
	b.load(b.page)
	until(t, "the list is there", func() bool { return b.text("#live") == "live" })
	b.press("/")
	b.press("blog svc-0004")
	until(t, "what is typed is found", func() bool { return b.text("#found") == "1 of 10,001 Services" })
	if at := script[string](b, "return location.search"); at != "?q=blog+svc-0004" {
		t.Errorf("the address says %q", at)
	}
	b.load(b.page + "?q=blog+svc-0004")
	until(t, "the address is enough", func() bool {
		return b.text("#found") == "1 of 10,001 Services" &&
			b.text("#live") == "live"
	})
	b.click("input[value=problems]")
	until(t, "there is nothing", func() bool {
		return strings.Contains(b.text("#services tbody"),
			"No Service matches all of these words")
	})
	b.load(b.page + "?show=problems")
	until(t, "problems are found", func() bool {
		return b.text("#live") == "live" &&
			b.text("#found") == "5 of 10,001 Services"
	})
	b.clean()
}

// The picture of a Service has room for its texts. Package ui proves what they are.
func service(t *testing.T, b *browser) {
	b.load(b.page + "service?name=shop/web")
	for _, text := range []string{"node1 (this node)", "terminating, while others are ready"} {
		if has := script[string](b,
			"return document.querySelector('svg.picture').textContent"); !strings.Contains(has, text) {
			t.Errorf("the picture has no %q: %s", text, has)
		}
	}
	if over := script[[]string](b, `const box = document.querySelector('svg.picture').getBoundingClientRect();
		return [...document.querySelectorAll('svg.picture text')].filter(e => e.getBoundingClientRect().right > box.right + 1).map(e => e.textContent)`); len(over) > 0 {
		t.Errorf("the picture is too narrow for %q", over)
	}
	b.clean()
	b.do("POST", b.session+"/window/rect", map[string]int{"width": 1280, "height": 1180}, nil)
	keep(t, "page-service.png", b.screenshot())
	b.do("POST", b.session+"/window/rect", map[string]int{"width": 1280, "height": 800}, nil)
}

// Changes appear without user action, in the list and on the page of the Service; a hidden page
// gets none.
func live(t *testing.T, n *node, b *browser) {
	b.load(b.page + "?q=shop/web")
	until(t, "the list is there", func() bool { return b.text("#live") == "live" })
	state := func() string { return b.text("#services tbody tr:not(.space) .state") }
	if s := state(); s != "ok" {
		t.Errorf("before: %q", s)
	}
	script[any](b, "window.mark = 1; return null")
	n.web(0, 1)
	until(t, "the list shows what changed", func() bool { return strings.Contains(state(), "has no backends") })
	n.web(3, 2)
	until(t, "the list shows what changed back", func() bool { return state() == "ok" })
	if script[float64](b, "return window.mark || 0") != 1 {
		t.Error("the page was loaded again")
	}
	b.load(b.page + "service?name=shop/web")
	until(t, "the page is live", func() bool { return b.text("#live") == "live" })
	n.web(2, 3)
	until(t, "the page of the Service shows what changed", func() bool {
		return strings.Contains(b.text("#content"), "2 ready of 4") &&
			strings.Contains(b.text("#content"), "100.64.201.4")
	})
	b.clean()
}

// Changes are in a table and in a plot.
func changesAndPlot(t *testing.T, n *node, b *browser) {
	b.load(b.page + "changes")
	until(t, "the page is live", func() bool { return b.text("#live") == "live" })
	for k := range 14 {
		n.web(2+k%2, 4+k)
		until(t, "a change is listed", func() bool {
			return script[float64](b, "return document.querySelectorAll('svg.plot circle.api').length") > float64(k)
		})
	}
	if first := b.text("table.changes tbody tr th"); first != "shop/web" {
		t.Errorf("the newest change is of %q", first)
	}
	b.clean()
	keep(t, "page-changes.png", b.screenshot())
}

// KC-09: the form asks about the whole node. It shows what "kube-proxy trace" prints, and a
// firewall that drops the packet first.
func trace(t *testing.T, n *node, b *browser) {
	b.load(b.page + "trace")
	b.click("#from")
	b.press("10.1.0.9" + keyTab + "40000" + keyTab + "10.111.0.1:80" + keyTab + keyTab + "lan" + keyTab + keyEnter)
	until(t, "there is an answer", func() bool { return strings.HasPrefix(b.text("h2.verdict"), "Balanced over") })
	for _, text := range []string{"shop/web:http", "10.1.0.9:40000 → 10.111.0.1:80 tcp, through lan",
		"this node: delivered"} {
		if has := b.text("main"); !strings.Contains(has, text) {
			t.Errorf("the answer has no %q: %s", text, has)
		}
	}
	for details, args := range map[string][]string{"": nil, "details ": {"-o", "wide"}} {
		want := n.ask(append([]string{"trace", "10.1.0.9:40000", "10.111.0.1:80", "--in=lan"}, args...)...)
		got := script[string](b, "return document.querySelector(arguments[0]).textContent", details+"pre.screen")
		_, want, _ = strings.Cut(want, "\n")
		if got != want { // the command's first line is the node
			t.Errorf("the page says\n%s\nand the command\n%s", got, want)
		}
	}
	b.clean()
	n.run("nft",
		"add table inet firewall; add chain inet firewall forward { type filter hook forward priority 0; }; add rule "+
			"inet firewall forward ip daddr 100.64.0.0/10 drop")
	b.load(b.page + "trace?from=10.1.0.9&to=10.111.0.1:80&in=lan")
	n.run("nft", "delete table inet firewall")
	if got := b.text("h2.verdict.wrong"); got != "Dropped on this node" {
		t.Errorf("behind a firewall the verdict is %q", got)
	}
	if got := b.text("pre.problem[role=alert]"); !strings.HasPrefix(got,
		"DROPPED on this node, not by kube-proxy: table inet firewall, chain forward, rule 1") {
		t.Errorf("the firewall is not named: %q", got)
	}
	b.clean()
}

// ratios returns the texts of the page with less contrast than 4.5 to 1 (WCAG 2.2, 1.4.3).
const ratios = `
const lin = (c) => (c /= 255) <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
const rgba = (s) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = s; canvas.fillRect(0, 0, 1, 1);
  return canvas.getImageData(0, 0, 1, 1).data; };
const lum = (c) => .2126 * lin(c[0]) + .7152 * lin(c[1]) + .0722 * lin(c[2]);
const ground = (e) => { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor);
  if (c[3] === 255) return c; } return [255, 255, 255, 255]; };
const bad = []; let looked = 0;
for (const e of document.querySelectorAll('body *')) {
  if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || !e.checkVisibility() ||
    e.closest('.unseen, title, desc')) continue;
  const style = getComputedStyle(e);
  const front = rgba(e instanceof SVGElement ? style.fill : style.color);
  let back = ground(e);
  if (e instanceof SVGElement) { const r = e.parentElement.querySelector('rect'); const c = r &&
    rgba(getComputedStyle(r).fill); if (c && c[3] === 255) back = c; }
  const [a, b] = [lum(front), lum(back)].sort((x, y) => y - x);
  looked++;
  if ((a + .05) / (b + .05) < 4.5) bad.push(
    ((a + .05) / (b + .05)).toFixed(2) + ' ' + e.tagName + '.' + e.className + ' ' + e.textContent.trim().slice(0, 40));
}
return looked < 20 ? ['only ' + looked + ' texts'] : [...new Set(bad)].slice(0, 20);`

// All text has enough contrast, in light and in dark.
func contrast(t *testing.T, b *browser) {
	for _, on := range []bool{false, true} {
		dark(b, on)
		grounds := ""
		for _, path := range []string{"", "service?name=shop/web", "changes", "trace?from=10.1.0.9&to=10.111.0.1:80",
			"node"} {
			b.load(b.page + path)
			if path == "" {
				until(t, "the list is there", func() bool { return b.text("#live") == "live" })
			}
			for _, bad := range script[[]string](b, ratios) {
				t.Errorf("dark %v, %s: contrast %s", on, path, bad)
			}
			grounds = script[string](b, "return getComputedStyle(document.body).backgroundColor")
		}
		if isDark := grounds == "rgb(20, 23, 26)"; isDark != on {
			t.Errorf("dark %v: the ground is %s", on, grounds)
		}
	}
	dark(b, false)
	b.clean()
}

// node of the tree that screen readers get.
type axNode struct {
	Ignored                 bool
	Role, Name, Description struct{ Value string }
}

// accessible: a screen reader finds landmarks, headings, a table whose rows are counted, and a name
// for everything that can be pressed.
func accessible(t *testing.T, b *browser) {
	for path, want := range map[string][]string{
		"": {"banner", "navigation:Pages", "main", "contentinfo", "search", "heading:Services",
			"table", "searchbox:Search", "radio", "columnheader:Traffic policy", "columnheader:Conn/s",
			"link:Skip to the content", "status:10,001 Services"},
		"service?name=shop/web": {"heading:shop/web",
			"image:Path from service addresses to endpoints, http (80/tcp), IPv4", "image described",
			"heading:Endpoints, IPv4", "columnheader:Zone", "cell:zone-a here", "columnheader:Routes",
			"columnheader:Why not", "region:Picture", "heading:http (80/tcp), IPv4"},
		"changes": {"image:Latency of the last changes", "region:Last changes",
			"columnheader:Since the API"},
		"trace": {"textbox:From", "textbox:Source port", "textbox:To", "combobox:Protocol",
			"textbox:Incoming interface", "button:Trace"},
		"node": {"button:Compare now", "columnheader:IPv4", "rowheader:Frontends in the table"},
	} {
		b.load(b.page + path)
		if path == "" {
			until(t, "the list is there", func() bool { return b.text("#live") == "live" })
		}
		var tree struct{ Nodes []axNode }
		until(t, "there is a tree", func() bool { // it is built asynchronously
			tree.Nodes = nil
			b.cdp("Accessibility.getFullAXTree", nil, &tree)
			return slices.ContainsFunc(tree.Nodes, func(n axNode) bool { return n.Role.Value == "contentinfo" })
		})
		has := map[string]bool{}
		for _, n := range tree.Nodes {
			if n.Ignored {
				continue
			}
			role, name := n.Role.Value, n.Name.Value
			has[role], has[role+":"+name] = true, true
			if role == "image" && strings.Contains(n.Description.Value, "; 3 get new connections") {
				has["image described"] = true
			}
			if strings.Contains(strings.ToLower(role), "svg") || role == "img" { // the name differs between versions of Chromium
				has["image:"+name] = true
			}
			if slices.Contains([]string{"link", "button", "textbox", "searchbox", "combobox", "radio", "image",
				"table"}, role) && strings.TrimSpace(name) == "" && role != "table" {
				t.Errorf("%s: a %s has no name", path, role)
			}
		}
		for _, w := range want {
			if !has[w] && !(strings.HasPrefix(w, "status:") && has["status"]) {
				t.Errorf("%s: a screen reader finds no %s among %q", path, w, slices.Sorted(maps.Keys(has)))
			}
		}
		if lang := script[string](b, "return document.documentElement.lang"); lang != "en" {
			t.Errorf("%s: language %q", path, lang)
		}
	}
	b.load(b.page)
	until(t, "the list is there", func() bool { return b.text("#live") == "live" })
	b.press(keyTab)
	until(t, "the first stop is the way past the head", func() bool {
		return script[string](b, "return document.activeElement.textContent") == "Skip to the content"
	})
	if seen := script[string](b, "return getComputedStyle(document.activeElement).outlineStyle"); seen == "none" {
		t.Error("where the focus is cannot be seen")
	}
	b.clean()
}

// Without scripts the table is shown page by page, and can be searched.
func withoutScripts(t *testing.T, b *browser) {
	b.cdp("Emulation.setScriptExecutionDisabled", map[string]any{"value": true}, nil)
	defer b.cdp("Emulation.setScriptExecutionDisabled", map[string]any{"value": false}, nil)
	text := func(css string) string {
		var s string
		_ = b.try("GET", b.session+"/element/"+b.at(css)+"/text", nil, &s) // the page is gone: the caller retries
		return s
	}
	b.load(b.page)
	if live := text("#live"); !strings.HasPrefix(live, "as of ") { // the page was loaded, and stays
		t.Errorf("scripts run: %q", live)
	}
	b.at("#services tbody tr:nth-child(100) a")
	b.click("a[rel=next]")
	until(t, "the second page", func() bool { return strings.Contains(text("#pages"), "page 2 of 101") })
	b.do("POST", b.session+"/element/"+b.at("#q")+"/value", map[string]string{"text": "shop/web"}, nil)
	b.click("#search button")
	until(t, "it is found", func() bool { return strings.HasPrefix(text("#found"), "1 of 10,001") })
	b.click("#services tbody a")
	until(t, "the Service is shown", func() bool { return text("h1") == "shop/web" })
	b.clean()
}
