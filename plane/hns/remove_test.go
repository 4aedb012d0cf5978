package hns_test

import (
	"errors"
	"strings"
	"testing"

	"kube-proxy/config/option"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/hns"
	"kube-proxy/test/hnsfake"
	"kube-proxy/test/planetest"
)

// --cleanup removes our objects of both families from the configured network, and no others (PN-76,
// CF-31). A failure is an error, and the rest is removed. Without a name or a network nothing
// happens.
func TestCleanupPN76(t *testing.T) {
	t.Setenv("KUBE_NETWORK", "")
	n := newNode(hns.L2Bridge, hnsfake.Everything)
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		w := planetest.World{Family: f}
		table := w.Table(5, 3)
		table.Replace(w.Full(10, 30, 3, 2, 0))
		reset(t, n.plane(t, f), table)
	}
	foreign := n.foreigners(t)
	open := func() (hns.HNS, error) { return n, nil }
	what := mode.Removal{Families: []lb.Family{lb.IPv4, lb.IPv6}}
	r, err := hns.Remove(t.Context(), open, what)
	if err != nil || len(r.Removed) > 0 || !strings.Contains(strings.Join(r.Left, " "), "--network-name") {
		t.Errorf("without a name: %+v, %v", r, err)
	}
	asked := &hns.Options{}
	asked.Winkernel.NetworkName, what.Blocks = "another", option.Blocks{asked}
	if r, err := hns.Remove(t.Context(), open, what); err != nil || len(r.Removed)+len(r.Left) > 0 {
		t.Errorf("without a network: %+v, %v", r, err)
	}
	asked.Winkernel.NetworkName = networkName
	fail := true
	n.FailWith(func(c hnsfake.Call) *hnsfake.Fault {
		if fail && c.Name == "DeleteLoadBalancer" {
			fail = false
			return &hnsfake.Fault{Code: hns.CodeAccessDenied}
		}
		return nil
	})
	if r, err := hns.Remove(t.Context(), open, what); !errors.Is(err, hns.ErrDenied) || len(r.Removed) == 0 {
		t.Errorf("what HNS refuses: %+v, %v", r, err)
	}
	r, err = hns.Remove(t.Context(), open, what)
	if err != nil || !strings.Contains(strings.Join(r.Removed, " "), "1 load balancers of HNS") {
		t.Errorf("the rest: %+v, %v", r, err)
	}
	s := n.State()
	if touched := n.Touched(); len(touched) > 0 || len(s.LoadBalancers) != 3 {
		t.Errorf("touched %q, %d load balancers are left, want 3 of %v", touched, len(s.LoadBalancers), foreign)
	}
	for _, e := range s.Endpoints {
		if e.Flags&hns.RemoteEndpoint != 0 && e.HostComputeNetwork == n.network &&
			!strings.HasPrefix(e.IPConfigurations[0].IPAddress, "100.0.9.") {
			t.Errorf("left: %+v", e)
		}
	}
}
