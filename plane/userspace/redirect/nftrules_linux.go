package redirect

import (
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/plane/internal/diff"
	"kube-proxy/plane/internal/ranges"
)

// ruleset renders the chains for one family and node. It is pure, and independent of frontends.
type ruleset struct {
	rule.IP
	sets    [setCount]wire.Set
	cfg     Config
	sockets bool // rules may match the sockets of packets (nft_socket)
	node    lb.Node
}

func (r *ruleset) transaction(table string) *wire.Transaction {
	return wire.NewTransaction(r.Proto, table, r.sets[:])
}

func (r *ruleset) set(i setIndex) *wire.Set { return &r.sets[i] }

// noRecords returns the records of empty sets.
func (r *ruleset) noRecords() (all [setCount]diff.Records) {
	for i := range all {
		all[i].Size = r.sets[i].RecordLen()
	}
	return all
}

// chains are all chains of the table.
//
//	prerouting, output, before translation   "refuse": packets that a route rejects or drops, in its order
//	prerouting, output, dstnat               "lead": redirect to the port of the listener
//	forward, output                          "unknown": untranslated packets to service addresses (SV-62, SV-63)
//	input                                    "guard": only redirected packets reach a listener
func (r *ruleset) chains() []rule.Chain {
	base := func(name, typ string, num uint32, priority int32, rules ...rule.Rule) rule.Chain {
		return rule.Chain{Name: name, Hook: wire.Hook{Type: typ, Num: num, Priority: priority}, Rules: rules}
	}
	const dstnat, filter = -100, 0
	own := r.New("the proxy's own connections", r.marked(), rule.Accept)
	// Packets of the proxy to this node itself pass here too, with its mark.
	back := r.New("the proxy's own connections", rule.FromThisNode, r.marked(), rule.Accept)
	refuse := r.New("", rule.NewConnection, rule.Jump("refuse"))
	lead := r.New("", rule.Jump("lead"))
	unknown := r.New("", rule.NewConnection, rule.Jump("unknown"))
	refuses := append([]rule.Rule{
		r.New("led on the way out", rule.DestinationTranslated, rule.Accept),
		r.New("source ranges", rule.Has(r.set(sSourceLists), r.VIP()...), rule.Jump("sources")),
	}, r.bySource("refuse")...)
	leads := r.bySource("lead")
	guard := []rule.Rule{r.New("an answer", rule.Answer, rule.Accept)}
	if r.sockets {
		// It took the port of a listener while no proxy ran. Sockets of the proxy are transparent,
		// which an unprivileged program cannot set. The kernel finds no sockets of SCTP.
		guard = append(guard, r.New("a socket of another program", rule.NotTransparent, rule.Jump("refused")))
	}
	guard = append(guard, r.New("led here", rule.DestinationTranslated, rule.Accept))
	for _, p := range r.node.NodePorts {
		here := slices.Clip(r.hereFor(p))
		toRefuse := r.New("this node", append(here, rule.Jump("refuse-nodeports"))...)
		refuses = append(refuses, toRefuse)
		leads = append(leads, r.New("this node", append(here, rule.Jump("lead-nodeports"))...))
		// A NodePort that is the port of its own listener is not translated. Redirected packets
		// pass here too.
		guard = append(guard, toRefuse)
	}
	unknowns := []rule.Rule{r.New("a port that the service does not have", rule.In(r.set(sClusterIPs), r.Destination()),
		rule.Jump("refused"))}
	for _, p := range r.node.ServiceCIDRs {
		unknowns = append(unknowns, r.New("an address that no service has", r.InPrefix(r.Destination(), p), rule.Drop))
	}
	all := []rule.Chain{
		base("filter-prerouting", "filter", unix.NF_INET_PRE_ROUTING, dstnat-10, back, refuse),
		base("filter-output-before", "filter", unix.NF_INET_LOCAL_OUT, dstnat-10, own, refuse),
		base("nat-prerouting", "nat", unix.NF_INET_PRE_ROUTING, dstnat, lead),
		base("nat-output", "nat", unix.NF_INET_LOCAL_OUT, dstnat, own, lead),
		base("filter-forward", "filter", unix.NF_INET_FORWARD, filter, unknown),
		base("filter-output", "filter", unix.NF_INET_LOCAL_OUT, filter, unknown),
		base("filter-input", "filter", unix.NF_INET_LOCAL_IN, filter,
			r.New("no port of the proxy", rule.NotIn(r.set(sListeners), rule.NodePort...), rule.Accept),
			r.New("", rule.Jump("guard"))),
		{Name: "refused", Rules: []rule.Rule{r.New("", rule.OverTCP, rule.TCPReset), r.New("", r.Reject())}},
		{Name: "guard", Rules: append(guard, r.New("a port like a closed one", rule.Jump("refused")))},
		{Name: "unknown", Rules: unknowns},
		{Name: "refuse", Rules: refuses},
		{Name: "lead", Rules: leads},
		r.sources(),
		{Name: "refuse-nodeports", Rules: r.bySource("refuse-nodeports")},
		{Name: "lead-nodeports", Rules: r.bySource("lead-nodeports")},
	}
	for from := lb.Pods; from <= lb.Anywhere; from++ {
		for _, np := range []bool{false, true} {
			all = append(all, r.refuse(from, np), r.lead(from, np))
		}
	}
	return all
}

// bySource jumps to the chains of the kinds of sources, in the order of routes. A chain that has
// the key does not return.
func (r *ruleset) bySource(what string) (rules []rule.Rule) {
	for _, match := range r.FromPods(r.node.Pods) {
		rules = append(rules, r.New("", match, rule.Jump(what+"-"+lb.Pods.String())))
	}
	return append(rules, r.New("", rule.SourceIsLocal, rule.Jump(what+"-"+lb.Host.String())),
		r.New("", rule.Jump(what+"-"+lb.Anywhere.String())))
}

func chainName(what string, f lb.From, nodePort bool) string {
	if nodePort {
		what += "-nodeports"
	}
	return what + "-" + f.String()
}

// keyOf returns the expressions for the key of a packet.
func (r *ruleset) keyOf(nodePort bool) []rule.Operand {
	if nodePort {
		return rule.NodePort
	}
	return r.VIP()
}

// refuse accepts packets that will be redirected, and refuses others of its keys.
func (r *ruleset) refuse(f lb.From, nodePort bool) rule.Chain {
	key, refused := r.keyOf(nodePort), r.set(refusals(f, nodePort))
	return rule.Chain{Name: chainName("refuse", f, nodePort), Rules: []rule.Rule{
		r.New("", rule.Has(r.set(ports(f, nodePort)), key...), rule.Accept),
		r.New("", rule.Find(rule.Number, refused, key...), rule.IsNumber(rule.Number, uint32(lb.Drop)), rule.Drop),
		r.New("", rule.Has(refused, key...), rule.Jump("refused")),
	}}
}

// lead translates. Packets to a service address go to an address of the node, because the interface
// that they came by need not have one. Packets to a NodePort keep their address.
func (r *ruleset) lead(f lb.From, nodePort bool) rule.Chain {
	c := rule.Chain{Name: chainName("lead", f, nodePort)}
	key, port := r.keyOf(nodePort), r.set(ports(f, nodePort))
	if nodePort {
		c.Rules = append(c.Rules, r.New("", r.Leading(nil, port, key...)...))
	} else {
		c.Rules = append(c.Rules, r.New("", r.Leading(r.set(sNodeAddresses), port, key...)...),
			r.New("a node without addresses", rule.Redirecting(port, key...)...))
	}
	c.Rules = append(c.Rules, r.New("refused before", rule.Has(r.set(refusals(f, nodePort)), key...), rule.Accept))
	return c
}

// sources drops packets from sources outside the frontend's ranges. Each length of a range has a
// rule (docs/adr/0018).
func (r *ruleset) sources() rule.Chain {
	c := rule.Chain{Name: "sources"}
	for n := r.AddrLen * 8; n > 0; n -= ranges.Stride {
		c.Rules = append(c.Rules, r.New(fmt.Sprintf("a range of %d bits", n),
			rule.Find(rule.Number, r.set(sSourceLists), r.VIP()...),
			rule.In(r.set(sSourceRanges), rule.Number.Or(uint32(n)), r.Source().FirstBits(n, r.IP)), rule.GoBack))
	}
	c.Rules = append(c.Rules, r.New("in no range", rule.Drop))
	return c
}

// marked matches the proxy's own packets; nothing if they have no mark.
func (r *ruleset) marked() rule.Statement { return rule.NotZero(rule.PacketMark.And(r.cfg.Mark)) }

// hereFor are the matches for packets to addresses of the node that answer NodePorts.
func (r *ruleset) hereFor(p netip.Prefix) []rule.Statement {
	here := []rule.Statement{r.InPrefix(r.Destination(), p), rule.DestinationIsLocal}
	if !r.cfg.LocalhostNodePorts || r.Family == lb.IPv6 { // else 127.0.0.1 answers too
		here = slices.Insert(here, 1, r.NotLoopback(r.Destination()))
	}
	return here
}

// TableName is the name of the nftables table, in both families.
const TableName = "kube-proxy-userspace"

// setIndex numbers the sets and maps of the table.
type setIndex = int

// For each kind of source, and for NodePorts and other keys: maps to the port of a listener, or to
// a refusal. Then the sets that all of them share.
const (
	sPorts         setIndex = iota                       // six: see ports
	sRefusals      setIndex = sPorts + 2*setIndex(froms) // six: see refusals
	sSourceLists   setIndex = sRefusals + 2*setIndex(froms)
	sSourceRanges  setIndex = sSourceLists + 1
	sClusterIPs    setIndex = sSourceLists + 2
	sListeners     setIndex = sSourceLists + 3
	sNodeAddresses setIndex = sSourceLists + 4
	setCount       setIndex = sSourceLists + 5
)

// froms is the number of kinds of sources.
const froms = int(lb.Anywhere)

func ports(f lb.From, nodePort bool) setIndex    { return sPorts + place(f, nodePort) }
func refusals(f lb.From, nodePort bool) setIndex { return sRefusals + place(f, nodePort) }

func place(f lb.From, nodePort bool) setIndex {
	n := setIndex(f-lb.Pods) * 2
	if nodePort {
		n++
	}
	return n
}

func schema(ip rule.IP) (all [setCount]wire.Set) {
	vip := wire.Fields{ip.Addr, wire.ProtoField, wire.PortField}
	for from := lb.Pods; from <= lb.Anywhere; from++ {
		for _, np := range []bool{false, true} {
			key, name := vip, "services-"
			if np {
				key, name = vip[1:], "nodeports-"
			}
			all[ports(from, np)] = wire.Set{Name: name + from.String(), Key: key, Data: wire.Fields{wire.OnlyPort},
				Comment: "frontend -> port of the proxy"}
			all[refusals(from, np)] = wire.Set{Name: "refused-" + name + from.String(), Key: key,
				Data: wire.Fields{wire.MarkField}, Comment: "frontend -> 2 reject, 3 drop"}
		}
	}
	all[sSourceLists] = wire.Set{Name: "source-lists", Key: vip, Data: wire.Fields{wire.MarkField},
		Comment: "frontend -> list of those who may use it"}
	all[sSourceRanges] = wire.Set{Name: "source-ranges", Key: wire.Fields{wire.MarkField, ip.Addr},
		Comment: "list and length of the range, range"}
	all[sClusterIPs] = wire.Set{Name: "cluster-ips", Key: wire.Fields{ip.Addr}, Comment: "addresses of kind ClusterIP"}
	all[sListeners] = wire.Set{Name: "listeners", Key: vip[1:], Comment: "ports of the proxy"}
	all[sNodeAddresses] = wire.Set{Name: "node-addresses", Key: wire.Fields{wire.VersionField},
		Data: wire.Fields{ip.Addr}, Comment: "where the proxy is reached"}
	return all
}

// parseKey reads the frontend's key from a record of a set; that of a NodePort has no address.
func parseKey(d *wire.Set, rec []byte) lb.Key {
	const protocolAndPort = 8
	return wire.ParseKey(rec, d.KeyLen()-protocolAndPort)
}
