package policy_test

import (
	"net/netip"
	"strings"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
	"kube-proxy/test/oracle"
)

// scene is the state that a test changes before it resolves: Service shop/web with port http 80 on
// 10.96.0.7, on node node-1 (172.18.0.2) of a cluster whose pods are 10.1.0.0/16.
type scene struct {
	svc      *cluster.Service
	slices   []*cluster.Slice
	facts    cluster.Facts
	settings policy.Settings
}

func newScene() *scene {
	return &scene{
		svc: &cluster.Service{
			Name:       cluster.Name{Namespace: "shop", Name: "web"},
			ClusterIPs: addrs("10.96.0.7"),
			Ports:      []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80}},
		},
		facts: cluster.Facts{
			NodeName: "node-1",
			Node:     &cluster.Node{Name: "node-1", Zone: "a", Addrs: addrs("172.18.0.2", "fd00::2")},
		},
		settings: policy.Settings{Family: lb.IPv4, ClusterCIDRs: prefixes("10.1.0.0/16")},
	}
}

func (s *scene) view() cluster.View {
	return cluster.View{Name: cluster.Name{Namespace: "shop", Name: "web"}, Service: s.svc, Slices: s.slices,
		Node: s.facts}
}

// edited edits the endpoints of the first slice.
func edited(edit func(*cluster.Endpoint)) func(*scene) {
	return func(s *scene) {
		s.slices[0].Endpoints = s.slices[0].Endpoints.Edited(func(_ int, e *cluster.Endpoint) { edit(e) })
	}
}

// endpoints adds a slice with port http 8080. An endpoint is an address and words: local, unready,
// terminating (and serving), dead (terminating, not serving), zone=Z, node=N.
func (s *scene) endpoints(eps ...string) *scene {
	sl := &cluster.Slice{Service: s.svc.Name,
		Ports: []cluster.SlicePort{{Name: "http", Protocol: cluster.TCP, Port: 8080}}}
	for _, words := range eps {
		fields := strings.Fields(words)
		e := cluster.Endpoint{Addr: netip.MustParseAddr(fields[0]), Where: cluster.At("node-2", ""), Ready: true,
			Serving: true}
		for _, w := range fields[1:] {
			value := w[strings.Index(w, "=")+1:]
			switch {
			case w == "local":
				e.Where = cluster.At("node-1", "")
			case w == "unready":
				e.Ready, e.Serving = false, false
			case w == "terminating":
				e.Ready, e.Terminating = false, true
			case w == "dead":
				e.Ready, e.Serving, e.Terminating = false, false, true
			case strings.HasPrefix(w, "zone="):
				e.Hints = &cluster.Hints{Zones: []string{value}}
			case strings.HasPrefix(w, "node="):
				e.Hints = &cluster.Hints{Nodes: []string{value}}
			default:
				panic("endpoint: " + words)
			}
		}
		sl.IPv6 = e.Addr.Is6()
		sl.Endpoints = sl.Endpoints.With(e)
	}
	s.slices = append(s.slices, sl)
	return s
}

// external gives the Service a NodePort and the external traffic policy.
func (s *scene) external(p cluster.TrafficPolicy) *scene {
	s.svc.Type, s.svc.ExternalPolicy = cluster.TypeNodePort, p
	s.svc.Ports[0].NodePort = 30080
	return s
}

func (s *scene) loadBalancer(ips string, ranges ...string) *scene {
	s.svc.Type, s.svc.LoadBalancerIPs, s.svc.SourceRanges = cluster.TypeLoadBalancer, addrs(strings.Fields(ips)...),
		prefixes(ranges...)
	return s
}

// with applies any other change to the scene.
func (s *scene) with(change func(*scene)) *scene { change(s); return s }

func (s *scene) resolve() *lb.Table {
	var t lb.Table
	t.Replace(lb.Owner{Name: "shop/web"}, policy.Resolve(s.view(), s.settings))
	return &t
}

// rows returns the text of the frontends whose line contains one of words, with their sets; of all
// frontends without words.
func rows(t *lb.Table, words ...string) string {
	var kept lb.Table
	var fronts []*lb.Frontend
	for _, f := range t.Sorted() {
		line, _, _ := strings.Cut(f.String(), "\n")
		keep := len(words) == 0
		for _, w := range words {
			keep = keep || strings.Contains(line, w)
		}
		if keep {
			fronts = append(fronts, f)
		}
	}
	kept.Replace(lb.Owner{Name: "shop/web"}, fronts)
	return kept.String()
}

// Often used texts.
const (
	twoSets = `
set shop/web:http/tcp/cluster
  10.1.1.11:8080 local
  10.1.2.14:8080
set shop/web:http/tcp/local
  10.1.1.11:8080 local`
	clusterIPRow = `
10.96.0.7:80/tcp shop/web:http clusterip
  pods     balance shop/web:http/tcp/cluster
  anywhere balance shop/web:http/tcp/cluster masquerade`
	mixed = "10.1.1.11 local"
	far   = "10.1.2.14"
)

// check compares the frontends that contain one of words with want.
func check(t *testing.T, s *scene, want string, words ...string) {
	t.Helper()
	table := s.resolve()
	if got, want := rows(table, words...), strings.TrimPrefix(strings.TrimRight(want, "\n")+"\n", "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	var slow lb.Table
	slow.Replace(lb.Owner{Name: "shop/web"}, oracle.Frontends(s.view(), s.settings))
	if got, want := table.String(), slow.String(); got != want {
		t.Errorf("got\n%s\nthe slow twin says\n%s", got, want)
	}
}

// TestOutcomes checks "What becomes of a connection" in docs/behaviour.md.
func TestOutcomes(t *testing.T) {
	const local, all = cluster.PolicyLocal, cluster.PolicyCluster
	internalLocal := func(s *scene) { s.svc.InternalPolicy = local }
	for _, test := range []struct {
		name  string
		scene *scene
		rows  string // the frontends to compare
		want  string
	}{
		{"SV-50 no endpoint rejects everywhere", newScene().external(all).loadBalancer("192.0.2.7").
			with(func(s *scene) { s.svc.ExternalIPs = addrs("192.0.2.1") }), "", `
nodeport:30080/tcp shop/web:http nodeport
  anywhere reject
10.96.0.7:80/tcp shop/web:http clusterip
  anywhere reject
192.0.2.1:80/tcp shop/web:http externalip
  anywhere reject
192.0.2.7:80/tcp shop/web:http loadbalancer
  anywhere reject`},
		{"SV-50 policies Local without any endpoint reject too", newScene().external(local).with(internalLocal), "", `
nodeport:30080/tcp shop/web:http nodeport
  anywhere reject
10.96.0.7:80/tcp shop/web:http clusterip
  anywhere reject`},
		{"SV-50 SV-41 endpoints that cannot serve do not count",
			newScene().external(local).endpoints("10.1.1.11 local unready", "10.1.2.14 dead"), "", `
nodeport:30080/tcp shop/web:http nodeport
  anywhere reject
10.96.0.7:80/tcp shop/web:http clusterip
  anywhere reject`},
		{"SV-51 internal local none local drops", newScene().with(internalLocal).endpoints(far), "", `
10.96.0.7:80/tcp shop/web:http clusterip
  anywhere drop`},
		{"SV-51 external follows its own policy", newScene().external(all).with(internalLocal).endpoints(far), "", `
nodeport:30080/tcp shop/web:http nodeport
  anywhere balance shop/web:http/tcp/cluster masquerade
10.96.0.7:80/tcp shop/web:http clusterip
  anywhere drop
set shop/web:http/tcp/cluster
  10.1.2.14:8080`},
		{"SV-19 SV-20 internal local uses local endpoints", newScene().with(internalLocal).endpoints(mixed, far), "", `
10.96.0.7:80/tcp shop/web:http clusterip
  pods     balance shop/web:http/tcp/local
  anywhere balance shop/web:http/tcp/local masquerade
set shop/web:http/tcp/local
  10.1.1.11:8080 local`},
		{"SV-52 SV-53 external local none local drops, short-circuits the cluster",
			newScene().external(local).endpoints(far), "nodeport", `
nodeport:30080/tcp shop/web:http nodeport
  pods     balance shop/web:http/tcp/cluster
  host     balance shop/web:http/tcp/cluster masquerade
  anywhere drop
set shop/web:http/tcp/cluster
  10.1.2.14:8080`},
		{"SV-54 external cluster masquerades everybody", newScene().external(all).endpoints(mixed, far), "nodeport", `
nodeport:30080/tcp shop/web:http nodeport
  anywhere balance shop/web:http/tcp/cluster masquerade
set shop/web:http/tcp/cluster
  10.1.1.11:8080 local
  10.1.2.14:8080`},
		{"SV-55 SV-56 SV-57 external local keeps outside sources", newScene().external(local).endpoints(mixed, far),
			"nodeport", `
nodeport:30080/tcp shop/web:http nodeport
  pods     balance shop/web:http/tcp/cluster
  host     balance shop/web:http/tcp/cluster masquerade
  anywhere balance shop/web:http/tcp/local` + twoSets},
		{"SV-55 the same rows for load-balancer and external IPs", newScene().external(local).loadBalancer("192.0.2.7").
			with(func(s *scene) { s.svc.ExternalIPs = addrs("192.0.2.1") }).endpoints(mixed, far), "192.0.2", `
192.0.2.1:80/tcp shop/web:http externalip
  pods     balance shop/web:http/tcp/cluster
  host     balance shop/web:http/tcp/cluster masquerade
  anywhere balance shop/web:http/tcp/local
192.0.2.7:80/tcp shop/web:http loadbalancer
  pods     balance shop/web:http/tcp/cluster
  host     balance shop/web:http/tcp/cluster masquerade
  anywhere balance shop/web:http/tcp/local` + twoSets},
		{"SV-58 CF-21 CF-30 masquerade all", newScene().with(func(s *scene) { s.settings.MasqueradeAll = true }).
			endpoints(far), "", `
10.96.0.7:80/tcp shop/web:http clusterip
  anywhere balance shop/web:http/tcp/cluster masquerade
set shop/web:http/tcp/cluster
  10.1.2.14:8080`},
		{"SV-59 cluster IP masquerades what is no pod", newScene().endpoints(far), "", clusterIPRow + `
set shop/web:http/tcp/cluster
  10.1.2.14:8080`},
		{"SV-60 backends on this node are marked for hairpin", newScene().endpoints(far, mixed), "", clusterIPRow + `
set shop/web:http/tcp/cluster
  10.1.1.11:8080 local
  10.1.2.14:8080`},
		{"SV-61 sources stay without a serving backend", newScene().loadBalancer("192.0.2.7", "10.0.0.0/8"),
			"loadbalancer", `
192.0.2.7:80/tcp shop/web:http loadbalancer sources 10.0.0.0/8
  anywhere reject`},
		{"SV-67 no detector: no masquerade of the cluster IP",
			newScene().with(func(s *scene) { s.settings.ClusterCIDRs = nil }).endpoints(far), "", `
10.96.0.7:80/tcp shop/web:http clusterip
  anywhere balance shop/web:http/tcp/cluster
set shop/web:http/tcp/cluster
  10.1.2.14:8080`},
		{"SV-67 no detector: no short-circuit for pods",
			newScene().external(local).with(func(s *scene) { s.settings.ClusterCIDRs = prefixes("fd00:1::/48") }).
				endpoints(mixed, far), "nodeport", `
nodeport:30080/tcp shop/web:http nodeport
  host     balance shop/web:http/tcp/cluster masquerade
  anywhere balance shop/web:http/tcp/local` + twoSets},
		{"SV-67 a detector by interface is one in both families", newScene().with(func(s *scene) {
			s.settings = policy.Settings{Family: lb.IPv4, DetectLocal: policy.BridgeInterface, PodInterface: "cbr0"}
		}).endpoints(far), "", clusterIPRow + `
set shop/web:http/tcp/cluster
  10.1.2.14:8080`},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.rows == "" {
				check(t, test.scene, test.want)
				return
			}
			check(t, test.scene, test.want, test.rows)
		})
	}
}

// TestEndpoints walks through "Endpoints" in docs/behaviour.md.
func TestEndpoints(t *testing.T) {
	const hint = "10.1.9.9 zone=elsewhere"
	for _, test := range []struct {
		name  string
		scene *scene
		want  string // the cluster set, and, if there is one, " | " and the local set
	}{
		{"SV-30 slices add up", newScene().endpoints(far).endpoints(mixed).endpoints(),
			"10.1.1.11:8080 local, 10.1.2.14:8080"},
		{"SV-31 port 0 is ignored", newScene().endpoints(far).with(func(s *scene) { s.slices[0].Ports[0].Port = 0 }),
			""},
		{"SV-22 ports go by name",
			newScene().endpoints(far).with(func(s *scene) { s.slices[0].Ports[0].Name = "https" }), ""},
		{"SV-22 and by protocol",
			newScene().endpoints(far).with(func(s *scene) { s.slices[0].Ports[0].Protocol = cluster.UDP }), ""},
		{"SV-32 copies merge: local and ready win", newScene().endpoints("10.1.1.11").
			endpoints("10.1.1.11 local terminating").endpoints("10.1.1.11 unready"), "10.1.1.11:8080 local"},
		{"SV-32 SV-38 hints of a copy that is not ready do not count", newScene().endpoints("10.1.2.14",
			"10.1.2.15 zone=a").endpoints("10.1.2.14 terminating zone=b"), "10.1.2.14:8080, 10.1.2.15:8080"},
		{"SV-32 SV-38 hints of ready copies add up", newScene().endpoints("10.1.2.14 zone=a", "10.1.2.15 zone=b").
			endpoints("10.1.2.14 zone=b", "10.1.2.15"), "10.1.2.14:8080"},
		{"SV-32 the same address with another port is another backend", newScene().endpoints(far).endpoints(far).
			with(func(s *scene) {
				s.slices[1].Ports[0].Port = 8081
			}), "10.1.2.14:8080, 10.1.2.14:8081"},
		{"SV-33 no node name, nothing is local", newScene().with(func(s *scene) { s.facts.NodeName = "" }).
			endpoints(mixed), "10.1.1.11:8080"},
		{"SV-33 an endpoint without node name is remote",
			newScene().endpoints(mixed).with(edited(func(e *cluster.Endpoint) {
				e.Where = cluster.At("", "zone-a")
			})), "10.1.1.11:8080 unplaced"},
		{"SV-34 the other family is ignored", newScene().endpoints(far).endpoints("fd00:1::1"), "10.1.2.14:8080"},
		{"SV-34 also where the slice's type lies",
			newScene().endpoints(far).with(func(s *scene) { s.slices[0].IPv6 = true }), ""},
		{"SV-34 an address of the wrong family in a slice", newScene().endpoints(far, "fd00:1::1").
			with(func(s *scene) { s.slices[0].IPv6 = false }), "10.1.2.14:8080"},
		{"SV-36 ready ones alone", newScene().endpoints(far, "10.1.2.15 terminating", "10.1.2.16 unready"),
			"10.1.2.14:8080"},
		{"SV-36 none ready: terminating ones serve", newScene().endpoints("10.1.2.15 terminating", "10.1.2.16 unready",
			"10.1.2.17 dead"), "10.1.2.15:8080 draining"},
		{"SV-36 the fallback does not look at hints", newScene().endpoints("10.1.2.15 terminating zone=a",
			"10.1.2.16 terminating zone=b"), "10.1.2.15:8080 draining, 10.1.2.16:8080 draining"},
		{"SV-22 publishNotReady: ready wins over terminating",
			newScene().endpoints(far).with(edited(func(e *cluster.Endpoint) {
				e.Terminating = true
			})), "10.1.2.14:8080"},
		{"SV-37 local: ready ones alone", newScene().external(cluster.PolicyLocal).endpoints(mixed,
			"10.1.1.12 local terminating", far), "10.1.1.11:8080 local, 10.1.2.14:8080 | 10.1.1.11:8080 local"},
		{"SV-37 local: none ready, terminating ones serve", newScene().external(cluster.PolicyLocal).
			endpoints("10.1.1.12 local terminating", far), "10.1.2.14:8080 | 10.1.1.12:8080 local draining"},
		{"SV-37 local: topology does not apply", newScene().external(cluster.PolicyLocal).
			endpoints("10.1.1.11 local zone=b", "10.1.2.14 zone=a"), "10.1.2.14:8080 | 10.1.1.11:8080 local"},
		{"SV-38 node hints first", newScene().endpoints("10.1.2.14 node=node-1", "10.1.2.15 node=node-2"),
			"10.1.2.14:8080"},
		{"SV-38 no node hint names this node: all", newScene().endpoints("10.1.2.14 node=node-3",
			"10.1.2.15 node=node-2"), "10.1.2.14:8080, 10.1.2.15:8080"},
		{"SV-38 SV-39 node hints name others: zone hints decide", newScene().endpoints("10.1.2.14 zone=a",
			"10.1.2.15 zone=b").with(edited(func(e *cluster.Endpoint) {
			e.Hints.Nodes = []string{"node-3"}
		})), "10.1.2.14:8080"},
		{"SV-38 zone hints", newScene().endpoints("10.1.2.14 zone=a", "10.1.2.15 zone=b"), "10.1.2.14:8080"},
		{"SV-38 one endpoint without hints disables them", newScene().endpoints("10.1.2.14 zone=a", "10.1.2.15 zone=b",
			"10.1.2.16"), "10.1.2.14:8080, 10.1.2.15:8080, 10.1.2.16:8080"},
		{"SV-38 one endpoint without node hints disables these", newScene().endpoints("10.1.2.14 node=node-1",
			"10.1.2.15"), "10.1.2.14:8080, 10.1.2.15:8080"},
		{"SV-38 endpoints that are not ready have no say", newScene().endpoints("10.1.2.14 zone=a", "10.1.2.15 zone=b",
			"10.1.2.16 terminating"), "10.1.2.14:8080"},
		{"SV-38 no hint for this zone: all", newScene().endpoints("10.1.2.14 zone=c", "10.1.2.15 zone=b"),
			"10.1.2.14:8080, 10.1.2.15:8080"},
		{"SV-38 this node's zone is unknown: all", newScene().with(func(s *scene) {
			s.facts.Node.Zone = ""
		}).endpoints("10.1.2.14 zone=a", hint), "10.1.2.14:8080, 10.1.9.9:8080"},
		{"SV-38 no Node object: all", newScene().with(func(s *scene) { s.facts.Node = nil }).
			endpoints("10.1.2.14 zone=a", hint), "10.1.2.14:8080, 10.1.9.9:8080"},
		{"SV-40 another zone, another choice", newScene().with(func(s *scene) { s.facts.Node.Zone = "elsewhere" }).
			endpoints("10.1.2.14 zone=a", hint), "10.1.9.9:8080"},
	} {
		t.Run(test.name, func(t *testing.T) {
			sets := map[lb.Scope]string{}
			for f := range test.scene.resolve().All() {
				for _, scope := range []lb.Scope{lb.Cluster, lb.Local} {
					if set := f.Set(scope); set != nil {
						_, text, _ := strings.Cut((&lb.Frontend{Routes: []lb.Route{{To: set}}}).String(), "set ")
						lines := strings.Split(strings.TrimSpace(text), "\n  ")
						sets[scope] = strings.Join(lines[1:], ", ")
					}
				}
			}
			got := sets[lb.Cluster]
			if sets[lb.Local] != "" {
				got += " | " + sets[lb.Local]
			}
			if got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			var slow lb.Table
			slow.Replace(lb.Owner{Name: "shop/web"}, oracle.Frontends(test.scene.view(), test.scene.settings))
			if got, want := test.scene.resolve().String(), slow.String(); got != want {
				t.Errorf("got\n%s\nthe slow twin says\n%s", got, want)
			}
		})
	}
}
