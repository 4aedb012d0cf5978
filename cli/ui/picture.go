package ui

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"kube-proxy/debug/inspect"
)

// Measures of the picture.
const (
	boxHeight, boxGap      = 34, 8
	frontX, frontW         = 0, 270
	setX, setW             = 370, 190
	endX, endW             = 660, 330
	groupHeight            = 26
	pictureWidth           = endX + endW
	shownFronts, shownEnds = 24, 60 // drawn at most; the tables have the rest
	shownReasons           = 3      // listed for the endpoints of a zone that are not drawn
	shownHints             = 5      // listed zones or nodes that an endpoint's hints name
	shownPictures          = 8      // for a Service, one for each port and family
)

// picture shows the paths from a port's service addresses over backend sets to endpoints.
type picture struct {
	Of            string // the port and the family
	Width, Height int
	Boxes         []box
	Groups        []mark2
	Ways          []way
	Says          string // description for screen readers
	MoreFronts    int
}

// box is a service address, a set or an endpoint.
type box struct {
	X, Y, W, H int
	Class      string // of CSS
	Text, Sub  string
	Title      string // the full text
}

// mark2 is a line of text: the heading of a zone or a node, or the number of omitted endpoints.
type mark2 struct {
	X, Y  int
	Class string
	Text  string
}

// way is a line from the right of one box to the left of another.
type way struct {
	Class string
	Path  string
}

// drawing is a picture under construction.
type drawing struct {
	picture
	sets map[string]box // by the sets' names
	ends int            // height of the right column
}

// pictures returns the pictures of a Service, port by port in each family, and how many it omits.
func pictures(d *inspect.Detail) (all []picture, more int) {
	for _, f := range d.Families {
		for _, p := range f.Ports {
			if len(all) == shownPictures {
				more++
				continue
			}
			part := *d
			part.Families = []inspect.DetailFamily{ofPort(f, p)}
			drawn := draw(&part)
			drawn.Of = short(p.String(), 80) + ", " + f.Family
			all = append(all, drawn)
		}
	}
	return all, more
}

// ofPort returns the part of a family that belongs to one port.
func ofPort(f inspect.DetailFamily, p inspect.DetailPort) inspect.DetailFamily {
	f.MoreEndpoints = p.MoreEndpoints
	f.Frontends = slices.DeleteFunc(slices.Clone(f.Frontends), func(r inspect.Frontend) bool {
		return r.Service != p.Service || !strings.HasSuffix(r.Key, "/"+p.Protocol)
	})
	f.Endpoints = slices.DeleteFunc(slices.Clone(f.Endpoints), func(e inspect.Endpoint) bool {
		return e.Service != p.Service || e.Protocol != p.Protocol
	})
	return f
}

// draw makes the picture of d.
func draw(d *inspect.Detail) picture {
	w := drawing{sets: map[string]box{}}
	w.Width = pictureWidth
	zones, more := zonesOf(d), 0
	for _, f := range d.Families {
		more += f.MoreEndpoints
	}
	ends := w.endpoints(zones, more)
	w.middle(d)
	w.fronts(d)
	w.leads(ends)
	w.Height = max(w.Height, boxHeight) + 2
	w.Says = inWords(d)
	return w.picture
}

// endpoints draws the endpoints on the right, by zone and node. Each zone gets a share of the room.
func (w *drawing) endpoints(zones []zone, unnamed int) []placed {
	var drawn []placed
	withZones := named(zones)
	room, far := turns(zones, shownEnds), 0
	for k := range zones {
		z := &zones[k]
		if room[k] == 0 {
			far++
			unnamed += z.all
			continue
		}
		if withZones {
			w.heading("zone", zoneText(z))
		}
		var left tally // not drawn
		for _, h := range z.host {
			if room[k] > 0 {
				w.heading("group", nodeText(&h))
			}
			for _, e := range h.ends {
				if room[k] == 0 {
					left.add(&e.Endpoint)
					continue
				}
				e.at = box{X: endX, Y: w.ends, W: endW, H: boxHeight, Class: "end " + endClass(&e.Endpoint),
					Text: e.Address.String(), Sub: short(endSays(&e.Endpoint), 58), Title: endTitle(&e.Endpoint)}
				w.Boxes = append(w.Boxes, e.at)
				w.ends += boxHeight + boxGap
				room[k]--
				drawn = append(drawn, e)
			}
		}
		if left.all > 0 {
			w.heading("group", fmt.Sprintf("and %s more, %s in use", count(left.all), count(left.in)))
			for _, why := range left.reasons(shownReasons) {
				w.heading("group", short(why, 48))
			}
		}
	}
	if unnamed > 0 {
		text := fmt.Sprintf("and %s more", count(unnamed))
		if far > 0 {
			text += " in " + plural(far, "other zone", "other zones")
		}
		w.heading("group", text)
	}
	w.Height = max(w.Height, w.ends)
	return drawn
}

// heading writes a line over endpoints, or below them.
func (w *drawing) heading(class, text string) {
	w.Groups = append(w.Groups, mark2{endX, w.ends + groupHeight - 9, class, text})
	w.ends += groupHeight
}

// endTitle is the full description of an endpoint.
func endTitle(e *inspect.Endpoint) string {
	text := e.Address.String()
	if e.Node != "" {
		text += " on " + e.Node
	}
	if e.Zone != "" {
		text += " in zone " + e.Zone
	}
	text += ": " + endSays(e)
	for k, z := range append(slices.Clone(e.ForZones), e.ForNodes...) {
		switch {
		case k == shownHints:
			text += " and more"
		case k == 0:
			text += "; meant for " + z
		case k < shownHints:
			text += ", " + z
		}
	}
	return visible(text)
}

// endClass is the CSS class for the state of an endpoint.
func endClass(e *inspect.Endpoint) string {
	switch {
	case len(balancing(e)) == 0:
		return "out"
	case e.Terminating:
		return "draining"
	}
	return "in"
}

// balancing are the sets that new connections are balanced over.
func balancing(e *inspect.Endpoint) []string {
	return slices.DeleteFunc(slices.Clone(e.In), func(s string) bool { return s == "serving" })
}

// endState is the state of an endpoint in one word.
func endState(e inspect.Endpoint) string {
	switch {
	case e.Terminating && e.Serving:
		return "terminating, still serves"
	case e.Terminating:
		return "terminating"
	case !e.Ready:
		return "not ready"
	}
	return "ready"
}

// endSays is the state of an endpoint with the reason.
func endSays(e *inspect.Endpoint) string {
	in := balancing(e)
	switch {
	case e.Why == "":
		return endState(*e)
	case len(in) == 0:
		return e.Why
	}
	other := map[string]string{"cluster": "local", "local": "cluster"}[in[0]]
	return endState(*e) + "; not " + other + ": " + e.Why
}

// middle draws the sets that routes refer to, without the name of their Service.
func (w *drawing) middle(d *inspect.Detail) {
	size := map[string]int{}
	for _, f := range d.Families {
		for _, r := range f.Frontends {
			for _, to := range r.Routes {
				if to.Set != "" {
					size[to.Set] = max(size[to.Set], to.Backends)
				}
			}
		}
	}
	y := groupHeight
	for _, k := range slices.Sorted(maps.Keys(size)) {
		name := strings.TrimLeft(strings.TrimPrefix(k, d.Namespace+"/"+d.Name), ":/")
		b := box{X: setX, Y: y, W: setW, H: boxHeight, Class: "set", Text: short(name, 24),
			Sub: plural(size[k], "backend", "backends"), Title: visible(k)}
		if size[k] == 0 {
			b.Class = "set out"
		}
		w.sets[k] = b
		w.Boxes = append(w.Boxes, b)
		y += 2*boxHeight + boxGap
	}
	w.Height = max(w.Height, y-boxHeight)
}

// fronts draws the service addresses on the left, with the lines to their sets.
func (w *drawing) fronts(d *inspect.Detail) {
	y := groupHeight
	drawn := 0
	for _, f := range d.Families {
		for _, r := range f.Frontends {
			if drawn++; drawn > shownFronts {
				w.MoreFronts++
				continue
			}
			b := box{X: frontX, Y: y, W: frontW, H: boxHeight, Class: "front", Text: r.Key, Sub: kindWords(r.Kind),
				Title: r.Key + ", " + kindWords(r.Kind) + ": " + routesSay(&r)}
			if r.State != "in force" {
				b.Class, b.Sub = "front out", short(r.State, 40)
			}
			seen := map[string]bool{}
			refused := ""
			for _, to := range r.Routes {
				if set, ok := w.sets[to.Set]; ok && !seen[to.Set] {
					seen[to.Set] = true
					w.Ways = append(w.Ways, between(b, set, "lead"))
				}
				if to.Do == "reject" || to.Do == "drop" {
					refused = to.Do
				}
			}
			if refused != "" && r.State == "in force" {
				b.Sub += ", " + refusal2(refused, len(seen) > 0)
				if len(seen) == 0 {
					b.Class = "front closed"
				}
			}
			w.Boxes = append(w.Boxes, b)
			y += boxHeight + boxGap
		}
	}
	if w.MoreFronts > 0 {
		w.Groups = append(w.Groups, mark2{frontX, y + groupHeight - 9, "group",
			fmt.Sprintf("and %s more", count(w.MoreFronts))})
		y += groupHeight
	}
	w.Height = max(w.Height, y)
}

func refusal2(do string, some bool) string {
	says := map[string]string{"reject": "rejected", "drop": "dropped"}[do]
	if some {
		return "some clients " + says
	}
	return says
}

// kindWords is the display name of a frontend's kind.
func kindWords(kind string) string {
	words := map[string]string{"clusterip": "cluster IP", "externalip": "external IP", "loadbalancer": "load balancer",
		"nodeport": "NodePort", "healthcheck": "health check"}
	if w := words[kind]; w != "" {
		return w
	}
	return kind
}

// leads draws the lines from sets to endpoints.
func (w *drawing) leads(ends []placed) {
	for k := range ends {
		e := &ends[k]
		for _, scope := range e.In {
			if set, ok := w.sets[e.Service+"/"+e.Protocol+"/"+scope]; ok {
				class := "lead"
				if e.Terminating {
					class = "lead draining"
				}
				w.Ways = append(w.Ways, between(set, e.at, class))
			}
		}
	}
}

// between returns the line from one box to the next.
func between(a, b box, class string) way {
	x1, y1, x2, y2 := a.X+a.W, a.Y+a.H/2, b.X, b.Y+b.H/2
	mid := (x1 + x2) / 2
	return way{class, fmt.Sprintf("M%d %dC%d %d %d %d %d %d", x1, y1, mid, y1, mid, y2, x2, y2)}
}

// routesSay describes the routes of a frontend in words.
func routesSay(r *inspect.Frontend) string {
	text := ""
	for _, to := range r.Routes {
		if text != "" {
			text += "; "
		}
		text += routeSays(to)
	}
	if r.Why != "" {
		text += " (" + r.State + ": " + r.Why + ")"
	}
	return visible(text)
}

func routeSays(to inspect.Route) string {
	words := map[string]string{"pods": "pods of this node", "host": "this node", "anywhere": "all others"}
	from := cmp.Or(words[to.From], to.From)
	switch to.Do {
	case "balance":
		says := from + ": to " + plural(to.Backends, "backend", "backends")
		if to.Masquerade {
			says += ", masqueraded"
		}
		return says
	case "accept":
		return from + ": answered by this node"
	}
	return from + ": " + refusal2(to.Do, false)
}

// inWords describes the picture for screen readers.
func inWords(d *inspect.Detail) string {
	rows, ends, in := 0, 0, 0
	for _, f := range d.Families {
		rows += len(f.Frontends)
		ends += len(f.Endpoints) + f.MoreEndpoints
		for k := range f.Endpoints {
			if len(balancing(&f.Endpoints[k])) > 0 {
				in++
			}
		}
	}
	return fmt.Sprintf("From %s on the left over backend sets to %s on the right; %s new connections. The "+
		"tables below have the same data.",
		plural(rows, "service address", "service addresses"), plural(ends, "endpoint", "endpoints"),
		plural(in, "gets", "get"))
}
