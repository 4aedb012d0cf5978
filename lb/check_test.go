package lb_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/lb"
)

func backends(addrs ...string) lb.Backends {
	var out []lb.Backend
	for _, a := range addrs {
		out = append(out, lb.Backend{Addr: netip.MustParseAddrPort(a)})
	}
	return lb.BackendsOf(out...)
}

// portWithout has backends at one port, and none at another.
func portWithout() lb.Backends {
	b := backends("10.0.0.1:80")
	b.Add(81, lb.Endpoints{})
	return b
}

// wellFormed has one route over a set of two.
func wellFormed(t *testing.T, key string) *lb.Frontend {
	f := &lb.Frontend{Key: mustKey(t, key), Service: "a/b:http", Kind: lb.ClusterIP}
	f.Routes = []lb.Route{{From: lb.Anywhere, Do: lb.Balance, To: &lb.BackendSet{
		ID: lb.SetID{Service: f.Service, Proto: f.Key.Proto, Scope: lb.Cluster}, Backends: backends("10.0.0.1:80",
			"10.0.0.2:80")}}}
	return f
}

func healthCheck(endpoints int) *lb.Frontend {
	return &lb.Frontend{Key: lb.Key{Port: 32100, Proto: lb.TCP}, Service: "a/b", Kind: lb.HealthCheck,
		Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Accept}}, LocalEndpoints: endpoints}
}

// The limits of the rules are inside.
func TestCheckAccepts(t *testing.T) {
	for _, key := range []string{"192.0.2.1:1/tcp", "192.0.2.1:65535/udp", "192.0.2.1:80/sctp"} {
		f := wellFormed(t, key)
		f.Affinity = 24 * time.Hour
		f.Sources = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("11.0.0.0/8")}
		f.Serving = &lb.BackendSet{ID: lb.SetID{Service: f.Service, Proto: f.Key.Proto, Scope: lb.Serving},
			Backends: backends("10.0.0.1:80", "10.0.0.1:81")}
		if err := lb.Check(lb.IPv4, f); err != nil {
			t.Error(err)
		}
	}
	if err := lb.Check(lb.IPv4, healthCheck(0)); err != nil {
		t.Error(err)
	}
}

// A frontend that violates any rule is refused without effect on others: the Service's other
// frontends are accepted, and its former frontend of that key stays.
func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(*lb.Frontend)
	}{
		{"wrong family", func(f *lb.Frontend) { f.Key.Addr = netip.MustParseAddr("2001:db8::1") }},
		{"no port", func(f *lb.Frontend) { f.Key.Port = 0 }},
		{"address with a zone", func(f *lb.Frontend) { f.Key.Addr = netip.MustParseAddr("fe80::1%eth0") }},
		{"odd protocol", func(f *lb.Frontend) { f.Key.Proto = 1 }},
		{"no service", func(f *lb.Frontend) { f.Service = "" }},
		{"no kind", func(f *lb.Frontend) { f.Kind = 0 }},
		{"node port with address", func(f *lb.Frontend) { f.Kind = lb.NodePort }},
		{"cluster IP without address", func(f *lb.Frontend) { f.Key.Addr = netip.Addr{} }},
		{"affinity too long", func(f *lb.Frontend) { f.Affinity = 25 * time.Hour }},
		{"affinity in parts of seconds", func(f *lb.Frontend) { f.Affinity = time.Millisecond }},
		{"cluster IP that preserves the destination", func(f *lb.Frontend) { f.PreserveDestination = true }},
		{"health check that preserves the destination", func(f *lb.Frontend) {
			*f = *healthCheck(1)
			f.PreserveDestination = true
		}},
		{"source of the other family", func(f *lb.Frontend) {
			f.Sources = []netip.Prefix{netip.MustParsePrefix("::/0")}
		}},
		{"source not masked", func(f *lb.Frontend) { f.Sources = []netip.Prefix{netip.MustParsePrefix("10.0.0.1/8")} }},
		{"sources overlap", func(f *lb.Frontend) {
			f.Sources = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.1.0.0/16")}
		}},
		{"sources of a NodePort", func(f *lb.Frontend) {
			f.Kind, f.Key.Addr, f.Sources = lb.NodePort, netip.Addr{},
				[]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
		}},
		{"sources not sorted", func(f *lb.Frontend) {
			f.Sources = []netip.Prefix{netip.MustParsePrefix("11.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8")}
		}},
		{"no routes", func(f *lb.Frontend) { f.Routes = nil }},
		{"not for anywhere", func(f *lb.Frontend) { f.Routes[0].From = lb.Pods }},
		{"twice from anywhere", func(f *lb.Frontend) { f.Routes = append(f.Routes, f.Routes[0]) }},
		{"no action", func(f *lb.Frontend) { f.Routes[0].Do = 0 }},
		{"rejects to a set", func(f *lb.Frontend) { f.Routes[0].Do = lb.Reject }},
		{"drops with masquerade", func(f *lb.Frontend) {
			f.Routes[0] = lb.Route{From: lb.Anywhere, Do: lb.Drop, Masq: true}
		}},
		{"no set", func(f *lb.Frontend) { f.Routes[0].To = nil }},
		{"empty set", func(f *lb.Frontend) { f.Routes[0].To.Backends = backends() }},
		{"set of another service", func(f *lb.Frontend) { f.Routes[0].To.ID.Service = "x/y" }},
		{"set of another protocol", func(f *lb.Frontend) { f.Routes[0].To.ID.Proto = lb.UDP }},
		{"set of no scope", func(f *lb.Frontend) {
			f.Serving = &lb.BackendSet{ID: lb.SetID{Service: f.Service, Proto: f.Key.Proto},
				Backends: backends("10.0.0.1:80")}
		}},
		{"set of an unknown scope", func(f *lb.Frontend) {
			f.Serving = &lb.BackendSet{ID: lb.SetID{Service: f.Service, Proto: f.Key.Proto, Scope: lb.Serving + 1},
				Backends: backends("10.0.0.1:80")}
		}},
		{"backend of the other family", func(f *lb.Frontend) { f.Routes[0].To.Backends = backends("[::1]:80") }},
		{"backend without port", func(f *lb.Frontend) { f.Routes[0].To.Backends = backends("10.0.0.1:0") }},
		{"backends not sorted", func(f *lb.Frontend) {
			f.Routes[0].To.Backends = backends("10.0.0.2:80", "10.0.0.1:80")
		}},
		{"accepts beside routes", func(f *lb.Frontend) {
			f.Routes = append([]lb.Route{{From: lb.Pods, Do: lb.Accept}}, f.Routes...)
		}},
		{"cluster IP that accepts", func(f *lb.Frontend) { f.Routes = healthCheck(1).Routes }},
		{"cluster IP that counts endpoints", func(f *lb.Frontend) { f.LocalEndpoints = 1 }},
		{"health check with address", func(f *lb.Frontend) {
			*f = *healthCheck(1)
			f.Key = lb.Key{Addr: netip.MustParseAddr("192.0.2.1"), Port: 80, Proto: lb.TCP}
		}},
		{"health check over UDP", func(f *lb.Frontend) { *f = *healthCheck(1); f.Key.Proto = lb.UDP }},
		{"health check that drops", func(f *lb.Frontend) {
			*f = *healthCheck(1)
			f.Routes = []lb.Route{{From: lb.Anywhere, Do: lb.Drop}}
		}},
		{"health check for pods", func(f *lb.Frontend) {
			*f = *healthCheck(1)
			f.Routes = []lb.Route{{From: lb.Pods, Do: lb.Accept}}
		}},
		{"health check with affinity", func(f *lb.Frontend) { *f = *healthCheck(1); f.Affinity = time.Hour }},
		{"health check that masquerades", func(f *lb.Frontend) { *f = *healthCheck(1); f.Routes[0].Masq = true }},
		{"health check with a set", func(f *lb.Frontend) {
			to := f.Routes[0].To
			*f = *healthCheck(1)
			f.Routes[0].To = to
		}},
		{"health check with sources", func(f *lb.Frontend) {
			*f = *healthCheck(1)
			f.Sources = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
		}},
		{"health check that serves", func(f *lb.Frontend) {
			serving := *f.Routes[0].To
			*f = *healthCheck(1)
			f.Serving = &serving
		}},
		{"health check with a negative count", func(f *lb.Frontend) { *f = *healthCheck(-1) }},
		{"backend twice", func(f *lb.Frontend) { f.Routes[0].To.Backends = backends("10.0.0.1:80", "10.0.0.1:80") }},
		{"ports not sorted", func(f *lb.Frontend) { f.Routes[0].To.Backends = backends("10.0.0.1:81", "10.0.0.2:80") }},
		{"port twice", func(f *lb.Frontend) {
			f.Routes[0].To.Backends = backends("10.0.0.1:80", "10.0.0.2:81", "10.0.0.3:80")
		}},
		{"port added twice", func(f *lb.Frontend) {
			f.Routes[0].To.Backends.Add(80, lb.EndpointsOf(lb.Endpoint{Addr: netip.MustParseAddr("10.0.0.3")}))
		}},
		{"port without backends", func(f *lb.Frontend) { f.Routes[0].To.Backends = portWithout() }},
		{"serving backends not sorted", func(f *lb.Frontend) {
			f.Serving = &lb.BackendSet{ID: lb.SetID{Service: f.Service, Proto: f.Key.Proto, Scope: lb.Serving},
				Backends: backends("10.0.0.2:80", "10.0.0.1:80")}
		}},
		{"balances over what serves", func(f *lb.Frontend) { f.Routes[0].To.ID.Scope = lb.Serving }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bad := wellFormed(t, "192.0.2.1:80/tcp")
			if err := lb.Check(lb.IPv4, bad); err != nil {
				t.Fatalf("refused as it should be: %v", err)
			}
			tt.spoil(bad)
			err := lb.Check(lb.IPv4, bad)
			if err == nil || !strings.Contains(err.Error(), bad.Key.String()) {
				t.Fatalf("got %v, want an error that names the row", err)
			}
			o := lb.Owner{Name: "a/b"}
			table := lb.Table{Family: lb.IPv4}
			good := wellFormed(t, "192.0.2.2:80/tcp")
			was := wellFormed(t, "192.0.2.1:80/tcp")
			table.Replace(o, []*lb.Frontend{was})
			changes, _ := table.Replace(o, []*lb.Frontend{bad, good})
			if refused := table.Refused(o.Name); len(refused) != 1 || refused[0].Key != bad.Key ||
				refused[0].Err.Error() != err.Error() {
				t.Errorf("refused %v, want %v", refused, err)
			}
			if i := slices.IndexFunc(changes, func(c lb.Change) bool { return c.New.Equal(good) }); i < 0 ||
				slices.Contains(table.Owned(o.Name), bad) {
				t.Errorf("changes %v", changes)
			}
			if bad.Key == was.Key && (table.Get(was.Key) != was || len(changes) != 1) {
				t.Errorf("%s is in force, want what was; changes %v", table.Get(was.Key).Service, changes)
			}
			// An older Service of that name keeps both, and one that claims less is no longer
			// refused.
			o.Created = 7
			table.Replace(o, []*lb.Frontend{bad, good})
			if len(table.Refused(o.Name)) != 1 || table.Get(good.Key) == nil {
				t.Errorf("recreated: %d refused, %d rows", len(table.Refused(o.Name)), table.Len())
			}
			table.Replace(o, []*lb.Frontend{good})
			if len(table.Refused(o.Name)) != 0 || table.Len() != 1 {
				t.Errorf("cured: %d refused, %d rows", len(table.Refused(o.Name)), table.Len())
			}
			table.Replace(o, []*lb.Frontend{bad})
			table.Replace(o, nil)
			if len(table.Refused(o.Name)) != 0 || table.Len() != 0 {
				t.Errorf("gone: %d refused, %d rows", len(table.Refused(o.Name)), table.Len())
			}
		})
	}
}
