//go:build linux

package ipvs

import (
	"context"
	"testing"

	ipvswire "kube-proxy/internal/netlink/ipvs"
	"kube-proxy/lb"
	"kube-proxy/test/ipvsfake"
	"kube-proxy/test/planetest"
)

// Whatever way led to a table, the kernel holds what a fresh start makes of it.
func TestRandomTransitions(t *testing.T) {
	planetest.Transitions(t, planetest.Config{New: func(f lb.Family) (planetest.Plane, error) {
		k := ipvsfake.New(ipvsfake.Config{})
		conn, err := ipvswire.New(context.Background(), k.Connect())
		if err != nil {
			return nil, err
		}
		lab := labOf(k, conn)
		lab.others = append(lab.others, nodeAddresses(f)...) // the scenarios'
		return New(lab.config(f))
	}})
}
