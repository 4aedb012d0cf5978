package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/scenario"
)

const example = "../../docs/examples/shop"

// testShop is a copy of the example, to be edited.
func testShop(t *testing.T) (dir string, s *shop) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "shop")
	if err := copyShop(example, dir); err != nil {
		t.Fatal(err)
	}
	s, err := loadShop(dir)
	if err != nil {
		t.Fatal(err)
	}
	return dir, s
}

// The example shows every kind of address, of both families, by TCP and UDP, from everywhere, with
// every end.
func TestExampleIsComplete(t *testing.T) {
	_, s := testShop(t)
	has := map[any]bool{}
	for _, r := range s.rows {
		for _, what := range []any{r.kind, r.family, r.shot.Proto, r.from, r.want.Verdict} {
			has[what] = true
		}
		if r.group == "" {
			t.Errorf("%s: no comment above it", r.text)
		}
	}
	for _, what := range []any{"ClusterIP", "NodePort", "LoadBalancer", "external IP", lb.IPv4, lb.IPv6, lb.TCP, lb.UDP,
		"pod3", "node1", "client", scenario.Answered, scenario.Refused, scenario.Dropped} {
		if !has[what] {
			t.Errorf("no row with %v", what)
		}
	}
	ids := map[string]bool{}
	for _, r := range s.rows {
		if ids[r.id()] {
			t.Errorf("two rows are %s", r.id())
		}
		ids[r.id()] = true
	}
}

// A folder that lacks a Service of the packets, or has a malformed file, is an error that names it.
func TestFaultyManifestsAreNamed(t *testing.T) {
	dir, _ := testShop(t)
	rewrite(t, dir, "dns.yaml", func(s string) string { return s + "\n  : - x\n" })
	if _, err := loadShop(dir); err == nil || !strings.Contains(err.Error(), "dns.yaml") {
		t.Errorf("malformed file: %v", err)
	}
	dir, _ = testShop(t)
	if err := os.Remove(filepath.Join(dir, "store.yaml")); err != nil {
		t.Fatal(err)
	}
	if _, err := loadShop(dir); err == nil || !strings.Contains(err.Error(), "shop/store") {
		t.Errorf("missing Service: %v", err)
	}
}

func TestFaultyPacketsNameTheLine(t *testing.T) {
	dir, _ := testShop(t)
	for _, line := range []string{
		"pod3 -> shop/nowhere:http : pod1", "pod9 -> shop/web:http : pod1", "open a: pod3 -> shop/web:http : pod1",
		"pod3 -> shop/web/icmp : refused", "pod3 -> shop/web:http : pod1 from lb(shop/store)",
	} {
		text := "x\n\nRows: SV-12\n\n-- packets --\n" + line + "\n"
		if err := os.WriteFile(filepath.Join(dir, packetsFile), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := loadShop(dir); err == nil || !strings.Contains(err.Error(), packetsFile+":6: ") {
			t.Errorf("%s: %v, want an error of line 6", line, err)
		}
	}
}

func rewrite(t *testing.T, dir, file string, change func(string) string) {
	t.Helper()
	name := filepath.Join(dir, file)
	data, err := os.ReadFile(name)
	if err == nil {
		err = os.WriteFile(name, []byte(change(string(data))), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
