//go:build linux

package ebpf

import (
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/kerneltest"
)

// TestVerified: the kernel verifies few instructions at each start. Ways multiply where a loop or a
// lookup is inline before others, and 800,000 instructions took a second of processor time.
func TestVerified(t *testing.T) {
	kerneltest.Later(t)
	const most = 20_000 // of a million
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		k := loaded(t, f)
		for _, h := range hooks(f) {
			info, err := h.program(&k.obj.LBPrograms).Info()
			if err != nil {
				t.Fatal(err)
			}
			if n, ok := info.VerifiedInstructions(); ok && n > most { // Linux 5.16 counts them
				t.Errorf("%s of %s: the kernel verified %d instructions, want %d at most", h.name, f, n, most)
			}
		}
	}
}
