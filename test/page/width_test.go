//go:build linux

package page

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// screens calls f for a wide screen and a phone's, each in light and in dark.
func screens(b *browser, f func(width int, isDark bool)) {
	for _, width := range []int{1400, 390} {
		b.width(width)
		for _, isDark := range []bool{false, true} {
			dark(b, isDark)
			f(width, isDark)
		}
	}
	b.width(0)
	dark(b, false)
}

// listed opens the list with a query string.
func listed(b *browser, query string) {
	b.t.Helper()
	b.load(b.page + query)
	until(b.t, "the list is there", func() bool { return b.text("#live") == "live" })
}

// cut returns the cells of visible rows that are truncated.
const cut = `const box = document.getElementById('list').getBoundingClientRect();
return [...document.querySelectorAll('#services tbody tr:not(.space)')].filter(r => r.getBoundingClientRect().bottom < box.bottom).flatMap(r => [...r.cells])
  .filter(c => c.matches(arguments[0]) && c.checkVisibility())
  .filter(c => { const r = c.getBoundingClientRect(), in_ = c.querySelector('.clip') || c;
    return r.left < 0 || r.right > innerWidth || in_.scrollHeight > in_.clientHeight + 1 || in_.scrollWidth > in_.clientWidth + 1 })
  .map(c => c.textContent)`

// KC-10: every name that the API allows is shown whole, so that names can be distinguished; State,
// Ready and connections are visible at any width. Problems come first.
func widths(t *testing.T, n *node, b *browser) {
	side := strings.Repeat("frontend-of-the-shop-", 3)[:62]
	names := []string{"a" + side, "b" + side, side + "a", side + "b", side[:30] + "a" + side[30:], side[:30] + "b" +
		side[30:], "short"}
	text := ""
	for k, name := range names {
		text += fmt.Sprintf("---\nkind: Service\nmetadata: {name: %s, namespace: %s}\n"+
			"spec: {clusterIP: 10.112.0.%d, ports: [{port: 80}]}\n", name, "z"+side, k)
	}
	n.write("long", text)
	defer func() {
		os.Remove(filepath.Join(n.dir, "long.yaml"))
		until(t, "they are gone", func() bool { return !strings.Contains(n.ask("table", "short"), "short") })
	}()
	listed(b, "")
	until(t, "they are listed", func() bool { return strings.HasPrefix(b.text("#found"), "10,008") })
	screens(b, func(width int, isDark bool) {
		listed(b, "?q=zfront")
		if text := b.text("#found"); text != "7 of 10,008 Services" {
			t.Errorf("%d pixels: found %q", width, text)
		}
		for _, name := range script[[]string](b, cut, "th, .state, .state ~ .n:not(.wide)") {
			t.Errorf("%d pixels: %q is cut", width, name)
		}
		listed(b, "")
		if first := script[[]string](b,
			"return [...document.querySelectorAll('#services tbody "+
				"tr:not(.space)')].slice(0, 12).map(r => r.className)"); strings.Join(first, " ") != strings.Repeat(
			"note ", 11)+"note" {
			t.Errorf("%d pixels: the first rows are %q", width, first)
		}
		for _, what := range []string{"state", "ready", "conn"} {
			if right := script[float64](b,
				"return document.querySelector('#services th.' + arguments[0]).getBoundingClientRect().right",
				what); right > float64(width) || right == 0 {
				t.Errorf("%d pixels: column %s ends at %v", width, what, right)
			}
		}
		for _, path := range []string{"", "service?name=shop/web", "changes", "trace?from=10.1.0.9&to=10.111.0.1:80",
			"node"} {
			b.load(b.page + path)
			until(t, fmt.Sprintf("%q is %d pixels wide", path, width), func() bool { // a busy browser adapts it later
				return script[float64](b, "return document.documentElement.scrollWidth") <= float64(width)
			})
		}
	})
	b.clean()
}

// KC-12: each Service has its traffic beside it, in real connections per second. While no page is
// open nothing is counted.
func traffic(t *testing.T, n *node, b *browser) {
	n.write("busy", `kind: Service
metadata: {name: busy, namespace: shop}
spec: {clusterIP: 10.111.0.2, ports: [{name: http, port: 80}]}
---
kind: EndpointSlice
metadata: {name: busy-1, namespace: shop, labels: {kubernetes.io/service-name: busy}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [100.64.210.1], nodeName: node1, conditions: {ready: true}}]
`)
	defer func() {
		os.Remove(filepath.Join(n.dir, "busy.yaml"))
		until(t, "it is gone", func() bool { return !strings.Contains(n.ask("table", "busy"), "busy") })
	}()
	var l net.Listener
	n.ns.Do(func() {
		var err error
		l, err = net.Listen("tcp4", "100.64.210.1:8080")
		if err != nil {
			t.Fatal(err)
		}
	})
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request) {
		w.Write(make([]byte, 20_000))
	})}
	go s.Serve(l)
	defer s.Close()
	ended, end := make(chan struct{}), make(chan struct{})
	go func() { // some ten connections a second
		defer close(ended)
		for {
			select {
			case <-end:
				return
			case <-time.After(100 * time.Millisecond):
			}
			n.ns.Do(func() {
				if c, err := net.DialTimeout("tcp4", "10.111.0.2:80", time.Second); err == nil {
					fmt.Fprint(c, "GET / HTTP/1.0\r\n\r\n")
					c.SetReadDeadline(time.Now().Add(time.Second))
					for buf := make([]byte, 32<<10); err == nil; {
						_, err = c.Read(buf)
					}
					c.Close()
				}
			})
		}
	}()
	defer func() { close(end); <-ended }()
	listed(b, "?q=shop/busy")
	cell := func(of, kind string) string {
		return script[string](b,
			`const a = [...document.querySelectorAll('#services a')].find(a => a.textContent === arguments[0]);
			return a ? a.closest('tr').querySelector(arguments[1]).textContent : ''`, of, kind)
	}
	until(t, "connections are seen", func() bool {
		var rate float64
		fmt.Sscan(cell("shop/busy", ".conn"), &rate)
		return rate > 1 && rate < 30
	})
	if script[bool](b, "return document.querySelector('th.bytes').checkVisibility()") {
		t.Error("there is a column of bytes, which this mode does not count")
	}
	listed(b, "?q=shop/web")
	until(t, "a Service without traffic has none", func() bool {
		return cell("shop/web", ".conn") == "0"
	})
	b.load(b.page + "service?name=shop/busy")
	until(t, "the page of the Service has it", func() bool {
		return strings.HasSuffix(b.text("#traffic"), " connections/s")
	})
	b.load("about:blank") // the Service is deleted
	b.clean()
}

// stop presses Tab until the focus is at an element.
func (b *browser) stop(css string) {
	b.t.Helper()
	for range 60 {
		b.press(keyTab)
		if script[bool](b, "return document.activeElement.matches(arguments[0])", css) {
			if script[bool](b,
				`const e = document.activeElement, r = e.getBoundingClientRect(), s = getComputedStyle(e);
				return r.width > 0 && r.bottom > 0 && r.top < innerHeight && s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) > 0`) {
				return
			}
			b.t.Errorf("the focus is at %s, and cannot be seen", css)
			return
		}
	}
	b.t.Fatalf("Tab does not come to %s", css)
}

// KC-13: every function of the page works with only the keyboard, at both widths.
func keyboard(t *testing.T, b *browser) {
	head := func(text string) {
		t.Helper()
		until(t, "a page of "+text, func() bool { return b.text("h1") == text })
	}
	for _, width := range []int{1400, 390} {
		b.width(width)
		listed(b, "")
		b.stop("#q")
		b.press("shop/web")
		until(t, "it is found", func() bool { return strings.HasPrefix(b.text("#found"), "1 of ") })
		b.stop("input[name=show]")
		b.stop("#services a")
		b.press(keyEnter)
		head("shop/web")
		b.stop(".scroll:has(.picture)")
		if width == 390 {
			until(t, "an arrow moves the picture", func() bool {
				b.press(keyRight)
				return script[float64](b, "return document.activeElement.scrollLeft") > 0
			})
		}
		b.stop("td a[href^=trace]")
		b.press(keyEnter)
		head("Trace")
		until(t, "there is a verdict", func() bool { return b.text("h2.verdict") != "" })
		for _, field := range []string{"#from", "#port", "#to", "#proto", "#in", "form.ask button"} {
			b.stop(field)
		}
		b.press(keyEnter)
		until(t, "the query is repeated", func() bool {
			return script[bool](b, "return location.search.includes('port=') && document.readyState === 'complete'")
		})
		b.stop("pre.screen")
		b.stop("summary")
		b.press(keyEnter)
		until(t, "there is more",
			func() bool { return script[bool](b, "return document.querySelector('details').open") })
		b.load(b.page + "trace")
		b.stop("nav a[href=changes]")
		b.press(keyEnter)
		head("Changes")
		b.stop("nav a[href=node]")
		b.press(keyEnter)
		head("Node")
		b.stop("button[name=compare]")
		b.press(keyEnter)
		until(t, "the kernel is compared", func() bool {
			return strings.Contains(b.text(".says"), "frontends in the kernel match")
		})
		b.stop("nav a[href='./']")
		b.press(keyEnter)
		head("Services")
	}
	b.width(0)
	b.clean()
}

// audit fails the test if axe-core reports a problem on any page, at both widths, in light and in
// dark.
func audit(t *testing.T, b *browser) {
	source, err := os.ReadFile(*axe)
	if err != nil {
		t.Fatalf("axe-core, for -axe: %v (make test-status fetches it)", err)
	}
	type finding struct {
		ID, Help string
		Nodes    []struct{ HTML, FailureSummary string }
	}
	type result struct {
		Violations []finding
		Passes     int
		Failed     string
	}
	screens(b, func(width int, isDark bool) {
		for _, path := range []string{"", "?show=problems", "?q=nothing-like-it", "service?name=shop/web",
			"service?name=shop/none", "changes", "trace", "trace?from=10.1.0.9&to=10.111.0.1:80",
			"trace?from=absent&to=10.111.0.1:80", "node?compare=now"} {
			b.load(b.page + path)
			if path == "" || path[0] == '?' {
				until(t, "the list is there", func() bool { return b.text("#live") == "live" })
			}
			script[any](b, string(source)+"; return null")
			r := later[result](b, `axe.run(document, { resultTypes: ['violations'] }).then(
				(r) => done({ violations: r.violations, passes: r.passes.length, failed: '' }), (e) => done({ violations: [], passes: 0, failed: String(e) }))`)
			if r.Failed != "" || r.Passes < 15 {
				t.Errorf("%q: axe-core did %d checks: %s", path, r.Passes, r.Failed)
			}
			for _, v := range r.Violations {
				for _, n := range v.Nodes[:min(len(v.Nodes), 3)] {
					t.Errorf("%d pixels, dark %v, %q: %s: %s: %.200s: %s", width, isDark, path, v.ID, v.Help, n.HTML,
						n.FailureSummary)
				}
			}
		}
	})
	b.clean("400", "404")
}
