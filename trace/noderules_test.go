package trace

import (
	"strings"
	"testing"
)

// The wide text lists all rules that matched, and the short one none of them.
func TestNodeTextRules(t *testing.T) {
	n := &Node{Rules: []string{"rule a", "rule b", "rule c", "rule d"},
		Warnings: []string{"w1", "w2", "w3", "w4", "w5"}}
	wide, short := n.Text(true), n.Text(false)
	if title := "rules that matched on this node, of all programs\n"; strings.Count(wide, title) != 1 {
		t.Errorf("no title of the rules:\n%s", wide)
	}
	if without := (&Node{}).Text(true); strings.Contains(without, "rules that matched") {
		t.Errorf("a title of no rules:\n%s", without)
	}
	for _, rule := range n.Rules {
		if !strings.Contains(wide, "  "+rule+"\n") || strings.Contains(short, rule) {
			t.Errorf("%q: wide\n%s\nshort\n%s", rule, wide, short)
		}
	}
	if !strings.Contains(wide, "warning: w5") || !strings.Contains(short, "warning: w3") ||
		strings.Contains(short, "w4") || !strings.Contains(short, "and 2 others") {
		t.Errorf("wide\n%s\nshort\n%s", wide, short)
	}
}
