//go:build linux

package page

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"kube-proxy/cli/ui"
	"kube-proxy/cluster"
	"kube-proxy/debug/api"
	"kube-proxy/debug/changes"
	"kube-proxy/debug/inspect"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/policy"
)

// hostile shows Services whose names the API server would refuse, but which a proxy without that
// guard could receive. They stay text, in the server's output and in the scripts'.
func hostile(t *testing.T, n *node, b *browser) {
	names := []string{"<script>window.owned=1</script>", `"><img src=x onerror="window.owned=1">`,
		"javascript&colon;window.owned=1", "web\u202egnp.exe", "bell\a\x1b[31m", strings.Repeat("x", 253)}
	store, ring := cluster.NewStore("node1"), changes.New()
	var table lb.Table
	settings := policy.Settings{Family: lb.IPv4}
	store.Fold(cluster.ServicesListed{})
	store.Fold(cluster.SlicesListed{})
	for k, name := range names {
		full := cluster.Name{Namespace: "evil", Name: name}
		store.Fold(cluster.ServiceSet{Service: &cluster.Service{Name: full,
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(k)})},
			Ports:      []cluster.ServicePort{{Name: name, Protocol: cluster.TCP, Port: 80}}}})
		if k < 3 { // the others have no endpoint; these run in zones and on nodes of such names
			store.Fold(cluster.SliceSet{Slice: &cluster.Slice{Name: full, Service: full,
				Ports: []cluster.SlicePort{{Name: name, Protocol: cluster.TCP, Port: 80}},
				Endpoints: cluster.EndpointsOf(cluster.Endpoint{Addr: netip.AddrFrom4([4]byte{100, 64, 0, byte(k)}),
					Where: cluster.At(name, names[(k*2)%len(names)]), Ready: true})}})
		}
		table.Replace(lb.Owner{Name: full.String()}, policy.Resolve(store.View(full), settings))
		ring.Add(changes.Entry{Kind: changes.Failed, Service: full, Why: name, Done: 1})
	}
	h := ui.New(api.Local(inspect.New(inspect.Config{
		Version: "v1.37.0", Mode: mode.Mode{Name: "<b>"}, Store: store, Changes: ring,
		Families: []inspect.Family{{Family: lb.IPv4, Query: func(f func(*lb.Table)) { f(&table) },
			Settings: func(cluster.Name) policy.Settings { return settings }}},
	})))
	s := &http.Server{Handler: h}
	go s.Serve(n.listen("10301"))
	defer s.Close()
	at := "http://localhost:10301" + h.Path()
	look := func(path string) {
		t.Helper()
		if script[bool](b, "return Boolean(window.owned)") {
			t.Fatalf("%s: a name was run", path)
		}
		if n := script[float64](b, "return document.scripts.length + document.images.length"); n != 1 {
			t.Errorf("%s has %v scripts and images, want its own", path, n)
		}
		if text := script[string](b, "return document.body.innerText"); strings.ContainsAny(text, "\u202e\a\x1b") {
			t.Errorf("%s shows what cannot be seen", path)
		}
	}
	b.load(at)
	until(t, "the list is there", func() bool { return b.text("#live") == "live" })
	look("the list")
	for _, text := range []string{"evil/" + names[0], "evil/" + names[1], `evil/web\u{202e}gnp.exe`,
		`evil/bell\u{7}\u{1b}[31m`, names[5]} {
		if has := script[string](b, "return document.getElementById('services').textContent"); !strings.Contains(has,
			text) {
			t.Errorf("the list has no %q", text)
		}
	}
	if wide := script[bool](b, "return document.documentElement.scrollWidth > innerWidth"); wide {
		t.Error("a long name makes the page wider than the window")
	}
	zones := 0
	for k := range names {
		b.load(at)
		until(t, "the list is there", func() bool { return b.text("#live") == "live" })
		b.press("/" + keyDown + strings.Repeat(keyDown, k) + keyEnter)
		until(t, "a Service is shown", func() bool { return strings.HasPrefix(b.text("h1"), "evil/") })
		look(b.text("h1"))
		if wide := script[bool](b, "return document.documentElement.scrollWidth > innerWidth"); wide {
			t.Errorf("%.20s: long names make the page wider than the window: %q", b.text("h1"),
				script[[]string](b,
					"return [...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > "+
						"innerWidth).map(e => e.outerHTML.slice(0, 80))"))
		}
		zones += int(script[float64](b, "return document.querySelectorAll('svg.picture text.zone').length"))
	}
	if zones != 3 {
		t.Errorf("%d zones in the pictures, want 3", zones)
	}
	for _, path := range []string{"changes", "node", "trace?from=%3Cscript%3Ewindow.owned=1%3C/script%3E&to=x",
		"service?name=%3Cscript%3Ewindow.owned=1%3C/script%3E"} {
		b.load(at + path)
		look(path)
	}
	b.load("about:blank")
	b.clean("400", "404", "503") // a name with a slash is a Pod, and this proxy has none
}
