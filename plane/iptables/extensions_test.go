//go:build linux

package iptables

import (
	"errors"
	"strings"
	"testing"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/test/planetest"
)

// A kernel that has the tables but lacks a required match or target is not usable. New names it, so
// that another mode can be chosen.
func TestKernelLacksExtension(t *testing.T) {
	eachKind(t, func(t *testing.T, w planetest.World, cfg Config) {
		tool, err := xtables.FindTool(xtables.System{}, cfg.Family, cfg.Backend)
		if err != nil {
			t.Fatal(err)
		}
		if err := tool.Usable(t.Context()); err != nil {
			t.Fatalf("this kernel has all: %v", err)
		}
		for _, e := range []xtables.Extension{{Name: "nosuch", Target: false}, {Name: "NOSUCH", Target: true}} {
			less := *tool
			less.Needs = append(less.Needs[:len(less.Needs):len(less.Needs)], e)
			err := less.Usable(t.Context())
			if !errors.Is(err, plane.ErrUnsupported) || !strings.Contains(err.Error(), e.String()) {
				t.Errorf("without %s: %v", e, err)
			}
		}
	})
}

// The same probe checks what other modes need in addition.
func TestHave(t *testing.T) {
	eachKind(t, func(t *testing.T, w planetest.World, cfg Config) {
		tool, err := cfg.tool()
		if err != nil {
			t.Fatal(err)
		}
		p := tool
		if err := p.Have([]string{"conntrack", "comment"}, []string{"MASQUERADE"}); err != nil {
			t.Error(err)
		}
		for want, err := range map[string]error{"match nosuch": p.Have([]string{"nosuch"}, nil),
			"target NOSUCH": p.Have(nil, []string{"NOSUCH"})} {
			if !errors.Is(err, plane.ErrUnsupported) || !strings.Contains(err.Error(), want) {
				t.Errorf("without the %s: %v", want, err)
			}
		}
	})
}

// The listed extensions and the written rules agree. The rules of a table with all kinds of
// frontends have only matches and targets that New probes for, and optional ones; and each probed
// one is used.
func TestNeededIsWhatIsWritten(t *testing.T) {
	w := planetest.World{Family: lb.IPv4}
	table := w.Table(3, 3)
	table.Replace(w.Full(100, 1000, 3, 1, 0))
	table.Replace(w.ClusterIP(102, 0, 0))
	text, err := Render(Config{Family: lb.IPv4}, table)
	if err != nil {
		t.Fatal(err)
	}
	used := map[xtables.Extension]bool{}
	for line := range strings.Lines(string(text)) {
		f := xtables.Words(strings.TrimSpace(line))
		for i := range f[:max(0, len(f)-1)] {
			switch f[i] {
			case "-m":
				used[xtables.Extension{Name: f[i+1], Target: false}] = true
			case "-j":
				used[xtables.Extension{Name: f[i+1], Target: true}] = true
			}
		}
	}
	for _, e := range xtables.Needed[xtables.Legacy] {
		if !used[e] && e.Name != "udp" {
			t.Errorf("the extension %s is required, and not used", e)
		}
		delete(used, e)
	}
	for e := range used {
		switch {
		case e.Target && (strings.HasPrefix(e.Name, "KUBE-") || e.Name == "ACCEPT" || e.Name == "DROP" ||
			e.Name == "RETURN"):
		default:
			t.Errorf("the %s is used, and not asked for", e)
		}
	}
}
