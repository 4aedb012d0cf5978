package ui

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/policy"
)

// places sets a Service with endpoints on nodes in zones, as "zone/node", each with its state:
// ready, out (not ready), draining, or far (hints for another zone).
func (w *world) places(name cluster.Name, at ...string) {
	s := &cluster.Service{Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.9.9")},
		Ports: []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80}}}
	sl := &cluster.Slice{Name: cluster.Name{Namespace: name.Namespace, Name: name.Name + "-1"}, Service: name,
		Ports: []cluster.SlicePort{{Name: "http", Protocol: cluster.TCP, Port: 8080}}}
	var endpoints []cluster.Endpoint
	for k, where := range at {
		where, state, _ := strings.Cut(where, " ")
		zone, node, _ := strings.Cut(where, "/")
		e := cluster.Endpoint{Addr: netip.AddrFrom4([4]byte{100, 64, byte(k >> 8), byte(k)}),
			Where: cluster.At(node, zone), Ready: state != "out" && state != "draining", Serving: state != "out",
			Terminating: state == "draining"}
		switch state {
		case "far":
			e.Hints = &cluster.Hints{Zones: []string{"zone-z"}}
		case "near":
			e.Hints = &cluster.Hints{Zones: []string{"zone-a"}}
		}
		endpoints = append(endpoints, e)
	}
	sl.Endpoints = cluster.EndpointsOf(endpoints...)
	w.store.Fold(cluster.ServiceSet{Service: s})
	w.store.Fold(cluster.SliceSet{Slice: sl})
	w.replace(name, policy.Resolve(w.store.View(name), w.settings))
	w.notify(name)
}

// lines returns the texts on the right of a picture, from top to bottom.
func (w *world) lines(name cluster.Name) (out []string) {
	d, err := w.inspector.Service(name.String())
	if err != nil {
		w.t.Fatal(err)
	}
	p := draw(d)
	at := map[int]string{}
	for _, g := range p.Groups {
		at[g.Y] = g.Class + " " + g.Text
	}
	for _, b := range p.Boxes {
		if b.X == endX {
			at[b.Y] = b.Text + " " + b.Sub
			if b.Y+b.H > p.Height || b.X+b.W > p.Width {
				w.t.Errorf("%s is outside of the picture", b.Text)
			}
		}
	}
	for _, y := range slices.Sorted(maps.Keys(at)) {
		out = append(out, at[y])
	}
	return out
}

// The picture groups a Service's endpoints by zone and node, this node's first, and says why an
// endpoint gets no connections. The tables below it agree.
func TestPlaces(t *testing.T) {
	w, name := newWorld(t), cluster.Name{Namespace: "shop", Name: "web"}
	for _, c := range []struct {
		name     string
		at, want []string
	}{
		{"by zone and node",
			[]string{"zone-b/node0", "/node4 draining", "zone-a/node0 out", "zone-a/node1", "zone-a/node0", "/ out"},
			[]string{"zone zone-a (here): 2 of 3 in use", "group node1 (this node)", "100.64.0.3:8080 ready",
				"group node0", "100.64.0.2:8080 not ready", "100.64.0.4:8080 ready",
				"zone zone-b: 1 of 1 in use", "group node0", "100.64.0.0:8080 ready",
				"zone zone not named: 0 of 2 in use", "group node4",
				"100.64.0.1:8080 terminating, while others are ready", "group node not named",
				"100.64.0.5:8080 not ready"}},
		{"hints", []string{"zone-a/node2 near", "zone-a/node2 far", "zone-b/node3 far"},
			[]string{"zone zone-a (here): 1 of 2 in use", "group node2", "100.64.0.0:8080 ready",
				"100.64.0.1:8080 for other zones, by its topology hints",
				"zone zone-b: 0 of 1 in use", "group node3", "100.64.0.2:8080 for other zones, by its topology hints"}},
		{"no endpoint has a zone", []string{"/node2", "/node1"},
			[]string{"group node1 (this node)", "100.64.0.1:8080 ready", "group node2", "100.64.0.0:8080 ready"}},
	} {
		w.places(name, c.at...)
		lines := w.lines(name)
		if !slices.Equal(lines, c.want) {
			t.Errorf("%s: \n%s\nwant\n%s", c.name, strings.Join(lines, "\n"), strings.Join(c.want, "\n"))
		}
	}
	page := w.get("service?name=shop/web", 200)
	has(t, page, `<th scope="col">Zone</th><th scope="col">Node</th>`)
	has(t, page, `<th scope="col">Routes</th>`)
	w.places(name, "zone-a/node2 near")
	has(t, w.get("service?name=shop/web", 200), `<bdi>zone-a</bdi> <span class="tag">here</span>`)
}

// 5,000 endpoints in three zones: each zone has its share of the picture, and a line counts the
// others by their reasons. With as many zones as endpoints, each is one line.
func TestManyPlaces(t *testing.T) {
	w, name := newWorld(t), cluster.Name{Namespace: "shop", Name: "big"}
	var at []string
	for k := range 5000 {
		zone, state := "abc"[k%3:][:1], "near"
		if zone != "a" {
			state = "far"
		}
		at = append(at, fmt.Sprintf("zone-%s/node%03d %s", zone, k%250, state))
	}
	w.places(name, at...)
	page := w.get("service?name=shop/big", 200)
	t.Logf("%d bytes", len(page))
	if n := strings.Count(page, `<g class="end`); n != shownEnds || len(page) > 1<<19 {
		t.Errorf("%d endpoints in the picture, want %d; %d bytes", n, shownEnds, len(page))
	}
	for _, text := range []string{"5,000 ready of 5,000",
		`role="img" aria-labelledby="title-0" aria-describedby="says-0"`,
		"zone-a (here): 1,667 of 1,667 in use", "and 1,647 more, 1,647 in use",
		"zone-b: 0 of 1,667 in use", "and 1,646 more, 0 in use", "1,647 for other zones, by its topology hints"} {
		has(t, page, text)
	}
	if n := len(w.lines(name)); n > 3*shownEnds {
		t.Errorf("%d lines", n)
	}
	for k := range at {
		at[k] = fmt.Sprintf("%s%d/%s%d", strings.Repeat("z", 59), k, strings.Repeat("n", 249), k)
	}
	w.places(name, at...)
	page = w.get("service?name=shop/big", 200)
	if len(page) > 1<<20 {
		t.Errorf("a zone and a node for each of 5,000 endpoints: %d bytes", len(page))
	}
	has(t, page, "and 4,940 more in 4,940 other zones")
}

// Tenants who may write EndpointSlices choose the names of zones.
func TestHostileZones(t *testing.T) {
	w, name := newWorld(t), cluster.Name{Namespace: "shop", Name: "web"}
	w.places(name, "<script>alert(1)<|script>/node1", strings.Repeat("z", 63)+"/node2", "/node3", `"><b>/n`,
		"a\u202eb\x1b[31m/n", "bad\xff/n", "{{.}}/n")
	page := w.get("service?name=shop/web", 200)
	if found := inline.FindString(strings.ReplaceAll(page, "http://www.w3.org", "")); found != "" {
		t.Errorf("the page has %q", found)
	}
	for _, text := range []string{"&lt;script&gt;alert(1)", strings.Repeat("z", 63), strings.Repeat("z", 25) + "…",
		"zone not named: 1 of 1 in use", `a\u{202e}b\u{1b}[31m`, "bad\uFFFD", "{{.}}"} {
		has(t, page, text)
	}
	if strings.ContainsAny(page, "\u202e\x1b") || strings.Contains(page, "\xff") || strings.Contains(page, "<b>") {
		t.Error("what a tenant wrote is obeyed")
	}
}
