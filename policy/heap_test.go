package policy_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

// TN-20: the memory of a large Service is proportional to the size of its objects, not to endpoints
// times ports times backend sets: with 87 ports of 3,000 endpoints, records and table stay below 10
// bytes of heap for each byte of the smallest JSON.
func TestHeapOfALargeService(t *testing.T) {
	for _, c := range []struct {
		name   string
		policy cluster.TrafficPolicy
		six    bool // dual-stack
	}{
		{name: "policy Cluster"}, {name: "policy Local", policy: cluster.PolicyLocal},
		{name: "dual-stack, policy Local", policy: cluster.PolicyLocal, six: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			const ports, slices, endpoints = 87, 3, 1000
			families := []lb.Family{lb.IPv4}
			if c.six {
				families = append(families, lb.IPv6)
			}
			before := heap()
			store := cluster.NewStore("node-1")
			bytes, svc := 0, &cluster.Service{Name: benchName(1), Type: cluster.TypeNodePort, InternalPolicy: c.policy,
				ExternalPolicy: c.policy}
			for _, f := range families {
				svc.ClusterIPs = append(svc.ClusterIPs, manyAddr(f, 172, 0))
			}
			var served []cluster.SlicePort
			for p := range ports {
				served = append(served, cluster.SlicePort{Name: fmt.Sprint("p", p), Protocol: cluster.UDP,
					Port: uint16(8000 + p)})
				svc.Ports = append(svc.Ports, cluster.ServicePort{Name: served[p].Name, Protocol: cluster.UDP,
					Port: uint16(p + 1), NodePort: uint16(30000 + p)})
				bytes += len(`{"name":"p10","port":10,"protocol":"UDP","nodePort":30010},`) +
					slices*len(families)*len(`{"name":"p10","port":8010,"protocol":"UDP"},`)
			}
			for _, f := range families {
				for i := range slices {
					sl := &cluster.Slice{Name: cluster.Name{Namespace: "shop", Name: fmt.Sprint(f, i)},
						Service: svc.Name, IPv6: f == lb.IPv6, Ports: served}
					var all []cluster.Endpoint
					for e := range endpoints {
						a := manyAddr(f, 10, i*endpoints+e)
						all = append(all, cluster.Endpoint{Addr: a, Where: cluster.At("node-1", ""), Ready: e%2 == 0,
							Serving: true, Terminating: e%2 == 1})
						bytes += len(fmt.Sprintf(`{"addresses":["%s"]},`, a))
					}
					sl.Endpoints = cluster.EndpointsOf(all...)
					store.Fold(cluster.SliceSet{Slice: sl})
				}
			}
			store.Fold(cluster.ServiceSet{Service: svc})
			tables, backends := make([]*lb.Table, len(families)), 0
			for i, f := range families {
				tables[i] = &lb.Table{}
				rows := policy.Resolve(store.View(svc.Name), policy.Settings{Family: f})
				tables[i].Replace(lb.Owner{Name: svc.Name.String()}, rows)
				for _, f := range rows {
					backends += f.Routes[0].To.Backends.Len()
				}
			}
			kept := heap() - before
			t.Logf("%d frontends to %d backends: %d bytes of heap for %d bytes of JSON", 2*ports*len(families),
				backends, kept, bytes)
			if kept > 10*bytes {
				t.Errorf("%d bytes of heap for %d bytes of JSON, want at most ten times as many", kept, bytes)
			}
			runtime.KeepAlive(store)
			runtime.KeepAlive(tables)
		})
	}
}

// heap returns the bytes in use.
func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

func manyAddr(f lb.Family, net byte, i int) netip.Addr {
	if f == lb.IPv6 {
		return netip.AddrFrom16([16]byte{0: 0xfd, 1: net, 14: byte(i >> 8), 15: byte(i)})
	}
	return netip.AddrFrom4([4]byte{net, 16, byte(i >> 8), byte(i)})
}
