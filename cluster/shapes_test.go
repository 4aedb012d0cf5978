package cluster_test

import (
	"fmt"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/test/cputest"
)

// slicesOf returns the slices of one Service, each with one endpoint.
func slicesOf(n int) []*cluster.Slice {
	out := make([]*cluster.Slice, n)
	for i := range out {
		out[i] = &cluster.Slice{
			Name:      cluster.Name{Namespace: "shop", Name: fmt.Sprint("web-", i)},
			Service:   cluster.Name{Namespace: "shop", Name: "web"},
			Endpoints: cluster.EndpointsOf(cluster.Endpoint{Ready: true}),
		}
	}
	return out
}

// The cost of each slice of a Service does not grow with their number: they are added, and deleted
// in the same order.
func TestSlicesOfOneServiceAreLinear(t *testing.T) {
	comeAndGo := func(n int) func() {
		slices := slicesOf(n)
		return func() {
			s := cluster.NewStore("node-1")
			for _, sl := range slices {
				s.Fold(cluster.SliceSet{Slice: sl})
			}
			for _, sl := range slices {
				s.Fold(cluster.SliceGone{Name: sl.Name})
			}
		}
	}
	if ratio := cputest.Ratio(comeAndGo(300), comeAndGo(9600)); ratio > 160 { // 32 is linear, 1024 the square
		t.Errorf("9,600 slices cost %.0f times as much as 300", ratio)
	}
}
