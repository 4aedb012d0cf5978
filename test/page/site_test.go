//go:build linux

package page

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The search of the documentation site lists the sections with all words of the query, from any
// page. On a phone the text comes before the navigation.
func TestSite(t *testing.T) {
	if !*chromium {
		t.Skip("needs Chromium: make test-status runs it, and tools/site proves the files")
	}
	out := t.TempDir()
	build := exec.Command("go", "-C", "../../tools", "build", "-o", filepath.Join(out, "site"), "./site")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build site: %v: %s", err, text)
	}
	site := exec.Command(filepath.Join(out, "site"), "-o", out)
	site.Dir = "../.."
	if text, err := site.CombinedOutput(); err != nil {
		t.Fatalf("site: %v: %s", err, text)
	}
	b := newBrowser(t, newPlace(t), "file://"+out)
	for _, c := range []struct{ page, query, address string }{
		{"index.html", "writer lock", "security.html"},
		{"adr/0010-one-writer.html", "kubeproxymodefallback", "events.html"},
	} {
		b.load(b.page + "/" + c.page)
		b.click("#search input")
		b.press(c.query)
		until(t, "results for "+c.query,
			func() bool { return script[float64](b, "return document.querySelectorAll('#found a').length") > 0 })
		links := script[string](b,
			"return [...document.querySelectorAll('#found a')].map(a => a.href + ' ' + a.textContent).join('\\n')")
		if !strings.Contains(links, c.address+"#") {
			t.Errorf("%s: a search for %q does not find %s:\n%s", c.page, c.query, c.address, links)
		}
		b.press(keyEnter)
		until(t, "the first result", func() bool {
			return strings.Contains(script[string](b, "return location.href"),
				"#")
		})
	}
	b.cdp("Emulation.setDeviceMetricsOverride", map[string]any{"width": 390, "height": 844, "deviceScaleFactor": 1,
		"mobile": true}, nil)
	b.load(b.page + "/operate.html")
	if !script[bool](b,
		"return document.querySelector('h1').getBoundingClientRect().top < "+
			"document.querySelector('.site').getBoundingClientRect().top") {
		t.Error("on a phone the navigation stands above the text")
	}
	if script[bool](b, "return document.documentElement.scrollWidth > 390") {
		t.Error("on a phone the page is wider than the screen")
	}
	b.clean()
}
