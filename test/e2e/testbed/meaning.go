package testbed

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Meaning prints the contents of the proxy's sets and maps, a line for each element, sorted, with
// set ids replaced by their backends. Two states with equal meaning serve the same, though ids and
// the order of backends may differ, for example between a proxy that saw every change and one that
// starts with the result. In iptables mode, where names are derived from their contents, the rules
// are their own meaning.
func (b *Bed) Meaning(ctx context.Context) (string, error) {
	if b.Mode.Name == IPTables.Name {
		return b.iptablesRules(ctx)
	}
	there, err := b.present(ctx)
	if err != nil {
		return "", err
	}
	var lines []string
	for _, table := range there {
		sets, err := b.elements(ctx, table)
		if err != nil {
			return "", err
		}
		lines = append(lines, meaning(table, sets)...)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n"), nil
}

// element is an element of a set (data empty) or map.
type element struct{ key, data []string }

// elements lists a table by set.
func (b *Bed) elements(ctx context.Context, table string) (map[string][]element, error) {
	out, err := b.nft(ctx, "--json list table "+table)
	if err != nil {
		return nil, err
	}
	var listing struct {
		Nftables []struct {
			Set, Map *struct {
				Name string
				Elem []json.RawMessage
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &listing); err != nil {
		return nil, fmt.Errorf("read the JSON of table %s: %w", table, err)
	}
	sets := map[string][]element{}
	for _, object := range listing.Nftables {
		if object.Set != nil {
			for _, raw := range object.Set.Elem {
				sets[object.Set.Name] = append(sets[object.Set.Name], element{key: parts(raw)})
			}
		}
		if object.Map != nil {
			for _, raw := range object.Map.Elem {
				var pair [2]json.RawMessage
				if err := json.Unmarshal(raw, &pair); err != nil {
					return nil, fmt.Errorf("read an element of map %s: %w", object.Map.Name, err)
				}
				sets[object.Map.Name] = append(sets[object.Map.Name],
					element{key: parts(pair[0]), data: parts(pair[1])})
			}
		}
	}
	return sets, nil
}

// parts splits a concatenation; anything else is one part.
func parts(raw json.RawMessage) (fields []string) {
	var value struct {
		Concat []json.RawMessage
		Elem   *struct{ Val json.RawMessage }
	}
	if json.Unmarshal(raw, &value) == nil {
		if value.Elem != nil {
			return parts(value.Elem.Val)
		}
		for _, field := range value.Concat {
			fields = append(fields, string(field))
		}
	}
	if fields == nil {
		fields = []string{string(raw)}
	}
	return fields
}

// The maps of the layout (plane/nftables) that Meaning treats in a special way.
const (
	backendsMap = "backends"   // set id . slot : backend
	shapesMap   = "set-shapes" // set id : size . affinity seconds
)

// setIDMaps have set ids as data.
var setIDMaps = []string{"cluster-sets", "nodeport-cluster-sets", "local-sets", "nodeport-local-sets"}

// unseen sets are not compared: they follow from others, are filled by packets, describe the past,
// or may keep unused entries.
var unseen = []string{backendsMap, shapesMap, "members", "affinity", "reserved", "filter-classes", "nat-classes",
	"cluster-shapes", "local-shapes"}

func meaning(table string, sets map[string][]element) (lines []string) {
	behind := map[string][]string{} // set id → backends
	for _, e := range sets[backendsMap] {
		behind[e.key[0]] = append(behind[e.key[0]], strings.Join(e.data, ":"))
	}
	for _, backends := range behind {
		slices.Sort(backends)
	}
	for _, e := range sets[shapesMap] {
		behind[e.key[0]] = append(behind[e.key[0]], "size and affinity "+strings.Join(e.data, " "))
	}
	for _, name := range slices.Sorted(maps.Keys(sets)) {
		if slices.Contains(unseen, name) {
			continue
		}
		for _, e := range sets[name] {
			data := e.data
			if slices.Contains(setIDMaps, name) {
				data = behind[e.data[0]]
			}
			lines = append(lines, fmt.Sprintf("%s %s: %s → %s", table, name, strings.Join(e.key, " "),
				strings.Join(data, ", ")))
		}
	}
	return lines
}
