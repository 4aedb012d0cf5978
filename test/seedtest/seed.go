// Package seedtest gives tests that walk at random where chance begins. `make` sets it by the commit, so that whoever tests a commit takes
// the walks that CI takes; `go test` alone begins anywhere.
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
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", Env, err)
		}
	}
	t.Logf("repeat with %s=%d", Env, seed)
	return seed
}
