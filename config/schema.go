package config

import (
	"slices"
	"strings"

	"k8s.io/kube-proxy/config/v1alpha1"

	"kube-proxy/mode"
)

// Schema returns the JSON schema of a KubeProxyConfiguration, for who checks one before a proxy reads it. It refuses what the proxy
// would only warn of, such as an unknown field. Null, which kubeadm writes, says nothing, as in the file.
func Schema(modes mode.List) map[string]any {
	root := block()
	root["properties"] = map[string]any{
		"apiVersion": map[string]any{"const": v1alpha1.SchemeGroupVersion.String()},
		"kind":       map[string]any{"const": "KubeProxyConfiguration"},
	}
	o := NewOptions(modes)
	for f := range o.table.fields() {
		at, names := root, strings.Split(f.Path, ".")
		for _, name := range names[:len(names)-1] {
			properties := at["properties"].(map[string]any)
			if properties[name] == nil {
				properties[name] = block()
			}
			at = properties[name].(map[string]any)
		}
		schema := kindOf(o.file.at(f.Path).Type()).schema
		switch f.Path {
		case "mode":
			schema["enum"] = orNull(modeNames(modes))
		case "detectLocalMode":
			schema["enum"] = orNull(append([]string{""}, localModes...))
		case "featureGates":
			schema = gatesSchema()
		}
		schema["description"] = strings.ReplaceAll(about(f), `\|`, "|")
		at["properties"].(map[string]any)[names[len(names)-1]] = schema
	}
	return root
}

// block is the schema of a mapping of fields to values.
func block() map[string]any {
	return map[string]any{"type": "object", "additionalProperties": false, "properties": map[string]any{}}
}

// modeNames are the modes that may be asked for, none too.
func modeNames(modes mode.List) []string {
	names := append(modes.Names(func(mode.Mode) bool { return true }), "")
	slices.Sort(names)
	return names
}

// orNull are the names, and null.
func orNull(names []string) []any {
	var all []any
	for _, name := range names {
		all = append(all, name)
	}
	return append(all, nil)
}

func gatesSchema() map[string]any {
	schema := block()
	schema["type"] = []string{"object", "null"}
	properties := schema["properties"].(map[string]any)
	for _, name := range []string{"AllAlpha", "AllBeta"} {
		properties[name] = map[string]any{"type": "boolean"}
	}
	var others []string
	for _, g := range gates() {
		if !g.now {
			others = append(others, g.name)
			continue
		}
		properties[g.name] = map[string]any{"type": "boolean"}
		if g.locked && !g.documentedOff() {
			properties[g.name] = map[string]any{"const": g.on, "description": "it cannot be changed any more"}
		}
	}
	schema["patternProperties"] = map[string]any{"^(" + strings.Join(others, "|") + ")$": map[string]any{"type": "boolean"}}
	return schema
}
