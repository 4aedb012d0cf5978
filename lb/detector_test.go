package lb

import (
	"net/netip"
	"testing"
)

// Two detectors are equal if all parts are: another one is a change of the node.
func TestDetectorEqual(t *testing.T) {
	one := Detector{Interface: "cni0", InterfacePrefix: "veth", Prefixes: []netip.Prefix{IPv4.Everywhere()}}
	if !one.Equal(one) || one.IsZero() || !(Detector{}).Equal(Detector{}) || !(Detector{}).IsZero() {
		t.Error("a detector differs from itself")
	}
	for _, part := range []func(*Detector){
		func(d *Detector) { d.Interface = "cni1" },
		func(d *Detector) { d.InterfacePrefix = "cali" },
		func(d *Detector) { d.Prefixes = []netip.Prefix{IPv6.Everywhere()} },
	} {
		other := one
		part(&other)
		if one.Equal(other) || other.Equal(one) {
			t.Errorf("%+v equals %+v", one, other)
		}
		var alone Detector
		part(&alone)
		if alone.IsZero() || alone.Equal(Detector{}) {
			t.Errorf("%+v is zero", alone)
		}
	}
}
