package ipvs

import (
	"testing"
)

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func only[T any](_ T, err error) error { return err }
