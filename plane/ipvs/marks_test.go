package ipvs

import (
	"math/bits"
	"testing"
)

// A mark has one number, and no mark of other software counts as ours, whichever bit requests
// masquerading.
func TestMarks(t *testing.T) {
	others := map[string]uint32{
		"none": 0, "kubelet's drop": 0x8000, "masquerade": 0x4000, "host ports of CNI": 0x2000, "AWS CNI": 0x80,
		"Calico accept": 0x10000, "Calico endpoint": 0x1a400000,
		"Calico all": 0xffff0000, "Cilium proxy": 0x200, "Cilium host": 0xc00, "Cilium encrypt": 0xe00,
		"Tailscale": 0x80000, "WireGuard": 51820, "Istio": 1337, "Docker": 0x100,
		"a number": 1000, "another": 9999,
	}
	for bit := range 32 {
		m := marks{1 << bit}
		if m.most() < 1<<17-2 {
			t.Errorf("bit %d: %d numbers", bit, m.most())
		}
		value, mask := m.pattern()
		seen := map[uint32]bool{m.drop(): true}
		step := uint32(1)
		if bit != 14 {
			step = 97
		}
		for n := uint32(0); n <= m.most(); n += step {
			for _, masq := range []bool{false, true} {
				mark := m.of(n, masq)
				if seen[mark] {
					t.Fatalf("bit %d: the mark %#x of %d is that of another", bit, mark, n)
				}
				seen[mark] = true
				if (mark&m.masq != 0) != masq || mark&mask != value {
					t.Fatalf("bit %d: of(%d, %v) = %#x: want pattern %#x/%#x", bit, n, masq, mark, value, mask)
				}
				if got, gotMasq, ok := m.number(mark); !ok || got != n || gotMasq != masq {
					t.Fatalf("bit %d: number(%#x) = %d, %v, %v: want %d, %v", bit, mark, got, gotMasq, ok, n, masq)
				}
			}
		}
		if _, _, ok := m.number(m.drop()); ok || m.drop()&mask != value || m.drop()&m.masq != 0 {
			t.Errorf("bit %d: the mark of drop %#x is that of a virtual server, or of other software", bit, m.drop())
		}
		for who, mark := range others {
			for _, more := range []uint32{0, m.masq} {
				if _, _, ok := m.number(mark | more); ok && bit != 31 {
					t.Errorf("bit %d: the mark %#x is taken for ours: %s", bit, mark|more, who)
				}
			}
		}
	}
	if m := (marks{1 << 14}); bits.OnesCount32(m.of(1, false)^m.of(2, false)) != 2 || m.of(0, false) != 0x80000700 ||
		m.of(1, true) != 0x80104700 {
		t.Errorf("marks of 0 and 1: %#x, %#x", m.of(0, false), m.of(1, true))
	}
}
