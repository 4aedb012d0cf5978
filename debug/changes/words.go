package changes

import (
	"fmt"
	"strings"

	"kube-proxy/internal/plural"
)

// String returns the kind's name, as in JSON.
func (k Kind) String() string {
	return [...]string{"", "service", "node", "reset", "loaded", "repaired", "failed"}[k]
}

// Object names the subject of an entry: "shop/web", "192.0.2.7:80/tcp of shop/web", or "node".
func (e Entry) Object() string {
	name := "node"
	if e.Service.Name != "" {
		name = e.Service.String()
	}
	if e.Key.Port != 0 {
		return e.Key.String() + " of " + name
	}
	return name
}

// Words describes the entry. Names and errors in it are untrusted: escape them for display.
func (e Entry) Words() string {
	var s string
	switch e.Kind {
	case Service:
		s = e.objects()
		if e.Frontends == 0 {
			s += ", no frontend changed"
		}
		if e.Endpoints != "" {
			s += ": " + e.Endpoints
		}
	case Node:
		s = "node or configuration changed"
		if e.Frontends == 0 {
			s += ", no frontend changed"
		}
	case Reset:
		s = "compared and wrote everything"
		if e.Why != "" {
			s += " because " + e.Why
		}
		s += e.counted()
	case Loaded:
		s = "wrote the rest of it" + e.counted()
	case Repaired:
		s = "repaired objects that other programs had changed: " + plural.Count(e.Frontends, "object", "objects")
		if e.Why != "" {
			s += "; " + e.Why
		}
	case Failed:
		s = "not written: " + e.Why
	}
	if e.Failures > 0 {
		s += ", after " + plural.Count(e.Failures, "failed write", "failed writes")
	}
	if e.Times > 1 {
		s += fmt.Sprintf(", %d times", e.Times)
	}
	return s
}

// objects describes the changes of a Service and its slices.
func (e Entry) objects() string {
	var said []string
	if e.Services > 0 {
		said = append(said, "Service "+verbs(e.What, ServiceCreated))
	}
	if e.Slices > 0 {
		said = append(said, plural.Count(e.Slices, "EndpointSlice", "EndpointSlices")+" "+verbs(e.What, SliceCreated))
	}
	return strings.Join(said, ", ")
}

// verbs returns which of the three events starting with first happened.
func verbs(w, first What) string {
	var said []string
	for i, verb := range []string{"created", "changed", "deleted"} {
		if w&(first<<i) != 0 {
			said = append(said, verb)
		}
	}
	if said == nil {
		return "changed"
	}
	return strings.Join(said, " and ")
}

// counted returns how many changes of objects belong to the entry.
func (e Entry) counted() string {
	switch {
	case e.Services == 0 && e.Slices == 0:
		return ""
	case e.Slices == 0:
		return "; with " + plural.Count(e.Services, "change", "changes") + " of Services"
	case e.Services == 0:
		return "; with " + plural.Count(e.Slices, "change", "changes") + " of EndpointSlices"
	}
	return fmt.Sprintf("; with %s of Services and %d of EndpointSlices", plural.Count(e.Services, "change", "changes"),
		e.Slices)
}
