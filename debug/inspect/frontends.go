package inspect

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/cluster"
	"kube-proxy/engine"
	"kube-proxy/lb"
)

// Table calls each with the frontends that match the filter, a Service at a time, in the order of
// the Services' names, until it returns false. A filter is an address, a CIDR, a namespace followed
// by a slash, or part of a key, a Service, or a kind; "" matches all.
func (i *Inspector) Table(ctx context.Context, filter string, each func([]Frontend) bool) error {
	match, err := parseFilter(filter)
	if err != nil {
		return err
	}
	failing := i.failing()
	for _, name := range i.Names() {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if match.namespace != "" && name.Namespace != match.namespace {
			continue
		}
		var rows []Frontend
		for _, f := range i.cfg.Families {
			rows = append(rows, f.rows(name, failing[name.String()], match.row)...)
		}
		if len(rows) > 0 && !each(rows) {
			return nil
		}
	}
	return nil
}

// rows returns the frontends of a Service in a family for which keep returns true, by key.
func (f Family) rows(name cluster.Name, failing map[lb.Key]engine.Failing, keep func(*lb.Frontend) bool) []Frontend {
	o := f.owned(name)
	var out []Frontend
	sorted := slices.SortedFunc(slices.Values(o.rows), func(a, b *lb.Frontend) int { return a.Key.Compare(b.Key) })
	for _, front := range sorted {
		if !keep(front) {
			continue
		}
		row := frontendOf(front)
		row.Family = f.Family.String()
		if c, lost := o.lost[front.Key]; lost {
			row.State, row.Why = "conflict", c.Winner.Name+" "+c.Why()
		} else if x, bad := failing[front.Key]; bad {
			row.State, row.Why = "failing", x.Err
		}
		out = append(out, row)
	}
	for _, r := range o.refused {
		if keep(&lb.Frontend{Key: r.Key, Service: name.String()}) {
			out = append(out, Frontend{Key: r.Key.String(), Family: f.Family.String(), Service: name.String(),
				State: "malformed", Why: r.Err.Error(), Routes: []Route{}})
		}
	}
	return out
}

func frontendOf(f *lb.Frontend) Frontend {
	r := Frontend{Key: f.Key.String(), Service: f.Service, Kind: f.Kind.String(), State: "in force",
		Routes:          make([]Route, 0, len(f.Routes)),
		AffinitySeconds: int(f.Affinity.Seconds()), SourceRanges: f.Sources}
	for _, route := range f.Routes {
		out := Route{From: route.From.String(), Do: route.Do.String(), Masquerade: route.Masq}
		if route.To != nil {
			out.Set, out.Backends = route.To.ID.String(), route.To.Backends.Len()
		}
		r.Routes = append(r.Routes, out)
	}
	if f.Kind == lb.HealthCheck {
		r.LocalEndpoints = &f.LocalEndpoints
	}
	return r
}

// filter selects frontends.
type filter struct {
	namespace string // that alone; "" for all
	row       func(*lb.Frontend) bool
}

// maxFilter bounds a filter, in bytes.
const maxFilter = 300

func parseFilter(s string) (filter, error) {
	s = strings.ToLower(strings.TrimSpace(s))
	all := func(*lb.Frontend) bool { return true }
	if len(s) > maxFilter {
		return filter{}, Problemf(Bad, "the filter has %d bytes, want at most %d", len(s), maxFilter)
	}
	if s == "" {
		return filter{row: all}, nil
	}
	if ns, rest, ok := strings.Cut(s, "/"); ok && rest == "" {
		return filter{namespace: ns, row: all}, nil
	}
	if a, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		return filter{row: func(f *lb.Frontend) bool { return f.Key.Addr == a.Unmap() }}, nil
	}
	if p, err := netip.ParsePrefix(s); err == nil {
		return filter{row: func(f *lb.Frontend) bool { return p.Contains(f.Key.Addr) }}, nil
	}
	return filter{row: func(f *lb.Frontend) bool {
		return strings.Contains(strings.ToLower(f.Service), s) || strings.Contains(f.Key.String(), s) ||
			strings.HasPrefix(f.Kind.String(), s)
	}}, nil
}
