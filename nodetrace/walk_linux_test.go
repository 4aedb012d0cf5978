package nodetrace

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	rtnl "kube-proxy/internal/netlink/route"
	"kube-proxy/lb"
	"kube-proxy/nodetrace/internal/hooks"
	"kube-proxy/trace"
)

const up = unix.IFF_UP | unix.IFF_RUNNING

// world is a node with a pod at 10.1.1.1 and one at 10.1.1.2; everything else is behind eth0.
func world() facts {
	return facts{
		links: []rtnl.Link{
			{Index: 1, Name: "lo", Flags: up, MTU: 65536},
			{Index: 2, Name: "eth0", Flags: up, MTU: 1500},
			{Index: 3, Name: "pod1", Flags: up, MTU: 1500},
			{Index: 4, Name: "pod2", Flags: up, MTU: 1500},
		},
		route: func(q rtnl.Query) (rtnl.Route, error) {
			switch q.To.String() {
			case "10.1.1.1":
				return rtnl.Route{Type: unix.RTN_UNICAST, Out: 3}, nil
			case "10.1.1.2":
				return rtnl.Route{Type: unix.RTN_UNICAST, Out: 4}, nil
			case "192.0.2.1":
				return rtnl.Route{Type: unix.RTN_LOCAL, Out: 1}, nil
			}
			return rtnl.Route{Type: unix.RTN_UNICAST, Out: 2, Source: netip.MustParseAddr("192.0.2.1")}, nil
		},
		hops:      func(rtnl.Query) (int, error) { return 1, nil },
		pass:      func(_ hooks.Hook, p hooks.Packet) ([]hooks.Way, error) { return one(p), nil },
		sysctl:    func(path string) string { return map[string]string{"ipv4/ip_forward": "1"}[path] },
		conntrack: func() (uint64, uint64) { return 0, 0 },
		addresses: func() ([]rtnl.Address, error) { return nil, nil },
	}
}

func one(p hooks.Packet) []hooks.Way { return []hooks.Way{{Packet: p, Share: 1}} }

// balanced sends new packets to backends by equal shares.
func balanced(h hooks.Hook, p hooks.Packet, backends ...string) []hooks.Way {
	if h == hooks.Postrouting && p.Flow.Reply {
		p.From = p.Flow.Orig.To
	}
	if h != hooks.Prerouting || p.Flow.State != hooks.New {
		return one(p)
	}
	var all []hooks.Way
	for _, b := range backends {
		w := hooks.Way{Packet: p, Share: 1 / float64(len(backends)), Translated: true}
		w.To = netip.MustParseAddrPort(b)
		all = append(all, w)
	}
	return all
}

// TestWalk judges gathered facts (NT-01 to NT-06, NT-12 to NT-14, NT-18, NT-21).
func TestWalk(t *testing.T) {
	const far, near, service = "198.51.100.1:80", "10.1.1.2:80", "10.96.0.10:80"
	rule := func(chain string) *hooks.Rule {
		return &hooks.Rule{Table: "table inet x", Chain: chain, Number: 1, Text: "drop"}
	}
	full := func(path string) string { return map[bool]string{true: "7"}[strings.HasPrefix(path, "netfilter/")] }
	stopped := func(to, chain string, verdict trace.Verdict) func(*walk) {
		return func(w *walk) {
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				all := balanced(h, p, near, far)
				if h == hooks.Forward && p.To.String() == to {
					all[0].Verdict, all[0].By = verdict, rule(chain)
				}
				return all, nil
			}
		}
	}
	// translated passes new packets to a destination that the chain of another program gives them.
	translated := func(to, chain string) func(hooks.Hook, hooks.Packet) ([]hooks.Way, error) {
		return func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
			all := balanced(h, p, to)
			if all[0].Translated {
				all[0].TranslatedBy = rule(chain)
			}
			return all, nil
		}
	}
	// masqueraded passes new packets to the backend near with the node as their source.
	masqueraded := func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
		all := balanced(h, p, near)
		all[0].Masqueraded = h == hooks.Postrouting && p.Flow.State == hooks.New
		return all, nil
	}
	// refuses has kube-proxy reject the packet; after is what the error meets.
	refuses := func(after func(hooks.Hook, hooks.Packet) []hooks.Way) func(*walk) {
		return func(w *walk) {
			w.q.Table.Verdict = trace.Reject
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				if p.Flow.State == hooks.Related {
					return after(h, p), nil
				}
				all := one(p)
				if h == hooks.Prerouting {
					all[0].Verdict, all[0].By = trace.Reject, rule("KUBE-SERVICES")
				}
				return all, nil
			}
		}
	}
	// rerouted leads packets to the client through a router on eth0, if yes says so.
	type lookup = func(rtnl.Query) (rtnl.Route, error)
	rerouted := func(route lookup, yes func(rtnl.Query) bool) lookup {
		return func(q rtnl.Query) (rtnl.Route, error) {
			if q.To.String() == "10.1.1.1" && yes(q) {
				return rtnl.Route{Type: unix.RTN_UNICAST, Out: 2, Gateway: netip.MustParseAddr("192.0.2.254")}, nil
			}
			return route(q)
		}
	}
	refusing := func(route lookup, yes func(rtnl.Query) bool) lookup {
		return func(q rtnl.Query) (rtnl.Route, error) {
			if yes(q) {
				return rtnl.Route{Errno: unix.EACCES}, nil
			}
			return route(q)
		}
	}
	// routers has a policy rule of pod 1 lead to another router than other packets.
	routers := func(route lookup) lookup {
		return func(q rtnl.Query) (rtnl.Route, error) {
			r, err := route(q)
			if q.To.String() == "198.51.100.1" {
				r.Gateway = netip.MustParseAddr("192.0.2.254")
				if q.In == 3 {
					r.Gateway = netip.MustParseAddr("192.0.2.9")
				}
			}
			return r, err
		}
	}
	for _, c := range []struct {
		name  string
		edit  func(*walk)
		want  trace.NodeVerdict
		by    string
		share float64
		check func(trace.Node) bool
	}{
		{"nothing", func(*walk) {}, trace.Delivered, "", 0, func(n trace.Node) bool { return len(n.Steps) > 0 }},
		{"one backend of two", stopped(near, "cali-pod", trace.Drop),
			trace.Dropped, `table inet x, chain cali-pod, rule 1 "drop" (of Calico)`, 0.5, func(n trace.Node) bool {
				reached := []netip.AddrPort{netip.MustParseAddrPort(near)}
				return !n.Own && slices.Equal(n.Backends, reached) && n.Harmful()
			}},
		{"kube-proxy rejects, as the table says", func(w *walk) {
			w.q.Table.Verdict = trace.Reject
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				if h != hooks.Forward {
					return one(p), nil
				}
				return []hooks.Way{{Packet: p, Share: 1, Verdict: trace.Reject, By: rule("KUBE-SERVICES")}}, nil
			}
		}, trace.Rejected, "table inet x", 1,
			func(n trace.Node) bool { return n.Own && !n.Harmful() && n.Lead() == "" }},
		{"kube-proxy rejects, and the table says otherwise", stopped(near, "KUBE-SERVICES", trace.Reject),
			trace.Rejected, "table inet x", 0.5, func(n trace.Node) bool { return !n.Own && n.Harmful() }},
		{"a doubt", func(w *walk) {
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				all := balanced(h, p, near)
				all[0].NotEvaluated = []hooks.Rule{*rule("c")}
				return all, nil
			}
		}, trace.Undecided, "", 0, func(n trace.Node) bool { return len(n.NotEvaluated) == 1 && !n.Harmful() }},
		{"kube-proxy rejects, and the error is dropped", func(w *walk) {
			w.q.Table.Verdict = trace.Reject
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				all := one(p)
				switch h {
				case hooks.Forward:
					all[0].Verdict, all[0].By = trace.Reject, rule("KUBE-SERVICES")
				case hooks.Output:
					all[0].Verdict, all[0].By = trace.Drop, rule("silence")
				}
				return all, nil
			}
		}, trace.Dropped, "table inet x", 1, func(n trace.Node) bool {
			return strings.Contains(strings.Join(n.Warnings, ""), "chain silence")
		}},
		{"kube-proxy rejects a packet of the node, and the error is dropped", func(w *walk) {
			w.q.Table.Verdict, w.q.Packet.Host = trace.Reject, true
			w.q.Packet.From = netip.MustParseAddrPort("192.0.2.1:1")
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				all := one(p)
				switch {
				case h == hooks.Output && p.Flow.State == hooks.New:
					all[0].Verdict, all[0].By = trace.Reject, rule("KUBE-SERVICES")
				case h == hooks.Input && p.In == "lo":
					all[0].Verdict, all[0].By = trace.Drop, rule("silence")
				}
				return all, nil
			}
		}, trace.Dropped, "table inet x", 1, nil},
		{"kube-proxy rejects, and some errors are dropped", refuses(func(h hooks.Hook, p hooks.Packet) []hooks.Way {
			all := one(p)
			if h == hooks.Output {
				all = append(all, all[0])
				all[0].Share, all[1].Share = 0.5, 0.5
				all[0].Verdict, all[0].By = trace.Drop, rule("half")
			}
			return all
		}), trace.Undecided, "", 0, nil},
		{"kube-proxy rejects, and a rule about the error is not evaluated", refuses(
			func(h hooks.Hook, p hooks.Packet) []hooks.Way {
				all := one(p)
				if h == hooks.Postrouting {
					all[0].NotEvaluated = []hooks.Rule{*rule("length")}
				}
				return all
			}), trace.Undecided, "", 0, nil},
		{"kube-proxy rejects, and the error is network control", refuses(
			func(h hooks.Hook, p hooks.Packet) []hooks.Way {
				all := one(p)
				if h == hooks.Postrouting && p.TOS == 0xc0 {
					all[0].Verdict, all[0].By = trace.Drop, rule("tos")
				}
				return all
			}), trace.Dropped, "table inet x", 1, nil},
		{"kube-proxy rejects, and IPsec blocks the error", func(w *walk) {
			refuses(func(_ hooks.Hook, p hooks.Packet) []hooks.Way { return one(p) })(w)
			w.ipsec.blocks[xfrmOut] = true
		}, trace.Dropped, "table inet x", 1, nil},
		{"kube-proxy rejects, and IPsec takes the error", func(w *walk) {
			refuses(func(_ hooks.Hook, p hooks.Packet) []hooks.Way { return one(p) })(w)
			w.ipsec.policies = []policy{{direction: xfrmOut, transform: true,
				from: netip.MustParsePrefix("0.0.0.0/0"), to: netip.MustParsePrefix("10.1.1.1/32")}}
		}, trace.Undecided, "", 0, nil},
		{"kube-proxy rejects, and users decide about the error", func(w *walk) {
			refuses(func(_ hooks.Hook, p hooks.Packet) []hooks.Way { return one(p) })(w)
			w.rules = []rtnl.Rule{{Priority: 50, Users: true}}
		}, trace.Undecided, "", 0, nil},
		{"kube-proxy rejects, and the client's interface is down", func(w *walk) {
			refuses(func(_ hooks.Hook, p hooks.Packet) []hooks.Way { return one(p) })(w)
			w.q.ClientHere = true
			w.route = rerouted(w.route, func(rtnl.Query) bool { return true })
		}, trace.Undecided, "", 0, nil},
		{"kube-proxy rejects, and the error takes another way", func(w *walk) {
			refuses(func(_ hooks.Hook, p hooks.Packet) []hooks.Way { return one(p) })(w)
			w.neighbours = []rtnl.Neighbour{{Link: 3, Addr: w.q.Packet.From.Addr(), State: unix.NUD_REACHABLE}}
			w.route = rerouted(w.route, func(rtnl.Query) bool { return true })
		}, trace.Undecided, "", 0, nil},
		{"kube-proxy rejects, and a port of the client's bridge is down", func(w *walk) {
			refuses(func(_ hooks.Hook, p hooks.Packet) []hooks.Way { return one(p) })(w)
			w.links[2].Kind = "bridge"
			w.links = append(w.links, rtnl.Link{Index: 5, Name: "vethpod1", Master: 3})
			w.ports = []rtnl.Port{{Link: 5}}
		}, trace.Undecided, "", 0, nil},
		{"the reply leaves through another router than that of the client", func(w *walk) {
			client := netip.MustParseAddr("203.0.113.1")
			w.q.Packet.From = netip.AddrPortFrom(client, 1)
			w.q.Table.Masquerade = true
			w.links = append(w.links, rtnl.Link{Index: 5, Name: "eth1", Flags: up, MTU: 1500})
			route := w.route
			w.route = func(q rtnl.Query) (rtnl.Route, error) {
				if q.To == client && q.From.IsValid() {
					return rtnl.Route{Type: unix.RTN_UNICAST, Out: 5, Gateway: netip.MustParseAddr("198.18.0.1")}, nil
				} else if q.To == client {
					return rtnl.Route{Type: unix.RTN_UNICAST, Out: 2, Gateway: netip.MustParseAddr("192.0.2.254")}, nil
				}
				return route(q)
			}
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) { return balanced(h, p, near), nil }
		}, trace.Undecided, "", 0, nil},
		{"a program fails connect()", func(w *walk) {
			w.q.Table.Verdict = trace.Reject
			w.q.Kernel = &trace.Kernel{Connected: true, Verdict: trace.Reject}
			w.pass = func(hooks.Hook, hooks.Packet) ([]hooks.Way, error) {
				return nil, errors.New("a packet that is not sent")
			}
		}, trace.Rejected, "connect() fails", 1, func(n trace.Node) bool { return n.Own && !n.Harmful() }},
		{"a program perhaps connects the socket, and a rule drops the packet", func(w *walk) {
			stopped(near, "policy", trace.Drop)(w)
			w.q.Kernel = &trace.Kernel{Perhaps: true, Verdict: trace.Balance}
		}, trace.Undecided, "", 0, nil},
		{"a program perhaps connects the socket", func(w *walk) {
			w.q.Kernel = &trace.Kernel{Perhaps: true, Verdict: trace.Balance}
		}, trace.Delivered, "", 0, nil},
		{"a socket is connected past the node, by the bridge", func(w *walk) {
			w.links[2].Kind = "bridge"
			w.route = func(q rtnl.Query) (rtnl.Route, error) { return rtnl.Route{Type: unix.RTN_UNICAST, Out: 3}, nil }
			w.q.Kernel = &trace.Kernel{Connected: true, Verdict: trace.Balance,
				Backends: []trace.Backend{{Address: netip.MustParseAddrPort(near), Share: 1}}}
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				all := one(p)
				if h == hooks.Forward {
					all[0].Verdict, all[0].By = trace.Drop, rule("policy")
				}
				return all, nil
			}
		}, trace.Undecided, "", 0, nil},
		{"a socket is connected past the node, which has no route", func(w *walk) {
			w.links[2].Kind = "bridge"
			w.q.OnNode = func(netip.AddrPort) bool { return true }
			route := w.route
			w.route = func(q rtnl.Query) (rtnl.Route, error) {
				if q.To.String() == "10.1.1.2" {
					return rtnl.Route{Errno: unix.EHOSTUNREACH}, nil
				}
				return route(q)
			}
			w.q.Kernel = &trace.Kernel{Connected: true, Verdict: trace.Balance,
				Backends: []trace.Backend{{Address: netip.MustParseAddrPort(near), Share: 1}}}
			w.pass = func(_ hooks.Hook, p hooks.Packet) ([]hooks.Way, error) { return one(p), nil }
		}, trace.Undecided, "", 0, nil},
		{"a socket is connected past the node, whose first rule drops the packet", func(w *walk) {
			w.links[2].Kind = "bridge"
			w.route = func(q rtnl.Query) (rtnl.Route, error) { return rtnl.Route{Type: unix.RTN_UNICAST, Out: 3}, nil }
			w.q.Kernel = &trace.Kernel{Connected: true, Verdict: trace.Balance,
				Backends: []trace.Backend{{Address: netip.MustParseAddrPort(near), Share: 1}}}
			w.pass = func(_ hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				return []hooks.Way{{Packet: p, Share: 1, Verdict: trace.Drop, By: rule("raw")}}, nil
			}
		}, trace.Undecided, "", 0, nil},
		{"a socket is connected through the node or past it, alike", func(w *walk) {
			w.links[2].Kind = "bridge"
			w.route = func(q rtnl.Query) (rtnl.Route, error) { return rtnl.Route{Type: unix.RTN_UNICAST, Out: 3}, nil }
			w.q.Kernel = &trace.Kernel{Connected: true, Verdict: trace.Balance,
				Backends: []trace.Backend{{Address: netip.MustParseAddrPort(near), Share: 1}}}
			w.pass = func(_ hooks.Hook, p hooks.Packet) ([]hooks.Way, error) { return one(p), nil }
		}, trace.Delivered, "", 0, nil},
		{"the reply takes another way", func(w *walk) {
			w.route = rerouted(w.route, func(q rtnl.Query) bool { return q.In == 4 })
		}, trace.Undecided, "", 0, nil},
		{"a reply between ports of a bridge is dropped", func(w *walk) {
			w.links[2].Kind, w.links[3].Kind = "bridge", "bridge"
			w.route = func(q rtnl.Query) (rtnl.Route, error) { return rtnl.Route{Type: unix.RTN_UNICAST, Out: 3}, nil }
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				all := balanced(h, p, near)
				if h == hooks.Forward && p.Flow.Reply {
					all[0].Verdict, all[0].By = trace.Drop, rule("replies")
				}
				return all, nil
			}
		}, trace.Undecided, "", 0, nil},
		{"a port of the bridge is down", func(w *walk) {
			w.links[3].Kind = "bridge"
			w.links = append(w.links, rtnl.Link{Index: 5, Name: "vethpod2", Master: 4})
			w.ports = []rtnl.Port{{Link: 5}}
		}, trace.Undecided, "", 0, nil},
		{"another program translates", func(w *walk) {
			w.pass = translated("10.1.1.2:9999", "DOCKER")
		}, trace.Translated, "chain DOCKER", 1, func(n trace.Node) bool {
			return n.Harmful() &&
				strings.HasPrefix(n.Lead(), "TRANSLATED on this node, not by kube-proxy: table inet x")
		}},
		{"another program redirects", func(w *walk) {
			w.addresses = func() ([]rtnl.Address, error) {
				return []rtnl.Address{{Index: 3, Addr: netip.MustParseAddr("192.0.2.1"), Bits: 32}}, nil
			}
			w.pass = translated("0.0.0.0:9999", "proxy")
		}, trace.Translated, "chain proxy, rule 1 \"drop\": to 192.0.2.1:9999", 1, nil},
		{"another program redirects, in a mode that ends connections", func(w *walk) {
			w.q.Mode.Terminates = true
			w.pass = translated("192.0.2.1:9999", "proxy")
		}, trace.Translated, "to 192.0.2.1:9999", 1, nil},
		{"another program redirects from an interface without address", func(w *walk) {
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				return balanced(h, p, "0.0.0.0:9999"), nil
			}
		}, trace.Dropped, "interface pod1, which has no address", 1, nil},
		{"the pod is perhaps on no bridge", func(w *walk) {
			w.links[3].Kind = "bridge"
			w.links = append(w.links, rtnl.Link{Index: 5, Name: "vethpod2", Kind: "veth", Flags: up})
		}, trace.Undecided, "", 0, nil},
		{"the pod is perhaps on another bridge", func(w *walk) {
			w.links[3].Kind = "bridge"
			w.links = append(w.links, rtnl.Link{Index: 5, Name: "vethpod2", Kind: "veth", Flags: up, Master: 6},
				rtnl.Link{Index: 6, Name: "other", Kind: "bridge", Flags: up})
		}, trace.Undecided, "", 0, nil},
		{"the proxy's reply leaves through a router, though the client is a neighbour", func(w *walk) {
			w.q.Mode.Terminates = true
			w.q.Packet.To = netip.MustParseAddrPort("192.0.2.1:80")
			w.pass = func(_ hooks.Hook, p hooks.Packet) ([]hooks.Way, error) { return one(p), nil }
			w.neighbours = []rtnl.Neighbour{{Link: 3, Addr: w.q.Packet.From.Addr(), State: unix.NUD_REACHABLE}}
			w.route = rerouted(w.route, func(rtnl.Query) bool { return true })
		}, trace.Undecided, "", 0, nil},
		{"the backend is behind another uplink than the client", func(w *walk) {
			w.q.Packet.From = netip.MustParseAddrPort("203.0.113.1:1")
			w.neighbours = []rtnl.Neighbour{{Link: 5, Addr: w.q.Packet.From.Addr(), State: unix.NUD_REACHABLE}}
			w.links = append(w.links, rtnl.Link{Index: 5, Name: "eth1", Flags: up, MTU: 1500})
			w.addresses = func() ([]rtnl.Address, error) {
				return []rtnl.Address{{Index: 2, Addr: netip.MustParseAddr("192.0.2.1"), Bits: 24},
					{Index: 5, Addr: netip.MustParseAddr("203.0.113.2"), Bits: 24}}, nil
			}
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) { return balanced(h, p, far), nil }
		}, trace.Undecided, "", 0, nil},
		{"not translated at an address of this node", func(w *walk) {
			w.q.Packet.To = netip.MustParseAddrPort("192.0.2.1:30080")
			w.pass = func(_ hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				p.Flow.State = hooks.Untracked
				all := one(p)
				all[0].UntrackedBy = rule("raw")
				return all, nil
			}
		}, trace.Rejected, "chain raw", 1, nil},
		{"the reply is not translated back", func(w *walk) {
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				if p.Flow.Reply {
					return one(p), nil
				}
				return balanced(h, p, near), nil
			}
		}, trace.Dropped, "the reply comes from 10.1.1.2:80", 1, nil},
		{"not translated, and sent by the node", func(w *walk) {
			w.q.Packet.Host, w.q.Packet.From = true, netip.MustParseAddrPort("192.0.2.1:1")
			w.pass = func(_ hooks.Hook, p hooks.Packet) ([]hooks.Way, error) { return one(p), nil }
		}, trace.Dropped, "the packet to 10.96.0.10:80 is not translated", 1, nil},
		{"a NodePort that is not translated, in a mode that ends connections", func(w *walk) {
			w.q.Mode.Terminates = true
			w.q.Packet.To = netip.MustParseAddrPort("192.0.2.1:30080")
			w.pass = func(_ hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				all := one(p)
				if p.To == w.q.Packet.To {
					all[0].Flow.State, all[0].UntrackedBy = hooks.Untracked, rule("raw")
				}
				return all, nil
			}
		}, trace.Rejected, "chain raw", 1, nil},
		{"the proxy's reply is not translated", func(w *walk) {
			w.q.Mode.Terminates = true
			w.q.Packet.To = netip.MustParseAddrPort("192.0.2.1:30080")
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				if p.Flow.Reply {
					all := one(p)
					all[0].UntrackedBy = rule("raw")
					return all, nil
				}
				return balanced(h, p, "192.0.2.1:12345"), nil
			}
		}, trace.Dropped, "the reply comes from 192.0.2.1:12345", 1, nil},
		{"a reply to the proxy is dropped", func(w *walk) {
			w.q.Mode.Terminates = true
			w.q.Packet.From, w.q.Packet.To = netip.MustParseAddrPort("203.0.113.1:1"),
				netip.MustParseAddrPort("192.0.2.1:80")
			w.q.Table.Backends = w.q.Table.Backends[1:]
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				all := one(p)
				if h == hooks.Input && p.From.String() == far {
					all[0].Verdict, all[0].By = trace.Drop, rule("replies")
				}
				return all, nil
			}
		}, trace.Dropped, "chain replies", 0.5, nil},
		{"an endpoint of this node behind a router, to which sockets are connected", func(w *walk) {
			w.q.Kernel = &trace.Kernel{Connected: true, Verdict: trace.Balance,
				Backends: []trace.Backend{{Address: netip.MustParseAddrPort("10.1.1.7:80"), Share: 1}}}
			w.q.OnNode = func(netip.AddrPort) bool { return true }
			w.pass = func(_ hooks.Hook, p hooks.Packet) ([]hooks.Way, error) { return one(p), nil }
			route := w.route
			w.route = func(q rtnl.Query) (rtnl.Route, error) {
				r, err := route(q)
				if q.To.String() == "10.1.1.7" {
					r.Gateway = netip.MustParseAddr("192.0.2.254")
				}
				return r, err
			}
		}, trace.Undecided, "", 0, nil},
		{"a socket of a pod that is perhaps connected, though its route leads elsewhere", func(w *walk) {
			stopped(near, "policy", trace.Drop)(w)
			w.q.Kernel, w.q.ClientHere = &trace.Kernel{Perhaps: true, Verdict: trace.Balance}, true
			w.neighbours = []rtnl.Neighbour{{Link: 3, Addr: w.q.Packet.From.Addr(), State: unix.NUD_REACHABLE}}
			w.route = rerouted(w.route, func(q rtnl.Query) bool { return !q.From.IsValid() })
		}, trace.Undecided, "", 0, nil},
		{"a socket of a pod elsewhere", func(w *walk) {
			stopped(near, "policy", trace.Drop)(w)
			w.q.Kernel = &trace.Kernel{Perhaps: true, Verdict: trace.Balance}
			w.route = rerouted(w.route, func(rtnl.Query) bool { return true })
		}, trace.Dropped, "chain policy", 0.5, nil},
		{"a socket to a loopback address is connected from another", func(w *walk) {
			w.q.Packet.Host, w.q.Packet.From = true, netip.MustParseAddrPort("127.0.0.1:0")
			w.q.Packet.To = netip.MustParseAddrPort("127.0.0.1:30080")
			w.q.Kernel = &trace.Kernel{Connected: true, Verdict: trace.Balance,
				Backends: []trace.Backend{{Address: netip.MustParseAddrPort(far), Share: 1}}}
			w.pass = func(_ hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				all := one(p)
				if p.From.Addr().IsLoopback() {
					all[0].Verdict, all[0].By = trace.Drop, rule("loopback")
				}
				return all, nil
			}
		}, trace.Delivered, "", 0, nil},
		{"the proxy cannot send a datagram to the only backend", func(w *walk) {
			w.q.Mode.Terminates, w.q.Packet.Proto = true, lb.UDP
			w.q.Packet.To = netip.MustParseAddrPort("192.0.2.1:80")
			w.q.Table.Backends = w.q.Table.Backends[:1]
			w.pass = func(_ hooks.Hook, p hooks.Packet) ([]hooks.Way, error) { return one(p), nil }
			route := w.route
			w.route = func(q rtnl.Query) (rtnl.Route, error) {
				if q.To.String() == "10.1.1.2" {
					return rtnl.Route{Errno: unix.EHOSTUNREACH}, nil
				}
				return route(q)
			}
		}, trace.Dropped, "is unreachable", 0.5, nil},
		{"a rule rejects a datagram to the proxy", func(w *walk) {
			w.q.Mode.Terminates, w.q.Packet.Proto = true, lb.UDP
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				all := balanced(h, p, "192.0.2.1:12345")
				if h == hooks.Input && !p.Flow.Reply && p.Flow.State == hooks.New {
					all[0].Verdict, all[0].By = trace.Reject, rule("input")
				}
				return all, nil
			}
		}, trace.Rejected, "chain input", 1, nil},
		{"IPVS rejects, and the error is dropped", func(w *walk) {
			w.q.Mode.Holds, w.q.Table.Verdict = true, trace.Reject
			w.q.Packet.To = netip.MustParseAddrPort("192.0.2.1:80")
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				all := one(p)
				if h == hooks.Output && p.From == netip.MustParseAddrPort("192.0.2.1:0") {
					all[0].Verdict, all[0].By = trace.Drop, rule("output")
				}
				return all, nil
			}
		}, trace.Dropped, "kube-proxy", 1, nil},
		{"IPVS has no route, and the error has none", func(w *walk) {
			w.q.Mode.Holds = true
			w.q.Packet.To = netip.MustParseAddrPort("192.0.2.1:80")
			w.pass = func(_ hooks.Hook, p hooks.Packet) ([]hooks.Way, error) { return one(p), nil }
			client := w.q.Packet.From.Addr()
			w.route = refusing(w.route, func(q rtnl.Query) bool {
				return q.Proto == byte(trace.ICMPv4) && (q.To != client || q.From == w.q.Packet.To.Addr())
			})
		}, trace.Dropped, "prohibits 10.1.1.2", 1, func(n trace.Node) bool {
			return strings.Contains(strings.Join(n.Warnings, ""), "does not reach the client")
		}},
		{"IPVS takes an untracked packet", func(w *walk) {
			w.q.Mode.Holds = true
			w.q.Packet.To = netip.MustParseAddrPort("192.0.2.1:80")
			w.pass = func(_ hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				p.Flow.State = hooks.Untracked
				return one(p), nil
			}
		}, trace.Undecided, "", 0, nil},
		{"IPVS takes no part in ct status", func(w *walk) {
			w.q.Mode.Holds = true
			w.q.Packet.To = netip.MustParseAddrPort("192.0.2.1:80")
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				all := one(p)
				if h == hooks.Forward && p.Flow.IPVS {
					all[0].Verdict, all[0].By = trace.Drop, rule("status")
				}
				return all, nil
			}
		}, trace.Dropped, "chain status", 1, nil},
		{"IPVS sends without a protocol", func(w *walk) {
			w.q.Mode.Holds = true
			w.q.Packet.To = netip.MustParseAddrPort("192.0.2.1:80")
			route := w.route
			w.route = func(q rtnl.Query) (rtnl.Route, error) {
				if q.Proto == 0 && q.ToPort == 80 || q.Proto == byte(lb.UDP) {
					return rtnl.Route{Errno: unix.EACCES}, nil
				}
				return route(q)
			}
			w.pass = func(_ hooks.Hook, p hooks.Packet) ([]hooks.Way, error) { return one(p), nil }
		}, trace.Delivered, "", 0, nil},
		{"the reply of IPVS has no route from the Service's address", func(w *walk) {
			w.q.Mode.Holds = true
			w.q.Packet.To = netip.MustParseAddrPort("192.0.2.1:80")
			w.route = refusing(w.route, func(q rtnl.Query) bool {
				return q.To.String() == "10.1.1.1" && q.From.String() == "192.0.2.1"
			})
			w.pass = func(_ hooks.Hook, p hooks.Packet) ([]hooks.Way, error) { return one(p), nil }
		}, trace.Dropped, "prohibits 10.1.1.1", 1, nil},
		{"a bridge that filters by VLAN", func(w *walk) { w.links[3].Kind, w.links[3].VLANs = "bridge", true },
			trace.Undecided, "", 0, nil},
		{"a socket of the node that sends from another address", func(w *walk) {
			w.q.Packet.Host, w.q.Packet.From = true, netip.MustParseAddrPort("192.0.2.77:0")
			route := w.route
			w.route = func(q rtnl.Query) (rtnl.Route, error) {
				if q.To.String() == "192.0.2.77" {
					return rtnl.Route{Type: unix.RTN_LOCAL, Out: 1}, nil
				}
				return route(q)
			}
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				all := one(p)
				switch {
				case h == hooks.Output:
					all[0].To, all[0].Translated = netip.MustParseAddrPort(far), true
				case h == hooks.Input && p.Flow.Reply:
					all[0].From = p.Flow.Orig.To
				}
				return all, nil
			}
		}, trace.Delivered, "", 0, func(n trace.Node) bool {
			return slices.Contains(n.Warnings,
				"The source 192.0.2.77 is assumed: a socket that is not bound to it sends from 192.0.2.1.")
		}},
		{"an own packet to an incomplete neighbour", func(w *walk) {
			w.q.Packet.Host, w.q.Packet.From = true, netip.MustParseAddrPort("192.0.2.1:0")
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				return balanced(h-hooks.Output, p, near), nil
			}
			w.neighbours = []rtnl.Neighbour{
				{Link: 4, Addr: netip.MustParseAddr("10.1.1.2"), State: unix.NUD_INCOMPLETE}}
		}, trace.Undecided, "", 0, nil},
		{"the way with a masqueraded source is shown", func(w *walk) {
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				all := balanced(h, p, near, far)
				all[0].Masqueraded = h == hooks.Postrouting && p.To.String() == far
				if h == hooks.Prerouting && p.Flow.Reply {
					all[0].To = p.Flow.Orig.From
				}
				return all, nil
			}
		}, trace.Delivered, "", 0, func(n trace.Node) bool { return strings.Contains(n.Text(true), "masqueraded") }},
		{"a policy rule leads to another router", func(w *walk) {
			w.route = routers(w.route)
		}, trace.Delivered, "", 0, func(n trace.Node) bool {
			return slices.Contains(n.Warnings, "A policy rule leads this packet through eth0 to 192.0.2.9, and others "+
				"to 198.51.100.1 through eth0 to 192.0.2.254: that the router passes it on is assumed.")
		}},
		{"two next hops", func(w *walk) {
			w.hops = func(q rtnl.Query) (int, error) { return map[string]int{"10.1.1.2": 2}[q.To.String()], nil }
		}, trace.Delivered, "", 0, func(n trace.Node) bool {
			return slices.Contains(n.Warnings, "Of 2 next hops to 10.1.1.2, the one through pod2 is followed: "+
				"a guess, because the kernel chooses by a hash of the connection.")
		}},
		{"two next hops, one without carrier", func(w *walk) {
			w.hops = func(rtnl.Query) (int, error) { return 2, nil }
			w.links[3].Flags = unix.IFF_UP
		}, trace.Undecided, "", 0, func(n trace.Node) bool {
			return strings.Contains(strings.Join(n.NotEvaluated, "\n"), "of 2 next hops to 10.1.1.2")
		}},
		{"the mark of the connection", func(w *walk) {
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				all := balanced(h, p, near)
				switch {
				case p.Flow.State == hooks.New:
					all[0].Flow.Mark = 7
				case p.Flow.Mark != 7: // of the reply and of the next packets
					all[0].Verdict, all[0].By = trace.Drop, rule("unmarked")
				}
				return all, nil
			}
		}, trace.Delivered, "", 0, nil},
		{"not translated", func(w *walk) {
			w.pass = func(_ hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				p.Flow.State = hooks.Untracked
				return one(p), nil
			}
		}, trace.Dropped, "notrack", 1, nil},
		{"an existing connection in a full table", func(w *walk) {
			w.sysctl = full
			w.q.Backend, w.q.Sees = netip.MustParseAddrPort(near), w.q.Packet.From
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				if !p.Flow.Reply {
					p.To = p.Flow.Reverse.From
				}
				return balanced(h, p), nil
			}
		}, trace.Delivered, "", 0, nil},
		{"no carrier", func(w *walk) { w.links[3].Flags = unix.IFF_UP },
			trace.Dropped, "pod2 has no carrier", 0.5, nil},
		{"no such interface", func(w *walk) { w.q.Packet.In = "evil\x1b[31m" }, trace.Dropped, "does not exist", 1,
			func(n trace.Node) bool { return !strings.Contains(n.Lead()+n.Text(true), "\x1b") }},
		{"the proxy does not notice that a datagram is lost", func(w *walk) {
			w.q.Mode.Terminates, w.q.Packet.Proto = true, lb.UDP
			w.pass = func(_ hooks.Hook, p hooks.Packet) ([]hooks.Way, error) { return one(p), nil }
			w.q.Packet.To = netip.MustParseAddrPort("192.0.2.1:80")
			w.links[3].Flags = 0
		}, trace.Dropped, "interface pod2 is down", 0.5, nil},
		{"the proxy notices that it cannot send a datagram", func(w *walk) {
			w.q.Mode.Terminates, w.q.Packet.Proto = true, lb.UDP
			w.q.Packet.To = netip.MustParseAddrPort("192.0.2.1:80")
			w.q.Kernel = &trace.Kernel{Affine: netip.MustParseAddrPort(near)}
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				all := one(p)
				if h == hooks.Output && p.To.String() == near {
					all[0].Verdict, all[0].By = trace.Drop, rule("out")
				}
				return all, nil
			}
		}, trace.Delivered, "", 0, nil},
		{"datagrams go where the client stays", func(w *walk) {
			w.q.Mode.Terminates, w.q.Packet.Proto = true, lb.UDP
			w.pass = func(_ hooks.Hook, p hooks.Packet) ([]hooks.Way, error) { return one(p), nil }
			w.q.Kernel = &trace.Kernel{Affine: netip.MustParseAddrPort(near)}
			w.q.Packet.To = netip.MustParseAddrPort("192.0.2.1:80")
			w.links[3].Flags = 0
		}, trace.Dropped, "interface pod2 is down", 1, nil},
		{"a policy rule of another protocol prohibits what the proxy does not send", func(w *walk) {
			w.q.Mode.Terminates = true
			w.q.Packet.To = netip.MustParseAddrPort("192.0.2.1:80")
			w.pass = func(_ hooks.Hook, p hooks.Packet) ([]hooks.Way, error) { return one(p), nil }
			client := w.q.Packet.From.Addr()
			w.route = refusing(w.route, func(q rtnl.Query) bool {
				return q.Proto != byte(lb.TCP) && q.To != client && q.To != w.q.Packet.To.Addr()
			})
			w.route = func(route lookup) lookup {
				return func(q rtnl.Query) (rtnl.Route, error) {
					r, err := route(q)
					if !q.To.IsValid() {
						r.Errno = unix.ERANGE
					}
					return r, err
				}
			}(w.route)
		}, trace.Delivered, "", 0, nil},
		{"the proxy's own connections have its mark", func(w *walk) {
			w.q.Mode.Terminates, w.q.Mode.Mark = true, 0x4000
			w.q.Packet.To = netip.MustParseAddrPort("192.0.2.1:80")
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				all := one(p)
				if h == hooks.Output && p.Mark == 0x4000 && p.Flow.State == hooks.New {
					all[0].Verdict, all[0].By = trace.Drop, rule("marked")
				}
				return all, nil
			}
		}, trace.Dropped, "chain marked", 1, nil},
		{"next packets of the proxy are dropped", func(w *walk) {
			w.q.Mode.Terminates, w.q.Mode.Mark = true, 0x4000
			w.q.Packet.To = netip.MustParseAddrPort("192.0.2.1:80")
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				all := one(p)
				later := p.Flow.State == hooks.Established && p.Mark == 0x4000
				if h == hooks.Postrouting && p.To.String() == near && later {
					all[0].Verdict, all[0].By = trace.Drop, rule("data")
				}
				return all, nil
			}
		}, trace.Dropped, "chain data", 0.5, func(n trace.Node) bool { return n.Stage == "next packets: postrouting" }},
		{"next packets to the proxy are dropped", func(w *walk) {
			w.q.Mode.Terminates = true
			w.q.Packet.To = netip.MustParseAddrPort("192.0.2.1:80")
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				all := one(p)
				if h == hooks.Input && p.Flow.State == hooks.Established && !p.Flow.Reply {
					all[0].Verdict, all[0].By = trace.Drop, rule("data")
				}
				return all, nil
			}
		}, trace.Dropped, "chain data", 1, nil},
		{"later replies are dropped", func(w *walk) {
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				all := balanced(h, p, near)
				if p.Flow.Reply && p.Flow.Later {
					all[0].Verdict, all[0].By = trace.Drop, rule("data")
				}
				return all, nil
			}
		}, trace.Dropped, "chain data", 1, func(n trace.Node) bool {
			return n.Stage == "next packets: reply: prerouting"
		}},
		{"another program translates the proxy's connections to one of two backends", func(w *walk) {
			w.q.Mode.Terminates = true
			w.q.Packet.To = netip.MustParseAddrPort("192.0.2.1:80")
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				all := one(p)
				if h == hooks.Output && p.To.String() == near && p.Flow.State == hooks.New {
					all[0].To, all[0].TranslatedBy = netip.MustParseAddrPort("10.1.1.2:9999"), rule("dnat")
				}
				return all, nil
			}
		}, trace.Translated, "chain dnat", 0.5, nil},
		{"another program translates past the proxy", func(w *walk) {
			w.q.Mode.Terminates, w.q.Table.Masquerade = true, true
		}, trace.Delivered, "", 0, func(n trace.Node) bool { return n.Sees == trace.SeesClient }},
		{"the proxy's own packet came in through no port", func(w *walk) {
			w.q.Mode.Terminates = true
			w.links[2].Kind, w.links[3].Kind = "bridge", "bridge"
			w.q.Packet.To = netip.MustParseAddrPort("192.0.2.1:80")
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
				all := one(p)
				if p.In == "" && p.Port != "" {
					all[0].Verdict, all[0].By = trace.Drop, rule("port")
				}
				return all, nil
			}
			w.links = append(w.links, rtnl.Link{Index: 5, Name: "vethpod2", Master: 4, Flags: up})
			w.ports = []rtnl.Port{{Link: 5, Forwards: true}}
			w.neighbours = []rtnl.Neighbour{{Link: 4, Addr: netip.MustParseAddr("10.1.1.2"), MAC: [6]byte{2}}}
			w.stations = map[[6]byte]int32{{2}: 5}
			w.q.Table.Backends = w.q.Table.Backends[:1]
		}, trace.Delivered, "", 0, nil},
		{"another program redirects from an interface that has an address of its link alone", func(w *walk) {
			w.q.Packet = trace.Packet{From: netip.MustParseAddrPort("[fd00::11]:1"), In: "pod1", Proto: lb.TCP,
				To: netip.MustParseAddrPort("[fd00::1]:80")}
			w.addresses = func() ([]rtnl.Address, error) {
				return []rtnl.Address{{Index: 3, Addr: netip.MustParseAddr("fe80::1"), Bits: 64}}, nil
			}
			w.route = func(q rtnl.Query) (rtnl.Route, error) {
				return map[bool]rtnl.Route{true: {Type: unix.RTN_LOCAL, Out: 1}, false: {Type: unix.RTN_UNICAST,
					Out: 3}}[q.To.IsLinkLocalUnicast()], nil
			}
			w.pass = translated("[::]:9999", "redirect")
		}, trace.Translated, "chain redirect, rule 1 \"drop\": to [fe80::1]:9999", 1, nil},
		{"a rule takes the mark of masquerading away", func(w *walk) { w.q.Table.Masquerade = true },
			trace.Delivered, "", 0, func(n trace.Node) bool { return n.Sees == trace.SeesClient }},
		{"a rule of another program masquerades", func(w *walk) {
			w.pass = masqueraded
		}, trace.Delivered, "", 0, func(n trace.Node) bool { return n.Sees == trace.SeesAnother }},
		{"a rule masquerades as the table says", func(w *walk) {
			w.q.Table.Masquerade = true
			w.pass = masqueraded
		}, trace.Delivered, "", 0, func(n trace.Node) bool { return n.Sees == "" }},
		{"an endpoint behind a router that sends back what has a route here", func(w *walk) {
			w.q.OnNode = func(a netip.AddrPort) bool { return a.String() == near }
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) { return balanced(h, p, near), nil }
			w.route = func(route lookup) lookup {
				return func(q rtnl.Query) (rtnl.Route, error) {
					if q.To.String() == "10.1.1.2" && q.In == 3 {
						router := netip.MustParseAddr("192.0.2.254")
						return rtnl.Route{Type: unix.RTN_UNICAST, Out: 2, Gateway: router}, nil
					}
					return route(q)
				}
			}(w.route)
		}, trace.Undecided, "", 0, nil},
		{"the proxy takes another backend", func(w *walk) {
			w.q.Mode.Terminates = true
			w.q.Packet.To = netip.MustParseAddrPort("192.0.2.1:80")
			w.links[3].Flags = 0
		}, trace.Delivered, "", 0, func(n trace.Node) bool {
			return len(n.Warnings) == 1 && strings.HasSuffix(n.Warnings[0], "may wait some seconds for that.")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &walk{facts: world(), q: Question{
				Packet: trace.Packet{
					From: netip.MustParseAddrPort("10.1.1.1:1"), To: netip.MustParseAddrPort(service), Proto: lb.TCP,
				},
				Table: trace.Answer{Verdict: trace.Balance, Backends: []trace.Backend{
					{Address: netip.MustParseAddrPort(near), Share: 0.5},
					{Address: netip.MustParseAddrPort(far), Share: 0.5}}},
			}}
			w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) { return balanced(h, p, near, far), nil }
			c.edit(w)
			w.follow()
			n := w.judge()
			if w.err != nil || n.Verdict != c.want || !strings.Contains(n.By, c.by) || (n.By == "") != (c.by == "") ||
				n.Share != c.share {
				t.Errorf("%v: %s by %q (%v), want %s by %q (%v)",
					w.err, n.Verdict, n.By, n.Share, c.want, c.by, c.share)
			}
			if c.check != nil && !c.check(n) {
				t.Errorf("%+v\n%s%s", n, n.Lead(), n.Text(true))
			}
		})
	}
}

// TestManyBackends bounds the ways that are followed, and says so (NT-09).
func TestManyBackends(t *testing.T) {
	var backends []string
	for i := range 5000 {
		backends = append(backends, fmt.Sprintf("100.64.%d.%d:80", i/250, i%250))
	}
	passed := 0
	w := &walk{facts: world(), q: Question{Packet: trace.Packet{From: netip.MustParseAddrPort("10.1.1.1:1"),
		To: netip.MustParseAddrPort("10.96.0.10:80"), Proto: lb.TCP}}}
	w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
		passed++
		return balanced(h, p, backends...), nil
	}
	w.follow()
	if n := w.judge(); passed > 12*maxWays || n.Verdict != trace.Delivered ||
		!strings.Contains(strings.Join(n.Warnings, ""), "64 of 5000") {
		t.Errorf("%d hooks passed; %s, %q", passed, n.Verdict, n.Warnings)
	}
}
