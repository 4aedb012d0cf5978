package conntrack

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/tables"
)

// row makes a frontend of the Service that balances over the backends, or rejects without any.
func row(key, service string, scope lb.Scope, backends ...string) *lb.Frontend {
	k, err := tables.Key(key)
	if err != nil {
		panic(err)
	}
	f := &lb.Frontend{Key: k, Service: service, Kind: lb.ClusterIP}
	if len(backends) == 0 {
		f.Routes = []lb.Route{{From: lb.Anywhere, Do: lb.Reject}}
		return f
	}
	var all []lb.Backend
	for _, b := range backends {
		all = append(all, lb.Backend{Addr: netip.MustParseAddrPort(b)})
	}
	slices.SortFunc(all, lb.Backend.Compare)
	set := &lb.BackendSet{ID: lb.SetID{Service: service, Proto: k.Proto, Scope: scope}, Backends: lb.BackendsOf(all...)}
	f.Routes = []lb.Route{{From: lb.Anywhere, Do: lb.Balance, To: set}}
	return f
}

// serving makes f a frontend whose flows may stay with the backends, though no route may lead
// there.
func serving(f *lb.Frontend, backends ...string) *lb.Frontend {
	f.Serving = row(f.Key.String(), f.Service, lb.Serving, backends...).Routes[0].To
	return f
}

// dropping makes f a frontend that drops.
func dropping(f *lb.Frontend) *lb.Frontend {
	f.Routes = []lb.Route{{From: lb.Anywhere, Do: lb.Drop}}
	return f
}

func set(f *lb.Frontend) lb.Change { return lb.Change{Key: f.Key, New: f} }

func remove(key string) lb.Change { return lb.Change{Key: row(key, "", 0).Key} }

const (
	vip     = "10.96.0.10:53/udp"
	podA    = "10.1.0.1:5353"
	podB    = "10.1.0.2:5353"
	podC    = "10.1.0.3:5353"
	service = "dns/dns:dns"
)

// verdicts: flows as "destination answered-by", the destination with its protocol.
type verdicts struct{ stale, fresh [][2]string }

func TestStale(t *testing.T) {
	nodePort := "nodeport:30053/udp"
	var seventeen []string
	for i := range 17 {
		seventeen = append(seventeen, fmt.Sprintf("10.1.1.%d:5353", i))
	}
	for _, c := range []struct {
		name   string
		before []lb.Change // a pass has dealt with these
		then   []lb.Change
		want   verdicts
	}{
		{
			name:   "DP-50 PN-01 a backend leaves: its flows go, those of others stay",
			before: []lb.Change{set(row(vip, service, lb.Cluster, podA, podB))},
			then:   []lb.Change{set(row(vip, service, lb.Cluster, podB))},
			want: verdicts{
				stale: [][2]string{{vip, podA}, {vip, podC}},
				fresh: [][2]string{{vip, podB}, {"10.96.0.11:53/udp", podA}},
			},
		}, {
			name:   "DP-50 of a set of more than 16, whose answer is cached",
			before: []lb.Change{set(row(vip, service, lb.Cluster, append([]string{podA}, seventeen...)...))},
			then:   []lb.Change{set(row(vip, service, lb.Cluster, seventeen...))},
			want:   verdicts{stale: [][2]string{{vip, podA}}, fresh: [][2]string{{vip, seventeen[16]}}},
		}, {
			name:   "DP-52 PN-06 the port counts, and so does the protocol (DP-53)",
			before: []lb.Change{set(row(vip, service, lb.Cluster, podA))},
			then:   []lb.Change{set(row(vip, service, lb.Cluster, podB))},
			want: verdicts{
				stale: [][2]string{{vip, podA}, {vip, "10.1.0.2:53"}},
				fresh: [][2]string{{"10.96.0.10:54/udp", podA}, {"10.96.0.10:53/tcp", podA},
					{"10.96.0.10:53/sctp", podA}},
			},
		}, {
			name:   "DP-51 PN-08 the last backend leaves; unanswered flows would only return",
			before: []lb.Change{set(row(vip, service, lb.Cluster, podA))},
			then:   []lb.Change{set(row(vip, service, lb.Cluster))},
			want:   verdicts{stale: [][2]string{{vip, podA}}, fresh: [][2]string{{vip, "10.96.0.10:53"}}},
		}, {
			name:   "DP-51 PN-02 the first backend comes: flows that were made without one go",
			before: []lb.Change{set(row(vip, service, lb.Cluster))},
			then:   []lb.Change{set(row(vip, service, lb.Cluster, podA))},
			want:   verdicts{stale: [][2]string{{vip, "10.96.0.10:53"}, {vip, podB}}, fresh: [][2]string{{vip, podA}}},
		}, {
			name:   "DP-50 the service goes: all its flows go, and none that no frontend led (TN-81)",
			before: []lb.Change{set(row(vip, service, lb.Cluster, podA))},
			then:   []lb.Change{remove(vip)},
			want:   verdicts{stale: [][2]string{{vip, podA}}, fresh: [][2]string{{vip, "10.96.0.10:53"}}},
		}, {
			name:   "PN-01 the service comes again with other backends",
			before: []lb.Change{set(row(vip, service, lb.Cluster, podA)), remove(vip)},
			then:   []lb.Change{set(row(vip, service, lb.Cluster, podB))},
			want:   verdicts{stale: [][2]string{{vip, podA}}, fresh: [][2]string{{vip, podB}}},
		}, {
			name: "PN-04 after a restart all rows are new",
			then: []lb.Change{set(row(vip, service, lb.Cluster, podA)),
				set(row("10.96.0.11:53/udp", "b/b:b", lb.Cluster))},
			want: verdicts{
				stale: [][2]string{{vip, podB}, {vip, "10.96.0.10:53"}, {"10.96.0.11:53/udp", podA}},
				fresh: [][2]string{{vip, podA}},
			},
		}, {
			name:   "PN-02 NodePorts on any local address, and on no other",
			before: []lb.Change{set(row(nodePort, service, lb.Cluster, podA, podB))},
			then:   []lb.Change{set(row(nodePort, service, lb.Cluster, podB))},
			want: verdicts{
				stale: [][2]string{{"192.0.2.1:30053/udp", podA}, {"127.0.0.1:30053/udp", podA}},
				fresh: [][2]string{{"192.0.2.1:30053/udp", podB}, {"192.0.2.99:30053/udp", podA},
					{"192.0.2.1:30054/udp", podA}},
			},
		}, {
			name: "a row of its own on a local address beats the NodePort of the same number",
			before: []lb.Change{set(row(nodePort, service, lb.Cluster, podA)),
				set(row("192.0.2.1:30053/udp", "other/x:x", lb.Cluster, podC))},
			then: []lb.Change{set(row(nodePort, service, lb.Cluster, podB))},
			want: verdicts{
				stale: [][2]string{{"127.0.0.1:30053/udp", podA}},
				fresh: [][2]string{{"192.0.2.1:30053/udp", podC}, {"192.0.2.1:30053/udp", podA}},
			},
		}, {
			name:   "DP-50 traffic policy, topology and draining do not count: flows stay with all that serves",
			before: []lb.Change{set(row(nodePort, service, lb.Cluster, podA, podB, podC))},
			then:   []lb.Change{set(serving(row(nodePort, service, lb.Local, podA), podA, podB))},
			want: verdicts{
				stale: [][2]string{{"192.0.2.1:30053/udp", podC}},
				fresh: [][2]string{{"192.0.2.1:30053/udp", podA}, {"192.0.2.1:30053/udp", podB}},
			},
		}, {
			name:   "DP-50 also where no route of the row goes anywhere, and after a restart (PN-04)",
			before: nil,
			then:   []lb.Change{set(serving(dropping(row(vip, service, lb.Local)), podB))},
			want:   verdicts{stale: [][2]string{{vip, podA}}, fresh: [][2]string{{vip, podB}, {vip, "10.96.0.10:53"}}},
		}, {
			name:   "DP-50 when what drained beside others stops serving, its flows go",
			before: []lb.Change{set(serving(row(vip, service, lb.Cluster, podB), podA, podB))},
			then:   []lb.Change{set(row(vip, service, lb.Cluster, podB))},
			want:   verdicts{stale: [][2]string{{vip, podA}}, fresh: [][2]string{{vip, podB}}},
		}, {
			name:   "DP-50 and so where others go on draining",
			before: []lb.Change{set(serving(row(vip, service, lb.Cluster, podB), podA, podB, podC))},
			then:   []lb.Change{set(serving(row(vip, service, lb.Cluster, podB), podB, podC))},
			want:   verdicts{stale: [][2]string{{vip, podA}}, fresh: [][2]string{{vip, podB}, {vip, podC}}},
		}, {
			name:   "DP-51 a local backend comes where all was dropped though others served",
			before: []lb.Change{set(serving(dropping(row(vip, service, lb.Local)), podB))},
			then:   []lb.Change{set(serving(row(vip, service, lb.Local, podA), podA, podB))},
			want: verdicts{stale: [][2]string{{vip, "10.96.0.10:53"}, {vip, podC}},
				fresh: [][2]string{{vip, podA}, {vip, podB}}},
		}, {
			name: "when a backend leaves, flows to it go from all rows of the service port",
			before: []lb.Change{set(row(vip, service, lb.Cluster, podA, podB)),
				set(serving(row(nodePort, service, lb.Local, podA), podA, podB))},
			then: []lb.Change{set(row(vip, service, lb.Cluster, podA)), set(row(nodePort, service, lb.Local, podA))},
			want: verdicts{stale: [][2]string{{"192.0.2.1:30053/udp", podB}, {vip, podB}},
				fresh: [][2]string{{"192.0.2.1:30053/udp", podA}}},
		}, {
			name: "PN-04 a key that the plane removed from the kernel, without a frontend here",
			then: []lb.Change{remove(vip), remove(nodePort)},
			want: verdicts{
				stale: [][2]string{{vip, podA}, {"192.0.2.1:30053/udp", podA}},
				fresh: [][2]string{{"10.96.0.11:53/udp", podA}, {"192.0.2.99:30053/udp", podA}},
			},
		}, {
			name: "the key goes over to another service",
			before: []lb.Change{set(row(vip, service, lb.Cluster, podA)),
				set(row(nodePort, service, lb.Cluster, podA))},
			then: []lb.Change{set(row(vip, "other/dns:dns", lb.Cluster, podB))},
			want: verdicts{stale: [][2]string{{vip, podA}},
				fresh: [][2]string{{vip, podB}, {"192.0.2.1:30053/udp", podA}}},
		}, {
			name: "and to one with the same backends: what only the first service could reach is lost",
			before: []lb.Change{set(row(vip, service, lb.Cluster, podA, podB)),
				set(serving(row(nodePort, service, lb.Local, podA), podA, podB))},
			then: []lb.Change{set(row(nodePort, "other/dns:dns", lb.Local, podA))},
			want: verdicts{stale: [][2]string{{"192.0.2.1:30053/udp", podB}},
				fresh: [][2]string{{"192.0.2.1:30053/udp", podA}}},
		}, {
			name:   "a host-network backend on the NodePort itself answers with the address that was asked",
			before: []lb.Change{set(row(nodePort, service, lb.Cluster, podA))},
			then:   []lb.Change{set(row(nodePort, service, lb.Cluster, "192.0.2.1:30053"))},
			want: verdicts{stale: [][2]string{{"192.0.2.1:30053/udp", podA}},
				fresh: [][2]string{{"192.0.2.1:30053/udp", "192.0.2.1:30053"}}},
		}, {
			name:   "DP-54 PN-09 SCTP",
			before: []lb.Change{set(row("10.96.0.10:53/sctp", service, lb.Cluster, podA, podB))},
			then:   []lb.Change{set(row("10.96.0.10:53/sctp", service, lb.Cluster, podB))},
			want: verdicts{stale: [][2]string{{"10.96.0.10:53/sctp", podA}},
				fresh: [][2]string{{vip, podA}, {"10.96.0.10:53/sctp", podB}}},
		}, {
			name: "IPv6",
			before: []lb.Change{set(row("[2001:db8::10]:53/udp", service, lb.Cluster, "[2001:db8:1::1]:53",
				"[2001:db8:1::2]:53"))},
			then: []lb.Change{set(row("[2001:db8::10]:53/udp", service, lb.Cluster, "[2001:db8:1::2]:53"))},
			want: verdicts{
				stale: [][2]string{{"[2001:db8::10]:53/udp", "[2001:db8:1::1]:53"}},
				fresh: [][2]string{{"[2001:db8::10]:53/udp", "[2001:db8:1::2]:53"}},
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newIndex(nil)
			locals := map[netip.Addr]struct{}{netip.MustParseAddr("192.0.2.1"): {},
				netip.MustParseAddr("127.0.0.1"): {}}
			for _, change := range c.before {
				x.apply(change)
			}
			x.take(flows, locals)
			for _, change := range slices.Concat(c.then, c.then) { // twice is as good as once
				x.apply(change)
			}
			p := x.take(flows, locals)
			check := func(list [][2]string, want bool) {
				for _, f := range list {
					k := row(f[0], "", 0).Key
					if _, got := p.stale(flow{k.Proto, netip.AddrPortFrom(k.Addr, k.Port),
						netip.MustParseAddrPort(f[1]), false}); got != want {
						t.Errorf("flow to %s answered by %s: stale is %v", f[0], f[1], got)
					}
				}
			}
			check(c.want.stale, true)
			check(c.want.fresh, false)
		})
	}
}

// TN-81: claiming an external IP, and dropping it, has no effect on flows that no frontend
// redirected and another server answers. TN-82: of TCP, attempts to connect that have no answer and
// no translation are deleted when a frontend begins to balance, and nothing else ever (DP-53).
func TestUntranslated(t *testing.T) {
	const web, nodePort = "198.51.100.7:80/tcp", "nodeport:30080/tcp"
	to := func(key, from string, replied bool) flow {
		k := row(key, "", 0).Key
		return flow{k.Proto, netip.AddrPortFrom(k.Addr, k.Port), netip.MustParseAddrPort(from), replied}
	}
	local := netip.MustParseAddr("192.0.2.1")
	for _, c := range []struct {
		name         string
		before, then lb.Change
		flow         flow
		want         bool
	}{
		{"UDP, claimed, answered by its owner", remove("10.0.0.9:1/udp"), set(row(vip, service, lb.Cluster, podA)),
			to(vip, "10.96.0.10:53", true), false},
		{"UDP, claimed, without an answer", remove("10.0.0.9:1/udp"), set(row(vip, service, lb.Cluster, podA)),
			to(vip, "10.96.0.10:53", false), true},
		{"UDP, dropped, answered by its owner", set(row(vip, service, lb.Cluster, podA)), remove(vip),
			to(vip, "10.96.0.10:53", true), false},
		{"UDP, dropped, without an answer", set(row(vip, service, lb.Cluster, podA)), remove(vip),
			to(vip, "10.96.0.10:53", false), false},
		{"UDP, dropped, led to a backend", set(row(vip, service, lb.Cluster, podA)), remove(vip), to(vip, podA, true),
			true},
		{"TCP, new", remove(web), set(row(web, service, lb.Cluster, podA)), to(web, "198.51.100.7:80", false), true},
		{"TCP, new, answered by its owner", remove(web), set(row(web, service, lb.Cluster, podA)),
			to(web, "198.51.100.7:80", true), false},
		{"TCP, new, translated", remove(web), set(row(web, service, lb.Cluster, podA)), to(web, podB, false), false},
		{"TCP, new, another port", remove(web), set(row(web, service, lb.Cluster, podA)),
			to("198.51.100.7:81/tcp", "198.51.100.7:81", false), false},
		{"TCP, first endpoint", set(row(web, service, lb.Cluster)), lb.Change{Key: row(web, "", 0).Key,
			Old: row(web, service, lb.Cluster), New: row(web, service, lb.Cluster, podA)},
			to(web, "198.51.100.7:80", false), true},
		{"TCP, another endpoint", set(row(web, service, lb.Cluster, podA)), lb.Change{Key: row(web, "", 0).Key,
			Old: row(web, service, lb.Cluster, podA), New: row(web, service, lb.Cluster, podB)},
			to(web, "198.51.100.7:80", false), false},
		{"TCP, deleted", set(row(web, service, lb.Cluster, podA)), remove(web), to(web, "198.51.100.7:80", false),
			false},
		{"TCP, NodePort", remove(nodePort), set(row(nodePort, service, lb.Cluster, podA)),
			to("192.0.2.1:30080/tcp", "192.0.2.1:30080", false), true},
		{"TCP, NodePort, elsewhere", remove(nodePort), set(row(nodePort, service, lb.Cluster, podA)),
			to("192.0.2.99:30080/tcp", "192.0.2.99:30080", false), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newIndex(nil)
			x.apply(c.before)
			x.take(workOf(c.before.Key.Proto), map[netip.Addr]struct{}{local: {}})
			x.apply(c.then)
			p := x.take(workOf(c.then.Key.Proto), map[netip.Addr]struct{}{local: {}})
			if _, got := p.stale(c.flow); got != c.want {
				t.Errorf("stale is %v", got)
			}
			if len(x.begun) != 0 {
				t.Errorf("after the pass %d TCP frontends are still remembered", len(x.begun))
			}
		})
	}
}

// A TCP key that failed in a pass is retried, except if its frontend was deleted meanwhile.
func TestRetryTCP(t *testing.T) {
	const web = "198.51.100.7:80/tcp"
	x := newIndex(nil)
	x.apply(set(row(web, service, lb.Cluster, podA)))
	p := x.take(attempts, nil)
	x.retry(row(web, "", 0).Key, p)
	p = x.take(attempts, nil)
	if len(p.keys) != 1 {
		t.Errorf("%d keys in the second plan, want 1", len(p.keys))
	}
	x.retry(row(web, "", 0).Key, p)
	x.apply(remove(web))
	p = x.take(attempts, nil)
	if len(p.keys) != 0 {
		t.Errorf("%d keys after the frontend went", len(p.keys))
	}
}

// The pass looks for a NodePort's flows on the addresses that answer NodePorts, and once on those
// that answered until now.
func TestStaleAtNodeAddresses(t *testing.T) {
	const nodePort, at1, at2, at3 = "nodeport:30053/udp", "192.0.2.1:30053/udp", "192.0.2.2:30053/udp",
		"192.0.2.3:30053/udp"
	locals := map[netip.Addr]struct{}{}
	for _, a := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"} {
		locals[netip.MustParseAddr(a)] = struct{}{}
	}
	only := func(addrs ...string) (ps []netip.Prefix) {
		for _, a := range addrs {
			ps = append(ps, netip.MustParsePrefix(a+"/32"))
		}
		return ps
	}
	x := newIndex(nil)
	for _, step := range []struct {
		what  string
		at    []netip.Prefix
		then  []lb.Change
		known bool // the addresses of the machine are
		want  verdicts
	}{
		{"before the addresses are known", everywhere, []lb.Change{set(row(nodePort, service, lb.Cluster, podA))}, true,
			verdicts{stale: [][2]string{{at1, podB}, {at2, podB}, {at3, podB}}, fresh: [][2]string{{at1, podA}}}},
		{"one address answers", only("192.0.2.1"), nil, true, // on the others, all translated flows were ours
			verdicts{stale: [][2]string{{at1, podB}, {at2, podA}, {at3, podA}},
				fresh: [][2]string{{at1, podA}, {at2, "192.0.2.2:30053"}}}},
		{"a backend leaves", only("192.0.2.1"), []lb.Change{set(row(nodePort, service, lb.Cluster, podB))}, true,
			verdicts{stale: [][2]string{{at1, podA}, {at1, podC}}, fresh: [][2]string{{at1, podB}, {at2, podA},
				{at2, podC}, {at3, podA}}}},
		{"another address answers, the machine's are not known", only("192.0.2.2"), nil, false, verdicts{}},
		{"nor was that of long", only("192.0.2.3"), nil, true,
			verdicts{stale: [][2]string{{at1, podB}, {at2, podB}, {at3, podC}, {at3, "192.0.2.3:30053"}},
				fresh: [][2]string{{at3, podB}, {at1, "192.0.2.1:30053"}}}},
		{"the NodePort goes", only("192.0.2.3"), []lb.Change{remove(nodePort)}, true,
			verdicts{stale: [][2]string{{at3, podB}}, fresh: [][2]string{{at1, podB}, {at2, podB},
				{at3, "192.0.2.3:30053"}}}},
		{"no NodePort, no matter", only("192.0.2.1"), nil, true,
			verdicts{fresh: [][2]string{{at1, podB}, {at3, podB}}}},
		{"no address answers", nil, []lb.Change{set(row(nodePort, service, lb.Cluster, podB))}, true,
			verdicts{fresh: [][2]string{{at1, podA}, {at2, podA}, {at3, podA}}}},
	} {
		x.answerAt(step.at)
		for _, c := range step.then {
			x.apply(c)
		}
		var known map[netip.Addr]struct{}
		if step.known {
			known = locals
		}
		p := x.take(flows, known)
		for want, list := range map[bool][][2]string{true: step.want.stale, false: step.want.fresh} {
			for _, f := range list {
				k := row(f[0], "", 0).Key
				if _, got := p.stale(flow{k.Proto, netip.AddrPortFrom(k.Addr, k.Port), netip.MustParseAddrPort(f[1]),
					false}); got != want {
					t.Errorf("%s: flow to %s answered by %s: stale is %v", step.what, f[0], f[1], got)
				}
			}
		}
	}
}

// A pass over the table is not worth it for changes that cannot leave a flow behind.
func TestUnsuspicious(t *testing.T) {
	affine, health := row(vip, service, lb.Cluster, podA), row("nodeport:32100/tcp", service, 0)
	affine.Affinity, health.Routes[0].Do = 1, lb.Accept
	for name, then := range map[string]lb.Change{
		"a backend comes to others": set(row(vip, service, lb.Cluster, podA, podB)),
		"the same row":              set(row(vip, service, lb.Cluster, podA)),
		"the scope of the set":      set(row(vip, service, lb.Local, podA)),
		"affinity":                  set(affine),
		"DP-50 it drains beside another that comes":   set(serving(row(vip, service, lb.Cluster, podB), podA, podB)),
		"DP-50 policy Local, without a local backend": set(serving(dropping(row(vip, service, lb.Local)), podA)),
		"one serves that no route may reach":          set(serving(row(vip, service, lb.Cluster, podA), podA, podB)),
		"TN-82 a TCP row without endpoints":           set(row("10.96.0.10:53/tcp", service, lb.Cluster)),
		"DP-53 a TCP row goes":                        remove("10.96.0.10:53/tcp"),
		"a health check, which translates nothing":    set(health),
	} {
		x := newIndex(nil)
		x.apply(set(row(vip, service, lb.Cluster, podA)))
		x.take(flows, nil)
		if x.apply(then) || len(x.suspect) > 0 {
			t.Errorf("%s: suspect are %v", name, x.suspect)
		}
	}
}

// Nor for another endpoint that serves beside those that did, though no route reaches them.
func TestMoreServes(t *testing.T) {
	for name, c := range map[string]struct {
		then    lb.Change
		suspect bool
	}{
		"the same":        {set(serving(row(vip, service, lb.Cluster, podA), podA, podB)), false},
		"one more serves": {set(serving(row(vip, service, lb.Cluster, podA), podA, podB, podC)), false},
		"one serves less": {set(serving(row(vip, service, lb.Cluster, podA), podA, podC)), true},
		"a protocol without ports": {lb.Change{Key: lb.Key{Addr: netip.MustParseAddr("10.96.0.10"), Proto: 1},
			New: row(vip, service, lb.Cluster, podA)}, false},
	} {
		x := newIndex(nil)
		x.apply(set(serving(row(vip, service, lb.Cluster, podA), podA, podB)))
		x.take(flows, nil)
		if got := x.apply(c.then); got != c.suspect || len(x.suspect) > 0 != c.suspect {
			t.Errorf("%s: suspect are %v", name, x.suspect)
		}
	}
}

// The index removes deleted frontends, and keys that failed in a pass stay suspect.
func TestIndexBounds(t *testing.T) {
	x := newIndex(nil)
	x.apply(set(row(vip, service, lb.Cluster, podA)))
	x.apply(set(row("nodeport:30053/udp", service, lb.Cluster, podA)))
	if p := x.take(flows, nil); len(p.keys) != 1 || len(x.suspect) != 1 {
		t.Errorf("without local addresses: %d keys in the plan, %d stay", len(p.keys), len(x.suspect))
	}
	x.apply(remove(vip))
	x.apply(remove("nodeport:30053/udp"))
	x.take(flows, map[netip.Addr]struct{}{})
	if len(x.rows)+len(x.suspect) != 0 {
		t.Errorf("after all went: rows %v, suspect %v", x.rows, x.suspect)
	}
}

// The cost of a change follows the change (design, rule 1).
func BenchmarkApplied(b *testing.B) {
	for _, size := range []struct {
		name string
		n    int
	}{{"100", 100}, {"10k", 10_000}, {"100k", 100_000}} {
		b.Run(size.name, func(b *testing.B) {
			x := newIndex(nil)
			for i := range size.n {
				k := lb.Key{Addr: netip.AddrFrom4([4]byte{10, 96 + byte(i>>16), byte(i >> 8), byte(i)}), Port: 53,
					Proto: lb.UDP}
				f := row(vip, service, lb.Cluster, podA, podB)
				f.Key, f.Service = k, k.String()
				x.apply(set(f))
			}
			x.take(flows, map[netip.Addr]struct{}{})
			two, one := row(vip, service, lb.Cluster, podA, podB), row(vip, service, lb.Cluster, podB)
			b.ReportAllocs()
			for b.Loop() {
				x.apply(set(two))
				x.apply(set(one))
				x.take(flows, map[netip.Addr]struct{}{})
			}
		})
	}
}

// If flows end at a proxy of this machine, added and deleted endpoints make no flow stale; else an
// answer in transit would be lost. A frontend that is deleted, or moves to another Service, does:
// its flows would miss the socket of the next one (DP-50, DP-51).
func TestProxied(t *testing.T) {
	var listens uint16 // the proxy's port for the frontend, if it has one
	x := newIndex(func(k lb.Key, from netip.AddrPort) bool { return k.String() == vip && from.Port() == listens })
	key, err := tables.Key(vip)
	if err != nil {
		t.Fatal(err)
	}
	proxy := netip.MustParseAddrPort("172.18.0.2:40001")
	f := flow{proto: lb.UDP, to: netip.AddrPortFrom(key.Addr, key.Port), from: proxy}
	var p *plan
	stale := func() bool {
		p = x.take(flows, map[netip.Addr]struct{}{})
		_, is := p.stale(f)
		return is
	}
	if !x.apply(set(row(vip, service, lb.Cluster, podA, podB))) || !stale() {
		t.Error("a flow from before the row is kept, which misses the proxy's socket")
	}
	listens = proxy.Port()
	x.retry(key, p)
	if stale() {
		t.Error("a flow to the socket that the proxy has is forgotten, and with it the answer that is under way")
	}
	x.apply(set(row(vip, service, lb.Cluster, podA, proxy.String())))
	x.retry(key, p)
	if !stale() {
		t.Error("a flow to an endpoint, past the proxy, is kept")
	}
	listens = 0
	for _, quiet := range []*lb.Frontend{
		row(vip, service, lb.Cluster, podB), row(vip, service, lb.Cluster, podC), row(vip, service, lb.Local, podC),
		row(vip, service, 0),
	} {
		if x.apply(set(quiet)) {
			t.Errorf("a flow to the proxy is suspect because of\n%s", quiet)
		}
	}
	for _, c := range []struct {
		name   string
		change lb.Change
	}{
		{"leads somewhere again", set(row(vip, service, lb.Cluster, podA))},
		{"is another Service's", set(row(vip, "dns/other:dns", lb.Cluster, podA))},
		{"is gone", remove(vip)},
	} {
		if !x.apply(c.change) || !stale() {
			t.Errorf("a row that %s leaves its flows", c.name)
		}
	}
}
