package conformance

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"testing"
	"time"
)

func TestRead(t *testing.T) {
	const report = `[{"SpecReports": [
		{"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed"},
		{"LeafNodeType": "ReportAfterSuite", "State": "failed", "Failure": {"Message": "no folder"}},
		{"ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeType": "It", "LeafNodeText": "should serve",
			"State": "passed", "RunTime": 1500000000},
		{"ContainerHierarchyTexts": ["[sig-network] DNS", "of a pod"], "LeafNodeType": "It",
			"LeafNodeText": "should resolve", "State": "timedout", "Failure": {"Message": "too late"}},
		{"ContainerHierarchyTexts": ["[sig-storage] Volumes"], "LeafNodeType": "It", "LeafNodeText": "x", "State": "skipped"}
	]}]`
	file := filepath.Join(t.TempDir(), "report.json")
	if err := os.WriteFile(file, []byte(report), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := read(file)
	if err != nil {
		t.Fatal(err)
	}
	want := []Result{
		{Name: "ReportAfterSuite", State: "failed", Message: "no folder"},
		{Name: "[sig-network] DNS of a pod should resolve", State: "timedout", Message: "too late"},
		{Name: "[sig-network] Services should serve", State: "passed", Took: 1500 * time.Millisecond},
		{Name: "[sig-storage] Volumes x", State: "skipped"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if !got[0].Ran() || got[3].Ran() {
		t.Error("Ran counts what was skipped")
	}
	if err := os.WriteFile(file, []byte(`{"half`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := read(file); err == nil {
		t.Error("half a report has results")
	}
}

func TestUnfit(t *testing.T) {
	all, err := regexp.Compile(Suite{Skip: "mine"}.skip())
	if err != nil {
		t.Fatal(err)
	}
	for name, out := range map[string]bool{
		"[sig-network] LoadBalancers [Feature:LoadBalancer] should change":             true,
		"[sig-network] Services should work when mine":                                 true,
		"[sig-network] Services should serve a basic endpoint from pods [Conformance]": false,
		"[sig-network] LocalhostNodePorts [Feature:LocalhostNodePorts] should honor":   false,
	} {
		if got := all.MatchString(name); got != out {
			t.Errorf("%s is left out: %v", name, got)
		}
	}
}
