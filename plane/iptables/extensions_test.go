//go:build linux

package iptables

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/test/planetest"
)

// A kernel that has the tables but lacks a match or target that the mode needs is not usable. The
// error names it, so that another mode can be chosen. The same probe checks what other modes need.
func TestKernelLacksExtension(t *testing.T) {
	eachKind(t, func(t *testing.T, w planetest.World, cfg Config) {
		tool, err := cfg.tool()
		if err != nil {
			t.Fatalf("this kernel has all: %v", err)
		}
		if err := tool.Have([]string{"conntrack", "comment"}, []string{"MASQUERADE"}); err != nil {
			t.Error(err)
		}
		less := *tool
		less.Needs = append(slices.Clone(tool.Needs), xtables.Extension{Name: "NOSUCH", Target: true})
		for want, err := range map[string]error{"target NOSUCH": less.Usable(t.Context()),
			"match nosuch": tool.Have([]string{"nosuch"}, nil)} {
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
