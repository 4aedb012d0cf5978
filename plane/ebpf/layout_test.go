//go:build linux

package ebpf

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	cebpf "github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/kerneltest"
)

// otherLayout puts a map of another layout in the place of a pinned one, as an older version left
// it.
func (b *bench) otherLayout(name string, spec *cebpf.MapSpec) {
	b.t.Helper()
	pin := filepath.Join(b.plane.cfg.Pins, strings.ToLower(b.f.String()), name)
	b.must(os.Remove(pin))
	m, err := cebpf.NewMap(spec)
	if err == nil {
		err = m.Pin(pin)
	}
	b.must(err)
	if spec.InnerMap != nil {
		inner, err := cebpf.NewMap(spec.InnerMap)
		if err == nil {
			err = m.Put(uint32(0), inner)
			inner.Close()
		}
		b.must(err)
	}
	m.Close()
}

// TestLayout: a new version replaces maps of another layout under traffic without a failure,
// and leaves the others: open sockets keep their peer (EB-21).
func TestLayout(t *testing.T) {
	kerneltest.Later(t)
	eachFamily(t, func(b *bench) {
		tcp, udp := b.socket("pod3", unix.SOCK_STREAM, false), b.socket("pod3", unix.SOCK_DGRAM, false)
		b.must(unix.Connect(tcp, sockaddr(b.to("VIP:80"))))
		b.asks("at first", udp, b.to("VIP:53"), "pod1")
		inner := &cebpf.MapSpec{Type: cebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 1024,
			Flags: unix.BPF_F_NO_PREALLOC}
		b.otherLayout("sets", &cebpf.MapSpec{Type: cebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1,
			InnerMap: inner})
		b.otherLayout("config", &cebpf.MapSpec{Type: cebpf.Array, KeySize: 4, ValueSize: 64, MaxEntries: 1})
		traffic := b.Traffic(netlab.Way{From: "pod3", To: b.to("VIP:80")},
			netlab.Way{From: netlab.Node1, To: b.to("VIP:80")})
		b.restart(nil)
		traffic.More()
		traffic.Stop()
		b.hasPeer("an open socket", tcp, b.to("VIP:80"))
		b.noRules()
		b.asks("an open UDP socket", udp, b.to("VIP:53"), "pod1")
		b.reaches("pod3", netlab.TCP, "VIP:80", "pod1")
		b.restart(nil)
		if n := b.plane.kernel.writes; n != 0 {
			b.t.Errorf("the next process wrote %d elements", n)
		}
	})
}
