package hns

import (
	"net/netip"

	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/trace"
)

// SetStep bounds the weight of an Apply, and of new frontends in a Reset.
func (p *Plane) SetStep(n int) { p.most = n }

// RenderIn is Render for a network of that type.
var RenderIn = renderIn

// Remove is --cleanup with the HNS that open finds.
var Remove = remove

// KeptIn is the trace in a known network.
func KeptIn(s mode.Settings, n Network) func(lb.Node, *lb.Frontend, trace.Packet) (*lb.Frontend, string) {
	known, err := parse(n)
	if err != nil {
		panic(err)
	}
	return func(node lb.Node, row *lb.Frontend, p trace.Packet) (*lb.Frontend, string) {
		return keptBy(s, known, node, row, p)
	}
}

// Source returns the source VIP.
func (p *Plane) Source() netip.Addr { return p.cfg.SourceVIP }

// Config returns the plane's configuration.
func (p *Plane) Config() Config { return p.cfg }

// HNS returns the interface by which the plane calls HNS.
func (p *Plane) HNS() HNS { return p.hns }
