package ipvs

import (
	"flag"
	"os"
	"testing"
)

// update makes golden tests write the files that they compare.
var update = flag.Bool("update", false, "rewrite testdata")

// wantGolden fails the test unless the file has this content; with -update it writes it.
func wantGolden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		must(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("it is not %s; -update rewrites it:\n%s", file, got)
	}
}

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func only[T any](_ T, err error) error { return err }
