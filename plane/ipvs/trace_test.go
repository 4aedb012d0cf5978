//go:build linux

package ipvs

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/nodetrace"
	"kube-proxy/test/golden"
	"kube-proxy/test/ipvsfake"
	"kube-proxy/test/planetest"
	"kube-proxy/trace"
)

func (k *lab) Has(_ context.Context, name string, m ipset.Member) (bool, error) {
	s := k.sets[name]
	if s == nil {
		return false, fmt.Errorf("ipset %s: %w", name, ipset.ErrNoSet)
	}
	if _, has := s.members[m.Key()]; has || s.Type != ipset.HashIPPortNet {
		return has, nil
	}
	for is := range s.members {
		if net := is.Net; net.Contains(m.Net.Addr()) {
			is.Net = m.Net
			if is == m.Key() {
				return true, nil
			}
		}
	}
	return false, nil
}

// view returns the View of a lab. Its chains are those that the plane would write, as changed by
// spoil.
func (k *lab) view(f lb.Family) (*View, error) {
	conn, err := ipvs.New(context.Background(), k.ipvs.Connect())
	if err != nil {
		return nil, err
	}
	rules := k.rules[f]
	return &View{IPVS: conn, Sets: k, Device: k.devs[f], Close: conn.Close,
		Held: func(context.Context) (jumps, held []xtables.ChainRule, err error) {
			jumps = chainJumps()
			all := chainRules(nodeFacts{family: f, masq: 1 << 14, node: rules.node, fullyRandom: true})
			for _, at := range slices.SortedFunc(maps.Keys(all), compareChains) {
				for _, r := range all[at] {
					held = append(held, xtables.ChainRule{Table: at[0], Chain: at[1], Rule: r})
				}
			}
			if rules.spoil != nil {
				jumps, held = slices.DeleteFunc(jumps, rules.spoil), slices.DeleteFunc(held, rules.spoil)
			}
			return jumps, held, nil
		},
		Here: func(_ context.Context, a netip.Addr) (bool, error) {
			return k.devs[f].addrs[a] || slices.Contains(k.others, a), nil
		},
		Stays: func(_ context.Context, _ ipvs.ServiceID, client netip.Addr) (netip.AddrPort, error) {
			return k.stays[client], nil
		},
	}, nil
}

func asked() trace.Mode { return Mode().Trace(mode.Settings{}) }

// inspectTable has frontends of all kinds: a route for each origin, source ranges, affinity, no
// endpoints, health checks.
func inspectTable(w planetest.World) *lb.Table {
	table := w.Table(10, 3)
	table.Family = w.Family
	for i := range 8 {
		table.Replace(w.Full(100+i, 100*(i%3), i%4, i%3, time.Duration(i%2)*time.Hour))
	}
	o, fronts := w.Full(120, 100, 3, 2, 0)
	for _, f := range fronts {
		f.Routes = []lb.Route{{From: lb.Anywhere, Do: lb.Reject}}
	}
	table.Replace(o, append(fronts, &lb.Frontend{Key: lb.Key{Port: 20000, Proto: lb.TCP}, Service: o.Name,
		Kind: lb.HealthCheck, Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Accept}}}))
	return table
}

// newTraced returns a lab with a plane that holds the table.
func newTraced(t *testing.T, f lb.Family) (*lab, *Plane, *lb.Table, planetest.World) {
	k, w := newLab(t), planetest.World{Family: f}
	table := inspectTable(w)
	return k, k.start(t, f, table), table, w
}

// follow returns what Compare finds for the packets, up to a finding that contains a text, and
// reports whether there is one.
func follow(t *testing.T, p *Plane, table *lb.Table, packets []trace.Packet, text string) (findings []string,
	met bool) {
	t.Helper()
	for _, packet := range packets {
		want := trace.Ask(table, asked(), packet)
		got, err := p.TracePacket(t.Context(), packet, nodetrace.Kernel)
		must(t, err)
		if found := trace.Compare(want, got); found != nil {
			finding := fmt.Sprintf("%+v: %s\nkernel: %s %v masquerade %t\n%s", packet, strings.Join(found, " "),
				got.Verdict, got.Backends, got.Masquerade, strings.Join(got.Way, "\n"))
			findings = append(findings, finding)
			if strings.Contains(finding, text) {
				return findings, true
			}
		}
	}
	return findings, false
}

// spoiler changes the state: IPVS on a separate connection, and the rest by name.
type spoiler struct {
	*testing.T
	planetest.World
	ipvs   *ipvs.Conn
	member func(set string, m ipset.Member, there bool)
	addr   func(netip.Addr) // removes it
	rules  func(spoil func(xtables.ChainRule) bool)
	set    func(name string) // destroys it; nil if impossible
}

func (s *spoiler) do(verb ipvs.Verb, service ipvs.Service, d ipvs.Destination) {
	s.Helper()
	must(s, s.ipvs.Do(s.Context(), []ipvs.Op{{Verb: verb, Service: service, Destination: d}}, nil))
}

// vip returns the virtual server of the first Service, and its real servers.
func (s *spoiler) vip() (ipvs.Service, []ipvs.Destination) {
	s.Helper()
	is, err := s.ipvs.Service(s.Context(), ipvs.ByAddr(netip.AddrPortFrom(s.Addr(10, 1), 80), uint8(lb.TCP)))
	must(s, err)
	var real []ipvs.Destination
	all, err := s.ipvs.Destinations(s.Context(), is.ServiceID)
	must(s, err)
	for _, d := range all {
		real = append(real, d.Destination)
	}
	slices.SortFunc(real, func(a, b ipvs.Destination) int { return a.Addr.Compare(b.Addr) })
	return is.Service, real
}

type sabotage struct {
	name   string
	do     func(*spoiler)
	object string // of a difference; ADDR stands for the first Service's address
	found  string // "" if packets notice nothing else
	// spares: the kernel prevents it.
	spares string
}

// named reports whether the differences include it, and little else.
func (c sabotage) named(w planetest.World, all []trace.Difference) bool {
	object := strings.ReplaceAll(c.object, "ADDR", w.Addr(10, 1).String())
	if w.Family == lb.IPv6 && strings.Contains(object, "ipset") {
		object = strings.Replace(object, "KUBE-", "KUBE-6-", 1)
	}
	return len(all) <= 3 && slices.ContainsFunc(all, func(d trace.Difference) bool {
		return strings.Contains(d.Object, object) && d.Desired != d.Actual
	})
}

// sabotages are changes that a program with the same rights may make, and the names that
// Differences, and Compare for some packet, report.
var sabotages = []sabotage{
	{"real server gone", func(s *spoiler) {
		v, real := s.vip()
		s.do(ipvs.DelDestination, v, real[0])
	}, "real server", "the kernel has it not", ""},
	{"real server without weight", func(s *spoiler) {
		v, real := s.vip()
		real[1].Weight = 0
		s.do(ipvs.SetDestination, v, real[1])
	}, "real server", "the kernel has it not", ""},
	{"other weight", func(s *spoiler) {
		v, real := s.vip()
		real[1].Weight = 3
		s.do(ipvs.SetDestination, v, real[1])
	}, "real server", "", ""}, // rr gives each the same share
	{"other weight, and a scheduler that goes by it", func(s *spoiler) {
		v, real := s.vip()
		real[1].Weight = 3
		v.Scheduler = "wrr"
		s.do(ipvs.SetService, v, ipvs.Destination{})
		s.do(ipvs.SetDestination, v, real[1])
	}, "virtual server", "gets", ""},
	{"another's real server", func(s *spoiler) {
		v, _ := s.vip()
		s.do(ipvs.NewDestination, v, ipvs.Destination{Addr: netip.AddrPortFrom(s.Addr(100, 99999), 99), Weight: 1})
	}, "real server", "the table has it not", ""},
	{"virtual server gone", func(s *spoiler) {
		v, _ := s.vip()
		s.do(ipvs.DelService, v, ipvs.Destination{})
	}, "virtual server", "it is to pass", ""},
	{"another's virtual server at an address of ours", func(s *spoiler) {
		v, real := s.vip()
		v.Addr = netip.AddrPortFrom(v.Addr.Addr(), 7080)
		s.do(ipvs.NewService, v, ipvs.Destination{})
		s.do(ipvs.NewDestination, v, real[0])
	}, "virtual server", "it is to balance", ""},
	{"address gone", func(s *spoiler) { s.addr(s.Addr(10, 1)) }, "address ADDR", "it is to drop", ""},
	{"member of the cluster IPs gone", func(s *spoiler) {
		s.member("CLUSTER-IP", ipset.Member{Addr: s.Addr(10, 1), Port: 80, Proto: uint8(lb.TCP)}, false)
	}, "member ADDR,tcp:80 of ipset", "it is to reject", ""},
	{"member of the addresses gone", func(s *spoiler) {
		s.member("IPVS-IPS", ipset.Member{Addr: s.Addr(10, 1)}, false)
	}, "member ADDR of ipset", "it is to pass", ""},
	{"member of the marks gone", func(s *spoiler) {
		s.member("MARK-HOST", ipset.Member{Addr: s.Addr(192, 1), Port: 30102, Proto: uint8(lb.TCP)}, false)
	}, "of ipset KUBE-MARK-HOST", "masqueraded", ""},
	{"another mark", func(s *spoiler) {
		s.member("MARK-ANY", ipset.Member{Addr: s.Addr(10, 1), Port: 80, Proto: uint8(lb.TCP),
			Mark: marks{1 << 14}.drop(), Mask: wholeMark}, true)
	}, "member ADDR,tcp:80 of ipset KUBE-MARK-ANY", "it is to drop", ""},
	{"source ranges without those they are for", func(s *spoiler) {
		s.member("LOAD-BALANCER-FW", ipset.Member{Addr: s.Addr(198, 102), Port: 80, Proto: uint8(lb.TCP)}, false)
	}, "of ipset KUBE-LOAD-BALANCER-FW", "drop, by the kernel's state it is to balance", ""},
	{"source ranges gone", func(s *spoiler) {
		s.rules(func(r xtables.ChainRule) bool { return r.Chain == chainRanges })
	}, "chain KUBE-SOURCE-RANGES-FIREWALL of table", "drop, by the kernel's state it is to balance", ""},
	{"chain of marks flushed", func(s *spoiler) {
		s.rules(func(r xtables.ChainRule) bool { return r.Chain == chainOrigin })
	}, "chain KUBE-IPVS-ORIGIN of table mangle", "not masqueraded", ""},
	{"masquerading flushed", func(s *spoiler) {
		s.rules(func(r xtables.ChainRule) bool { return r.Chain == chainPostrouting })
	}, "chain KUBE-POSTROUTING of table nat", "not masqueraded", ""},
	{"filter flushed", func(s *spoiler) {
		s.rules(func(r xtables.ChainRule) bool { return r.Chain == chainFilter })
	}, "chain KUBE-IPVS-FILTER of table filter", "reject, by the kernel's state it is to pass", ""},
	{"jump gone", func(s *spoiler) {
		s.rules(func(r xtables.ChainRule) bool { return r.Table == "mangle" && r.Chain == "INPUT" })
	}, "chain INPUT of table mangle", "not masqueraded", ""},
	{"set gone", func(s *spoiler) { s.set("MARK-POD") }, "ipset KUBE-MARK-POD", "masquerade",
		"a set that rules name stays"},
}

// Differences and Compare name each single change.
func TestSabotageIsNamed(t *testing.T) {
	for _, c := range sabotages {
		for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
			t.Run(c.name+" "+f.String(), func(t *testing.T) {
				k, p, table, w := newTraced(t, f)
				named := func(set string) string {
					if f == lb.IPv6 {
						return "KUBE-6-" + set
					}
					return "KUBE-" + set
				}
				c.do(&spoiler{T: t, World: w, ipvs: k.conn, member: func(set string, m ipset.Member, there bool) {
					is := k.sets[named(set)].members
					if _, was := is[m.Key()]; !was && !there {
						t.Fatalf("%s has no %s: %v", named(set), m, slices.Collect(maps.Keys(is)))
					}
					delete(is, m.Key())
					if there {
						is[m.Key()] = m
					}
				},
					addr:  func(a netip.Addr) { delete(k.devs[f].addrs, a) },
					rules: func(spoil func(xtables.ChainRule) bool) { k.rules[f].spoil = spoil },
					set:   func(set string) { delete(k.sets, named(set)) },
				})
				if all := planetest.Differences(t, p, table); !c.named(w, all) {
					t.Errorf("differences: %+v; want one of %q, and hardly more", all, c.object)
				}
				findings, met := follow(t, p, table, w.Packets(table, true), c.found)
				if met != (c.found != "") {
					t.Errorf("packets meet %q; want %q", findings, c.found)
				}
			})
		}
	}
}

// TracePacket reports the persistent backend of a client, if it has one. It reports that a real
// server drains and gets no new client. A draining server is no difference.
func TestFollowAffinityAndDraining(t *testing.T) {
	k, p, table, w := newTraced(t, lb.IPv4)
	// Of World.Full(101, …), which has affinity.
	id := ipvs.ByAddr(netip.AddrPortFrom(w.Addr(10, 102), 80), uint8(lb.TCP))
	row := table.Get(keyOf(id))
	if row == nil || row.Affinity == 0 {
		t.Fatalf("%s: %v", id, row)
	}
	client := w.Addr(100, 1<<20)
	real := row.Set(lb.Cluster).Backends.At(0).Addr
	packet := trace.Packet{From: netip.AddrPortFrom(client, 0), In: "veth1", To: id.Addr, Proto: lb.TCP}
	follow := func() trace.Kernel {
		t.Helper()
		got, err := p.TracePacket(t.Context(), packet, nodetrace.Kernel)
		must(t, err)
		return got
	}
	k.stays = map[netip.Addr]netip.AddrPort{client: real}
	if got := follow(); got.Affine.IsValid() { // no query without a template at a real server
		t.Errorf("affine %v without templates", got.Affine)
	}
	must(t, k.ipvs.SetConns(id, real, ipvsfake.Conns{Persistent: 1}))
	if got := follow(); got.Affine != real {
		t.Errorf("affine %v, want %v: %v", got.Affine, real, got.Way)
	}

	one := ipvs.ByAddr(netip.AddrPortFrom(w.Addr(10, 1), 80), uint8(lb.TCP))
	leaves := table.Get(keyOf(one)).Set(lb.Cluster).Backends.At(2).Addr
	must(t, k.ipvs.SetConns(one, leaves, ipvsfake.Conns{Active: 3}))
	changes, _ := table.Replace(w.ClusterIP(0, 0, 2))
	must(t, only(p.Apply(t.Context(), changes)))
	packet.To = one.Addr
	before := fmt.Sprint(k.ipvs, k.wrote)
	got := follow()
	if len(got.Backends) != 2 || !strings.Contains(strings.Join(got.Way, "\n"), leaves.String()+
		" -m -w 0: it drains, with 3 connections") {
		t.Errorf("backends %v by way of\n%s", got.Backends, strings.Join(got.Way, "\n"))
	}
	for _, d := range planetest.Differences(t, p, table) {
		t.Errorf("while it drains: %+v", d)
	}
	if after := fmt.Sprint(k.ipvs, k.wrote); after != before {
		t.Errorf("a trace changed something: %s", golden.Diff(before, after))
	}
	// The whole Service is removed, and its connections continue.
	changes, _ = table.Replace(lb.Owner{Name: "ns/svc-0"}, nil)
	must(t, only(p.Apply(t.Context(), changes)))
	for _, d := range planetest.Differences(t, p, table) {
		t.Errorf("while the virtual server drains: %+v", d)
	}
	if got := follow(); got.Verdict != trace.Drop {
		t.Errorf("a Service that is gone: %s, by way of\n%s", got.Verdict, strings.Join(got.Way, "\n"))
	}
}
