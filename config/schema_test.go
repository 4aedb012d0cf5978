package config

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"kube-proxy/plane/all"
)

// chartSchema says what values of the Helm chart may be. All of it is written by hand but what is below properties.config.
const chartSchema = "../charts/kube-proxy/values.schema.json"

// The chart knows every field of the configuration, with its type, and no other.
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
	made := Schema(all.Modes())
	schema.config["properties"] = made["properties"]
	schema.config["type"], schema.config["additionalProperties"] = made["type"], made["additionalProperties"]

	var want bytes.Buffer
	encoder := json.NewEncoder(&want)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	must(t, encoder.Encode(schema.root))
	if *update {
		write(t, chartSchema, want.String())
	} else if want.String() != string(there) {
		t.Errorf("%s is stale: go test ./config -run TestChartSchema -update", chartSchema)
	}
}
