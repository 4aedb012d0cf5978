package nearest

import (
	"slices"
	"strings"
	"testing"
)

// A misspelled name yields similar names, the nearest first, and a name like no other yields none
// (TN-85).
func TestOf(t *testing.T) {
	known := strings.Fields("proxy-mode cluster-cidr v conntrack.min mode.conntrack shop/web shop/web2 blog/web " +
		"shop/cart Node EndpointSlice ui")
	for name, want := range map[string]string{
		"proxi-mode": "proxy-mode", "Proxy-Mode": "proxy-mode", "cluster-cdr": "cluster-cidr", "zzzzz": "", "x": "",
		"":              "",
		"min":           "conntrack.min",                 // in a block
		"iptables.min":  "conntrack.min",                 // in another block
		"shop/wbe":      "shop/web",                      // two letters swapped are one edit
		"shop/web3":     "shop/web shop/web2",            // as far
		"shpo/cart":     "shop/cart",                     // a namespace
		"team/web":      "shop/web blog/web",             // the same in another namespace
		"wbe":           "shop/web blog/web",             // without a namespace
		"Role":          "",                              // two of four letters differ
		"EndpiontSlice": "EndpointSlice", "node": "Node", // capitals
		"lustr-cidr": "cluster-cidr", "ccluster-cidrr": "cluster-cidr", // two letters missing, or too many
		strings.Repeat("a", 100): "",
		"tr":                     "", // any two letters are two edits from "ui"
	} {
		if got := Of(name, slices.Values(known)); strings.Join(got, " ") != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func TestDidYouMean(t *testing.T) {
	known := []string{"proxy-mode", "v"}
	for name, want := range map[string]string{"proxi-mode": ": did you mean --proxy-mode?", "zzzzz": ""} {
		if got := DidYouMean(name, slices.Values(known), "--"); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

// The distance equals that of a slow and simple definition, for each pair of words of up to three
// letters.
func TestDistance(t *testing.T) {
	words := []string{""}
	for i := 0; len(words[i]) < 3; i++ {
		for _, c := range "abc" {
			words = append(words, words[i]+string(c))
		}
	}
	for _, a := range words {
		for _, b := range words {
			if got, want := distance(a, b), slow(a, b); got != want {
				t.Errorf("%q and %q: %d, want %d", a, b, got, want)
			}
		}
	}
	for n, want := range map[int]int{63: 1, 64: 1, 65: 64} { // longer words are far from any
		if got := distance(strings.Repeat("a", n), strings.Repeat("a", n-1)+"b"); got != want {
			t.Errorf("of words of %d letters: %d, want %d", n, got, want)
		}
	}
}

func slow(a, b string) int {
	if a == "" || b == "" {
		return len(a) + len(b)
	}
	d := min(slow(a[1:], b)+1, slow(a, b[1:])+1)
	if a[0] == b[0] {
		return min(d, slow(a[1:], b[1:]))
	}
	d = min(d, slow(a[1:], b[1:])+1)
	if len(a) > 1 && len(b) > 1 && a[0] == b[1] && a[1] == b[0] {
		d = min(d, slow(a[2:], b[2:])+1)
	}
	return d
}
