// Package golden compares texts, and files of the repository.
package golden

import (
	"cmp"
	"flag"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// Update is the flag -update: tests write the files instead of comparing them.
var Update = flag.Bool("update", false, "write the files that tests compare")

// Equal reports an error unless the file has this text. With -update it writes the file.
func Equal(t testing.TB, file, text string) {
	t.Helper()
	if *Update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(file); err != nil || string(want) != text {
		t.Errorf("%s differs (%v); go test -run %s -update writes it:\n%s", file, err, t.Name(),
			Diff(string(want), text))
	}
}

// Diff returns the lines that only one of two texts has, and "" for equal texts.
func Diff(want, got string) string {
	if want == got {
		return ""
	}
	count := map[string]int{}
	for l := range strings.Lines(want) {
		count[l]--
	}
	for l := range strings.Lines(got) {
		count[l]++
	}
	var b strings.Builder
	for _, l := range slices.Sorted(maps.Keys(count)) {
		if n := count[l]; n != 0 {
			b.WriteString(map[bool]string{true: "- ", false: "+ "}[n < 0] + l)
		}
	}
	return cmp.Or(b.String(), "(the same lines in another order)\n")
}
