package userspace

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"kube-proxy/lb"
)

// Dump tells all that decides about packets: what the kernel leads where, read from it, and whom the listeners lead to.
func (p *Plane) Dump() (string, error) {
	names := map[port]string{}
	var lines []string
	for _, s := range p.services {
		for _, d := range s.doors {
			name := d.at.String()
			if !d.at.IsValid() {
				name = fmt.Sprintf("%s/%s/%s", s.name, s.proto, d.scope)
				names[port{s.proto, d.listener.Addr().Port()}] = name
			}
			lines = append(lines, fmt.Sprintf("listener %s\n", name))
		}
		for _, set := range s.sets {
			lines = append(lines, fmt.Sprintf("set %s affinity %v: %v\n", set.now.ID, set.turns.Affinity(), set.turns.Backends()))
		}
	}
	if p.redirect.Own() {
		for _, r := range p.rows {
			lines = append(lines, "row "+strings.ReplaceAll(rowText(r.f), "\n", "; ")+"\n")
		}
	}
	slices.Sort(lines)
	text, err := p.redirect.Dump(context.Background(), func(n uint16, proto lb.Proto) string {
		if p.redirect.Own() {
			return "itself"
		}
		return cmp.Or(names[port{proto, n}], "nobody")
	})
	return strings.Join(lines, "") + text, err
}

// rowText is what the listeners of a row do, which the kernel does not know.
func rowText(f *lb.Frontend) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s sources %v", f.Key, f.Sources)
	for _, r := range f.Routes {
		fmt.Fprintf(&b, " %s %s", r.From, r.Do)
		if r.To != nil {
			fmt.Fprintf(&b, " %s", r.To.ID)
		}
	}
	return b.String()
}
