package config

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kube-proxy/mode"
	"kube-proxy/plane/all"
	"kube-proxy/test/golden"
)

// chartSchema is the schema of the Helm chart's values. It is written by hand except the part below
// properties.config.
const chartSchema = "../charts/kube-proxy/values.schema.json"

// The chart has every field of the configuration, with its type, and no other.
func TestChartSchema(t *testing.T) {
	there, err := os.ReadFile(chartSchema)
	must(t, err)
	decoder := json.NewDecoder(bytes.NewReader(there))
	decoder.UseNumber()
	var schema struct {
		root   map[string]any
		config map[string]any
	}
	must(t, decoder.Decode(&schema.root))
	schema.config = schema.root["properties"].(map[string]any)["config"].(map[string]any)
	made := configSchema(all.Modes())
	schema.config["properties"] = made["properties"]
	schema.config["type"], schema.config["additionalProperties"] = made["type"], made["additionalProperties"]

	var want bytes.Buffer
	encoder := json.NewEncoder(&want)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	must(t, encoder.Encode(schema.root))
	golden.Equal(t, chartSchema, want.String())
}

// configSchema returns the JSON schema of a KubeProxyConfiguration. It rejects settings that the
// proxy only warns about, such as an unknown field. It accepts null, which kubeadm writes, for a
// missing value.
func configSchema(modes mode.List) map[string]any {
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
		schema := valueSchema(o.file.at(f.Path).Type())
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

// modeNames returns the modes that may be configured, including none.
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
	for _, g := range gates() {
		properties[g.name] = map[string]any{"type": "boolean"}
		if g.locked && !g.documentedOff() {
			properties[g.name] = map[string]any{"const": g.on, "description": "it cannot be changed any more"}
		}
	}
	schema["additionalProperties"] = map[string]any{"type": "boolean"} // gates of others
	return schema
}

// valueSchema is the schema of a value of a Go type, or of null.
func valueSchema(t reflect.Type) map[string]any {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	const duration = `^[-+]?(0|(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$` // time.ParseDuration
	orNull := func(types ...string) map[string]any { return map[string]any{"type": append(types, "null")} }
	schema := orNull("string")
	switch t {
	case reflect.TypeFor[metav1.Duration]():
		schema["pattern"] = duration
		return schema
	case reflect.TypeFor[logsapi.TimeOrMetaDuration]():
		schema = orNull("string", "integer")
		schema["pattern"] = duration
		return schema
	case reflect.TypeFor[logsapi.VModuleConfiguration]():
		item := block()
		item["properties"] = map[string]any{"filePattern": map[string]any{"type": "string"},
			"verbosity": valueSchema(reflect.TypeFor[uint32]())}
		item["required"] = []string{"filePattern", "verbosity"}
		schema = orNull("array")
		schema["items"] = item
		return schema
	case reflect.TypeFor[resource.QuantityValue]():
		return orNull("string", "integer")
	}
	switch t.Kind() {
	case reflect.Bool:
		return orNull("boolean")
	case reflect.Int32, reflect.Uint32:
		schema = orNull("integer")
		schema["minimum"], schema["maximum"] = 0, math.MaxInt32
		if t.Kind() == reflect.Int32 {
			schema["minimum"] = math.MinInt32
		}
	case reflect.Float32:
		return orNull("number")
	case reflect.Slice:
		schema = orNull("array")
		schema["items"] = map[string]any{"type": "string"}
	}
	return schema
}
