package config

import (
	"math"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kube-proxy/mode"
)

// Schema returns the JSON schema of a KubeProxyConfiguration, for who checks one before a proxy reads it. It refuses what the proxy
// would only warn of, such as an unknown field. Null, which kubeadm writes, says nothing, as in the file.
func Schema(modes mode.List) map[string]any {
	root := block("")
	root["properties"] = map[string]any{
		"apiVersion": map[string]any{"const": v1alpha1.SchemeGroupVersion.String()},
		"kind":       map[string]any{"const": "KubeProxyConfiguration"},
	}
	var s settings
	for _, f := range fields(modes) {
		at, names := root, strings.Split(f.path, ".")
		for _, name := range names[:len(names)-1] {
			properties := at["properties"].(map[string]any)
			if properties[name] == nil {
				properties[name] = block("")
			}
			at = properties[name].(map[string]any)
		}
		schema := typeSchema(leafAt(&s, f.path).Type())
		switch f.path {
		case "mode":
			schema["enum"] = orNull(modeNames(modes))
		case "detectLocalMode":
			schema["enum"] = orNull(append([]string{""}, localModes...))
		case "featureGates":
			schema = gatesSchema()
		}
		schema["description"] = strings.ReplaceAll(about(f.help, f.effect, false), `\|`, "|")
		at["properties"].(map[string]any)[names[len(names)-1]] = schema
	}
	return root
}

// block is the schema of a mapping of fields to values.
func block(description string) map[string]any {
	schema := map[string]any{"type": "object", "additionalProperties": false, "properties": map[string]any{}}
	if description != "" {
		schema["description"] = description
	}
	return schema
}

// modeNames are the modes that may be asked for, none too.
func modeNames(modes mode.List) []string {
	names := []string{""}
	for _, m := range modes {
		if m.Built() || m.FallsBackTo != "" {
			names = append(names, m.Name)
		}
	}
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
	schema := block("")
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

// typeSchema is the schema of one value of the type, as wantType says it in words, or of null.
func typeSchema(t reflect.Type) map[string]any {
	switch t {
	case reflect.TypeFor[metav1.Duration](), reflect.TypeFor[*metav1.Duration]():
		return durationSchema("string", "null")
	case reflect.TypeFor[logsapi.TimeOrMetaDuration]():
		return durationSchema("string", "integer", "null") // of nanoseconds, as older versions wrote it
	case reflect.TypeFor[logsapi.VModuleConfiguration]():
		item := block("")
		item["properties"] = map[string]any{"filePattern": map[string]any{"type": "string"}, "verbosity": typeSchema(reflect.TypeFor[uint32]())}
		item["required"] = []string{"filePattern", "verbosity"}
		return map[string]any{"type": []string{"array", "null"}, "items": item}
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Bool:
		return map[string]any{"type": []string{"boolean", "null"}}
	case reflect.Int32:
		return map[string]any{"type": []string{"integer", "null"}, "minimum": math.MinInt32, "maximum": math.MaxInt32}
	case reflect.Uint32:
		return map[string]any{"type": []string{"integer", "null"}, "minimum": 0, "maximum": math.MaxInt32}
	case reflect.Float32:
		return map[string]any{"type": []string{"number", "null"}}
	case reflect.Slice:
		return map[string]any{"type": []string{"array", "null"}, "items": map[string]any{"type": "string"}}
	case reflect.Struct: // the only one is a quantity
		return map[string]any{"type": []string{"string", "integer", "null"}}
	default:
		return map[string]any{"type": []string{"string", "null"}}
	}
}

// durationSchema is that of time.ParseDuration.
func durationSchema(types ...string) map[string]any {
	return map[string]any{"type": types, "pattern": `^[-+]?(0|(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$`}
}
