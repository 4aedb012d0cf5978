package hnsfake

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// Each build's assumptions have every fact, each once and with its source (WN-02).
func TestAssumed(t *testing.T) {
	for _, build := range Builds {
		lines, err := assumedLines(build)
		if err != nil {
			t.Fatal(err)
		}
		have := map[string]int{}
		for _, l := range lines {
			have[l.Name]++
			if l.Step < 1 || l.Step > 9 || !strings.HasPrefix(l.Source, "assumed: ") {
				t.Errorf("%s: %+v: want a step from 1 to 9, and the source of the assumption", build, l)
			}
		}
		for f := range reflect.TypeFor[Facts]().Fields() {
			if name := f.Tag.Get("json"); have[name] != 1 {
				t.Errorf("%s: fact %q has %d lines, want 1", build, name, have[name])
			}
		}
	}
	if _, err := assumedLines("1"); err == nil || !strings.Contains(err.Error(), "17763") {
		t.Errorf("a build without assumptions: %v", err)
	}
}

// A node's answer replaces an assumption; lines that are no facts change nothing (WN-02).
func TestFactsOf(t *testing.T) {
	lines, err := assumedLines("17763")
	if err != nil {
		t.Fatal(err)
	}
	before, err := FactsOf(Facts{}, lines)
	if err != nil || before.Build != "10.0.17763" || before.DeletesFail != 5 || before.Features.ModifyLoadbalancer ||
		!before.Features.DSR {
		t.Fatalf("%+v, %v", before, err)
	}
	after, err := FactsOf(before, []Line{
		{Step: 5, Name: "deletes-fail", Value: json.RawMessage("0"), Source: "measured"}, {Step: 6, Name: "filter"},
		{Step: 5, Name: "shape/clusterip", Value: json.RawMessage(`{"Flags":1}`), Source: "measured"},
	})
	before.DeletesFail = 0
	if err != nil || !reflect.DeepEqual(after, before) {
		t.Errorf("%+v, want %+v, %v", after, before, err)
	}
	if _, err := FactsOf(before, []Line{{Name: "filter", Value: json.RawMessage("7")}}); err == nil {
		t.Error("a number for a word is taken")
	}
}
