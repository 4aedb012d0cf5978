package userspace

import (
	"testing"

	"kube-proxy/lb"
	"kube-proxy/plane/planetest"
	"kube-proxy/plane/userspace/capture"
)

// kind is a way to capture packets, by which the plane is proven.
type kind struct {
	name string
	// own: there are no rules, and so nothing for packets to addresses that no Service has.
	own  bool
	make func(capture.Config) (capture.Capture, error)
}

var kinds = []kind{
	{"nftables", false, func(c capture.Config) (capture.Capture, error) { return capture.NewNFTables(c) }},
	{"addresses", true, func(c capture.Config) (capture.Capture, error) { return capture.NewAddresses(c) }},
}

// mark is that of the default masquerade bit.
const mark = 1 << 14

// plane makes one whose packets are captured in this way.
func (k kind) plane(f lb.Family) (planetest.Plane, error) {
	c, err := k.make(capture.Config{Family: f, Mark: mark})
	if err != nil {
		return nil, err
	}
	p, err := New(Config{Family: f, Capture: c, Mark: mark})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// TestConformance sends the packets of every scenario, captured in each way.
func TestConformance(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			planetest.Run(t, planetest.Config{Mode: "userspace", Variant: k.name != kinds[0].name, New: k.plane, Proxied: true,
				Untouched: k.own})
		})
	}
}
