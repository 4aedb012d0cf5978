package lb

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// String returns the table as text: the node, the frontends sorted by key, the backend sets sorted
// by name.
//
//	node nodeports 172.18.0.2/32 pods 10.1.0.0/16 services 10.96.0.0/12
//	192.0.2.7:80/tcp shop/web:http loadbalancer affinity 10800s sources 10.0.0.0/8,192.0.2.7/32
//	  pods     balance shop/web:http/tcp/cluster
//	  host     balance shop/web:http/tcp/cluster masquerade
//	  anywhere drop
//	192.0.2.7:80/tcp blog/web:http loadbalancer created 1763719200 loses to shop/web
//	  anywhere reject
//	nodeport:32100/tcp shop/web healthcheck endpoints 2
//	  anywhere accept
//	10.96.0.10:53/udp shop/dns clusterip
//	  anywhere drop
//	  serving  shop/dns/udp/serving
//	set shop/dns/udp/serving
//	  10.1.2.15:53
//	set shop/web:http/tcp/cluster
//	  10.1.1.11:8080 local
//	  10.1.2.14:8080 draining
//	  10.1.2.16:8080 unplaced
//
// A claim that lost its key follows the frontend in force and names the winner. "created" is
// [Owner].Created; zero values are left out. "endpoints" is [Frontend].LocalEndpoints, and
// "preserve destination" after the sources is [Frontend].PreserveDestination. "serving" after the
// routes names the set of [Frontend.Serving]: endpoints that serve even if no route reaches them.
// Package test/tables parses the text.
func (t *Table) String() string {
	var b strings.Builder
	writeNode(&b, t.Node)
	sets := map[SetID]*BackendSet{}
	for _, k := range t.sortedKeys() {
		head := t.rows[k]
		for _, c := range append([]*claim{head}, t.sortedLosers(k)...) {
			writeHeader(&b, c.front)
			if c.owner.Created != 0 {
				fmt.Fprintf(&b, " created %d", c.owner.Created)
			}
			if c != head {
				b.WriteString(" loses to " + head.owner.Name)
			}
			b.WriteByte('\n')
			writeRoutes(&b, c.front, sets)
		}
	}
	writeSets(&b, sets)
	return b.String()
}

func (t *Table) sortedKeys() []Key {
	keys := make([]Key, 0, len(t.rows))
	for k := range t.rows {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, Key.Compare)
	return keys
}

// String returns the frontend and its backend sets as text, in the form of [Table.String]. A nil
// frontend is "none".
func (f *Frontend) String() string {
	if f == nil {
		return "none\n"
	}
	var b strings.Builder
	sets := map[SetID]*BackendSet{}
	writeHeader(&b, f)
	b.WriteByte('\n')
	writeRoutes(&b, f, sets)
	writeSets(&b, sets)
	return b.String()
}

func writeNode(b *strings.Builder, n Node) {
	var words []string
	add := func(word, value string) {
		if value != "" {
			words = append(words, word, value)
		}
	}
	add("nodeports", JoinPrefixes(n.NodePorts, ","))
	if n.Localhost.IsValid() {
		add("localhost", n.Localhost.String())
	}
	add("pods", JoinPrefixes(n.Pods.Prefixes, ","))
	add("pods-interface", n.Pods.Interface)
	add("pods-interface-prefix", n.Pods.InterfacePrefix)
	add("services", JoinPrefixes(n.ServiceCIDRs, ","))
	if len(words) > 0 {
		b.WriteString("node " + strings.Join(words, " ") + "\n")
	}
}

func writeHeader(b *strings.Builder, f *Frontend) {
	b.WriteString(f.Key.String() + " " + f.Service + " " + f.Kind.String())
	if f.Affinity != 0 {
		fmt.Fprintf(b, " affinity %ds", f.Affinity/time.Second)
	}
	if len(f.Sources) > 0 {
		b.WriteString(" sources " + JoinPrefixes(f.Sources, ","))
	}
	if f.PreserveDestination {
		b.WriteString(" preserve destination")
	}
	if f.Kind == HealthCheck {
		fmt.Fprintf(b, " endpoints %d", f.LocalEndpoints)
	}
}

// writeRoutes writes the routes of f and its Serving set, and records the sets.
func writeRoutes(b *strings.Builder, f *Frontend, sets map[SetID]*BackendSet) {
	for _, r := range f.Routes {
		fmt.Fprintf(b, "  %-8s %s", r.From, r.Do)
		if r.To != nil {
			b.WriteString(" " + r.To.ID.String())
			sets[r.To.ID] = r.To
		}
		if r.Masq {
			b.WriteString(" masquerade")
		}
		b.WriteByte('\n')
	}
	if f.Serving != nil {
		b.WriteString("  serving  " + f.Serving.ID.String() + "\n")
		sets[f.Serving.ID] = f.Serving
	}
}

func writeSets(b *strings.Builder, sets map[SetID]*BackendSet) {
	byID := func(x, y *BackendSet) int { return x.ID.Compare(y.ID) }
	for _, s := range slices.SortedFunc(maps.Values(sets), byID) {
		b.WriteString("set " + s.ID.String() + "\n")
		for _, be := range slices.SortedFunc(s.Backends.All(),
			func(x, y Backend) int { return x.Addr.Compare(y.Addr) }) {
			b.WriteString("  " + be.Addr.String())
			if be.Local {
				b.WriteString(" local")
			}
			if be.Unplaced {
				b.WriteString(" unplaced")
			}
			if be.Draining {
				b.WriteString(" draining")
			}
			b.WriteByte('\n')
		}
	}
}

// JoinPrefixes returns the networks as text, with a separator between them.
func JoinPrefixes(ps []netip.Prefix, separator string) string {
	words := make([]string, len(ps))
	for i, p := range ps {
		words[i] = p.String()
	}
	return strings.Join(words, separator)
}
