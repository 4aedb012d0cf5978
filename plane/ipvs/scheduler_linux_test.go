package ipvs

import (
	"net/netip"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/kerneltest"
)

// Scheduler sh hashes the client's address alone: all connections of a client reach one endpoint,
// at the cluster IP and at the NodePort, whatever their source port (TN-60).
func TestIPVSSourceHash(t *testing.T) {
	kerneltest.Every(t)
	inVM(t)
	k := newPackets(t, lb.IPv4)
	k.p.cfg.Scheduler = "sh"
	k.On(netlab.Node1, k.reset)
	nodePort := k.node
	for _, from := range []string{"pod2", "pod3", netlab.Client, netlab.Node1} {
		for _, to := range []netip.AddrPort{k.vip, nodePort} {
			met := map[string]int{}
			for range 16 {
				r, err := k.Dial(from, netlab.TCP, to, netlab.DialOptions{})
				if err != nil {
					t.Fatalf("%s to %s: %v", from, to, err)
				}
				met[r.Server]++
			}
			if len(met) != 1 {
				t.Errorf("%s to %s meets %v: want one endpoint", from, to, met)
			}
		}
	}
}
