package mode

import (
	"reflect"
	"slices"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/trace"
)

// A report has what was removed, with its number, and what stayed; no removed object is no line.
func TestReport(t *testing.T) {
	var r Report
	r.Count(0, "sets of %s", "a")
	r.Count(2, "chains of %s", "b")
	r.Leave("table %s: %v", "c", 3)
	r.Leave("d")
	if !slices.Equal(r.Removed, []string{"2 chains of b"}) || !slices.Equal(r.Left, []string{"table c: 3", "d"}) {
		t.Errorf("%+v", r)
	}
}

// A mode without a constructor is a description: it belongs to another operating system.
func TestBuilt(t *testing.T) {
	if (Mode{}).Built() || !(Mode{Planes: Planes{New: func(Settings) (Plane, error) { return nil, nil }}}).Built() {
		t.Error("a mode is built if and only if it can be constructed")
	}
}

// A mode reads the named fields, and all fields within them.
func TestReadsField(t *testing.T) {
	var m Mode
	m.Reads = []string{"ipvs", "nftables.masqueradeAll"}
	for path, want := range map[string]bool{"ipvs": true, "ipvs.scheduler": true, "nftables.masqueradeAll": true,
		"ipvsadm": false, "nftables": false, "nftables.syncPeriod": false, "": false} {
		if m.ReadsField(path) != want {
			t.Errorf("it reads %q: %t, want %t", path, !want, want)
		}
	}
}

// What trace assumes of a mode follows its description and, for localhost, the settings.
func TestTraceOfMode(t *testing.T) {
	served := func(Settings) func(lb.Node, *lb.Frontend, trace.Packet) (*lb.Frontend, string) {
		return func(lb.Node, *lb.Frontend, trace.Packet) (*lb.Frontend, string) { return nil, "by the settings" }
	}
	all := Mode{Name: "all", Deviations: Deviations{PassesUnknown: true, HairpinsByNode: true, LocalhostSockets: true,
		Served: served}}
	all.AddressDevice, all.Terminates, all.LocalhostNodePorts, all.LocalhostGate = "dummy0", true, true, "gate"
	on := Settings{MasqueradeBit: 14, LocalhostNodePorts: true, LocalhostProxy: true}
	for _, c := range []struct {
		name string
		m    Mode
		s    Settings
		want trace.Mode
	}{
		{"all, with localhost", all, on, trace.Mode{Name: "all", PassesUnknown: true, Holds: true, Terminates: true,
			Mark: 1 << 14, Loopback: true, LocalhostProxy: true, LocalhostSockets: true, HairpinsByNode: true}},
		{"all, without localhost", all, Settings{}, trace.Mode{Name: "all", PassesUnknown: true, Holds: true,
			Terminates: true, Mark: 1, LocalhostSockets: true, HairpinsByNode: true}},
		{"none, with localhost", Mode{Name: "none"}, on, trace.Mode{Name: "none"}},
	} {
		got := c.m.Trace(c.s)
		if (got.Served != nil) != (c.m.Served != nil) {
			t.Errorf("%s: it decides by client: %t", c.name, got.Served != nil)
		}
		got.Served = nil
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}
