// Package seedtest has the seeds of random tests. `make` derives them from the commit, so that
// every test of a commit repeats the walks of CI. `go test` alone takes others.
package seedtest

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Env is the environment variable that repeats a walk: a number of 64 bits, decimal.
const Env = "KUBE_PROXY_SEED"

// Of returns the seed of a test, and logs it.
func Of(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv(Env); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", Env, err)
		}
	}
	t.Logf("repeat with %s=%d", Env, seed)
	return seed
}
