//go:build linux

package ebpf

import (
	"testing"

	"kube-proxy/test/planetest"
)

// TestUnanswered proves the notices of unanswered connections, of sockets and packets (FO-12), and
// their end (FO-11, FO-13).
func TestUnanswered(t *testing.T) {
	p := &planes{bpffs: bpffs(t)}
	planetest.Unanswered(t, planetest.Config{New: p.new, Sockets: true})
}
