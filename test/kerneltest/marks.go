// Package kerneltest marks the tests that test/vm/suites runs on other kernels. A mark is the first
// statement of a test:
//
//	func TestHistory(t *testing.T) {
//		kerneltest.Later(t)
//
// In a package where a test is marked Every, tests without a mark run on the kernel of this machine
// alone: they show the same on each. In other packages all tests run.
package kerneltest

import (
	"os"
	"testing"
)

// emulated reports whether test/vm/suites runs the test, on an emulated processor.
func emulated() bool { return os.Getenv("PLANETEST_VM") != "" }

// complete reports whether the run has everything (make test-kernels FULL=1).
func complete() bool { return os.Getenv("PLANETEST_COMPLETE") != "" }

// Every marks a test that runs on every kernel. suites finds it by its name.
func Every(testing.TB) {}

// Later leaves a test that takes minutes in emulation to the complete run.
func Later(t testing.TB) {
	t.Helper()
	if emulated() && !complete() {
		t.Skip("left to the complete run on other kernels (make test-kernels FULL=1)")
	}
}

// NotEmulated marks a test of speed: in emulation, beside another VM, it says nothing.
func NotEmulated(t testing.TB) {
	t.Helper()
	if emulated() {
		t.Skip("measures speed, which means nothing in emulation")
	}
}
