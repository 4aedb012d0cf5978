package inspect

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/internal/nearest"
	"kube-proxy/internal/pause"
	"kube-proxy/lb"
	"kube-proxy/nodetrace"
	"kube-proxy/policy"
	"kube-proxy/trace"
)

// TraceQuery describes a packet as people write it: see [trace.Parse].
type TraceQuery struct {
	// From is the source: an address, with or without a port, or "node". Pod names a Pod instead,
	// "ns/name" or, where one Pod alone has it, "name". One of the two must be there.
	From, Pod string
	// Port is the source port if From names none; "" for a port that no connection has.
	Port string
	// In is the interface that the packet comes in through; "" if that is not known.
	In string
	// To is the destination: ADDRESS[:PORT][/PROTO], SERVICE[:PORT][/PROTO] or
	// nodeport:PORT[/PROTO].
	To string
}

// TraceParams are the parameters of the query, from a source as people write it: pod/NAME and
// NAMESPACE/NAME are Pods. The source port and the interface may be "".
func TraceParams(from, port, in, to string) url.Values {
	params := url.Values{"to": {to}}
	if name, ok := strings.CutPrefix(from, "pod/"); ok || strings.Contains(name, "/") {
		params.Set("pod", name)
	} else {
		params.Set("from", from)
	}
	for name, value := range map[string]string{"port": port, "in": in} {
		if value != "" {
			params.Set(name, value)
		}
	}
	return params
}

// TraceAnswer is what a packet meets by the table, by the kernel's state of kube-proxy, and in the
// rest of this node.
type TraceAnswer struct {
	trace.Answer
	// Node is the node of this answer.
	Node string `json:"node"`
	// Packet is the traced packet.
	Packet PacketText `json:"packet"`
	// Conntrack are the connections of client and destination in the kernel; they continue with
	// their backend, whatever the other answers are. Open ones come before those that one side has
	// ended. An ended one is listed only if the packet has the client's port.
	Conntrack []Connection `json:"conntrack,omitempty"`
	// ConntrackEnded is the number of other ended ones. ConntrackMore: more open and more ended
	// ones may exist.
	ConntrackEnded int  `json:"conntrackEnded,omitempty"`
	ConntrackMore  bool `json:"conntrackMore,omitempty"`
	// Rest is the treatment of the packet by the rest of this node; nil if that was not checked,
	// see Notes.
	Rest *trace.Node `json:"rest,omitempty"`
	// Live is the path of a real packet; nil without "kube-proxy trace --live".
	Live *trace.Live `json:"live,omitempty"`
	// Probes are the answers of the backends' endpoints to this node, with --live over TCP.
	Probes *Probes `json:"probes,omitempty"`
	// Notes explain what could not be determined, and why.
	Notes []string `json:"notes,omitempty"`

	// Asked is the packet.
	Asked trace.Packet `json:"-"`
}

// PacketText is a packet in words.
type PacketText struct {
	From string `json:"from"`
	Pod  string `json:"pod,omitempty"`
	In   string `json:"in,omitempty"`
	// Node: this node sends it.
	Node  bool   `json:"node,omitempty"`
	To    string `json:"to"`
	Proto string `json:"proto"`
}

// Connection is one that conntrack has.
type Connection struct {
	From netip.AddrPort `json:"from"`
	To   netip.AddrPort `json:"to"`
	// Backend is the address that answers: the proxy's own if connections end at it, To if nothing
	// is translated. Sees is the source address that the backend sees.
	Backend netip.AddrPort `json:"backend,omitzero"`
	Sees    netip.AddrPort `json:"sees,omitzero"`
	// Answered: a reply was received.
	Answered bool `json:"answered"`
	// Offloaded: a flowtable of nftables has it, so its packets bypass all rules but netdev's.
	Offloaded bool `json:"offloaded,omitempty"`
	// Mark is its mark in conntrack.
	Mark uint32 `json:"mark,omitempty"`
	// Proto is tcp, udp or sctp; State is the kernel's name of the state, "" if the protocol has
	// none.
	Proto string `json:"proto"`
	State string `json:"state,omitempty"`
	// Timeout is the number of seconds until the kernel removes it, without further packets.
	Timeout int `json:"timeoutSeconds,omitempty"`
}

// The time limit of a read of the kernel, and the number of reads in case of differences: an object
// that is being written differs temporarily.
const (
	kernelWait   = 5 * time.Second
	looks        = 3
	inspectPause = 150 * time.Millisecond
)

// Trace returns the path of a packet. A [Problem] describes an invalid query.
func (i *Inspector) Trace(ctx context.Context, q TraceQuery) (*TraceAnswer, error) {
	f, p, err := i.packet(ctx, &q)
	if err != nil {
		return nil, err
	}
	a := &TraceAnswer{Asked: p, Node: i.Node(), Packet: PacketText{From: endText(p.From), Pod: q.Pod, In: p.In,
		Node: p.Host, To: endText(p.To), Proto: protoName(p.Proto)}}
	a.Answer = i.ask(f, p)
	i.lookup(ctx, f, p, a)
	i.connections(ctx, p, a)
	i.rest(ctx, f, p, a)
	i.atThisNode(f, p, a)
	a.atSocket()
	a.atBackends()
	return a, nil
}

// Outcome returns the outcome of the packet: the verdict of the table, or of the kernel if it
// differs, or of the rest of the node if that stops the packet. The result of a real packet
// overrides them.
func (a *TraceAnswer) Outcome() trace.Verdict {
	switch {
	case a.Live != nil && a.Live.Verdict == trace.Rejected:
		return trace.Reject
	case a.Live != nil && a.Live.Stopped():
		return trace.Drop
	case a.Live != nil && a.Live.Answered:
		return a.Verdict
	case a.Rest.Harmful() && a.Rest.Verdict == trace.Rejected:
		return trace.Reject
	case a.Rest.Harmful():
		return trace.Drop
	case a.Kernel != nil && len(a.Findings) > 0:
		return a.Kernel.Verdict
	}
	return a.Verdict
}

// Wrong reports whether the answer is not as the table alone promises.
func (a *TraceAnswer) Wrong() bool {
	return len(a.Findings) > 0 || a.Rest.Harmful() || a.Live != nil && a.Live.Differs != ""
}

// ask queries the table, and explains the port of the packet: how its backends were chosen, or why
// it has none.
func (i *Inspector) ask(f Family, p trace.Packet) (a trace.Answer) {
	f.Query(func(t *lb.Table) { a = trace.Ask(t, f.Trace, p) })
	if a.Frontend == nil || f.Settings == nil {
		return a
	}
	name := ParseName(a.Service)
	for _, port := range policy.Explain(i.cfg.Store.View(name), f.Settings(name)).Ports {
		if port.Service == a.Service && port.Protocol == a.Frontend.Key.Proto.String() {
			a.Why = append(a.Why, port.Chosen...)
		}
	}
	return a
}

// lookup adds the kernel's answer. If it differs, the kernel and the table are read again.
func (i *Inspector) lookup(ctx context.Context, f Family, p trace.Packet, a *TraceAnswer) {
	switch {
	case i.cfg.Offline:
		a.Notes = append(a.Notes, "offline: computed from the objects alone, without a kernel")
		return
	case p.Proto == trace.ICMPv4 || p.Proto == trace.ICMPv6:
		a.Notes = append(a.Notes, "pings are not checked in the kernel")
		return
	case f.Tracer == nil:
		a.Notes = append(a.Notes, fmt.Sprintf("cannot read the kernel state in mode %s", i.cfg.Mode.Name))
		return
	}
	ctx, cancel := context.WithTimeout(ctx, kernelWait)
	defer cancel()
	for look := 1; ; look++ {
		k, err := f.Tracer.TracePacket(ctx, p, nodetrace.Kernel)
		if err != nil {
			a.Notes = append(a.Notes, "reading the kernel state: "+err.Error())
			return
		}
		a.Add(k)
		if len(a.Findings) == 0 || look == looks || !pause.For(ctx, inspectPause) {
			break
		}
		a.Answer = i.ask(f, p)
	}
	if len(a.Findings) > 0 && f.Stats != nil && !f.Stats().Settled {
		a.Notes = append(a.Notes, "the proxy is still writing changes: retry, or see kube-proxy events")
	}
}

// packet is the packet that a question is about, and the family that it belongs to. The question
// has the Pod's full name then.
func (i *Inspector) packet(ctx context.Context, q *TraceQuery) (Family, trace.Packet, error) {
	none := Family{}
	if len(q.In) > maxInterface || strings.ContainsAny(q.In, "/ \t\n") {
		return none, trace.Packet{}, Problemf(Bad, "interface %q: invalid name", Cut(q.In))
	}
	var pods []netip.Addr
	switch {
	case q.From != "" && q.Pod != "":
		return none, trace.Packet{}, Problemf(Bad, "want an address or a pod as the source, not both")
	case q.Pod != "":
		name, addrs, err := i.pod(ctx, q.Pod)
		if err != nil {
			return none, trace.Packet{}, err
		}
		pods, q.Pod, q.From = addrs, name.String(), addrs[0].String()
	case q.From == "":
		return none, trace.Packet{}, Problemf(Bad, "want a source: an address, \"node\" for this node, or a pod")
	}
	source, target, err := trace.Parse(q.From, q.To)
	if err != nil && q.Pod != "" && len(pods) > 1 { // of a pod with both families, the one of the destination's family
		source, target, err = trace.Parse(pods[1].String(), q.To)
	}
	if err != nil {
		return none, trace.Packet{}, Problemf(Bad, "%v", err)
	}
	if target.Service != "" {
		name, _, err := i.find(target.Service)
		if err != nil && len(nearest.Of(target.Service, slices.Values([]string{"nodeport"}))) > 0 {
			return none, trace.Packet{}, Problemf(Unknown, "no Service %s: did you mean nodeport:PORT?", target.Service)
		} else if err != nil {
			return none, trace.Packet{}, err
		}
		target.Service = name.String()
	}
	f, p, err := i.resolve(source, pods, target, q.In)
	if err == nil && q.Port != "" {
		n, invalid := strconv.ParseUint(q.Port, 10, 16)
		if invalid != nil || n == 0 || p.From.Port() != 0 {
			return none, p, Problemf(Bad, "source port %q: want a number from 1 to 65535, and none in the source",
				Cut(q.Port))
		}
		p.From = netip.AddrPortFrom(p.From.Addr(), uint16(n))
	}
	return f, p, err
}

// maxInterface is the length of the longest name of an interface, in bytes.
const maxInterface = 15

// resolve finds the family in which the question makes sense, and there the packet.
func (i *Inspector) resolve(source trace.Source, pods []netip.Addr, target trace.Target, in string) (Family,
	trace.Packet, error) {
	local, err := i.local()
	if err != nil {
		return Family{}, trace.Packet{}, Problemf(Unavailable, "listing the addresses of this node: %v", err)
	}
	var firstErr error
	for _, f := range i.cfg.Families {
		from, ok := sourceIn(f.Family, source, pods, local)
		if !ok || target.Addr.IsValid() && lb.FamilyOf(target.Addr) != f.Family {
			continue
		}
		to, proto, err := i.target(f, target, local)
		if err != nil {
			if firstErr == nil {
				firstErr = Problemf(Bad, "%v", err)
			}
			continue
		}
		if source.Node && to.Addr().IsLoopback() { // as the kernel chooses it
			from = netip.AddrPortFrom(f.Family.Loopback(), from.Port())
		} else if source.Node && slices.Contains(local, to.Addr()) {
			from = netip.AddrPortFrom(to.Addr(), from.Port())
		}
		return f, trace.Packet{From: from, In: in, Host: source.Node || slices.Contains(local, from.Addr()),
			Unbound: source.Node, To: to, Here: slices.Contains(local, to.Addr()), Proto: proto}, nil
	}
	if firstErr != nil {
		return Family{}, trace.Packet{}, firstErr
	}
	return Family{}, trace.Packet{}, Problemf(Bad, "source and destination have no served IP family in common")
}

// sourceIn is the source's address in a family.
func sourceIn(fam lb.Family, source trace.Source, pods, local []netip.Addr) (netip.AddrPort, bool) {
	if pods != nil {
		return firstIn(fam, pods)
	}
	if source.Node {
		return firstIn(fam, local)
	}
	return source.Addr, lb.FamilyOf(source.Addr.Addr()) == fam
}

func firstIn(fam lb.Family, addrs []netip.Addr) (netip.AddrPort, bool) {
	for _, a := range addrs {
		if lb.FamilyOf(a) == fam {
			return netip.AddrPortFrom(a, 0), true
		}
	}
	return netip.AddrPort{}, false
}

// local returns the addresses of this node, those of the Node object first.
func (i *Inspector) local() ([]netip.Addr, error) {
	var out []netip.Addr
	if n := i.cfg.Store.Facts().Node; n != nil {
		out = slices.Clone(n.Addrs)
	}
	if i.cfg.Local == nil {
		return out, nil
	}
	held, err := i.cfg.Local()
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(held, func(a, b netip.Addr) int { return rank(a) - rank(b) })
	for _, a := range held {
		if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out, nil
}

// rank orders addresses that other machines can reach first.
func rank(a netip.Addr) int {
	switch {
	case a.IsLoopback():
		return 2
	case a.IsLinkLocalUnicast():
		return 1
	}
	return 0
}

// target finds the destination in a family. An address without a port means all its frontends. They
// are searched one Service at a time, so that the engine does not wait.
func (i *Inspector) target(f Family, t trace.Target, local []netip.Addr) (to netip.AddrPort, proto lb.Proto,
	err error) {
	if t.Addr.IsValid() && t.Port == 0 && t.Proto != trace.ICMPv4 {
		at := &lb.Table{Family: f.Family}
		for _, name := range i.Names() {
			var rows []*lb.Frontend
			for _, row := range f.owned(name).rows {
				if row.Key.Addr == t.Addr {
					rows = append(rows, row)
				}
			}
			if rows != nil {
				at.Replace(lb.Owner{Name: name.String()}, rows)
			}
		}
		return t.Find(at, netip.Addr{})
	}
	f.Query(func(table *lb.Table) {
		var node netip.Addr
		for _, a := range local {
			if lb.Within(table.Node.NodePorts, a) {
				node = a
				break
			}
		}
		to, proto, err = t.Find(table, node)
	})
	return to, proto, err
}

// pod returns the Pod that a person means, and its addresses: "ns/name", or "name" where one Pod
// alone has it.
func (i *Inspector) pod(ctx context.Context, said string) (name cluster.Name, addrs []netip.Addr, err error) {
	bare := strings.TrimPrefix(said, "pod/")
	namespace, short, qualified := strings.Cut(bare, "/")
	if !qualified {
		namespace, short = "", namespace
	}
	name = cluster.Name{Namespace: namespace, Name: short}
	if short == "" || qualified && namespace == "" || len(said) > maxName || strings.ContainsAny(short, "/ \x00") {
		return name, nil, Problemf(Bad, "pod %q: want NAMESPACE/NAME, or NAME", Cut(said))
	}
	see := "use its address, see kubectl get pod -n " + namespace + " " + short + " -o wide"
	if !qualified {
		see = "use its address, see kubectl get pod -A -o wide"
	}
	if i.cfg.Pods == nil {
		return name, nil, Problemf(Unavailable, "cannot find the address of pod %s here: %s", bare, see)
	}
	ctx, cancel := context.WithTimeout(ctx, kernelWait)
	defer cancel()
	found, err := i.cfg.Pods(ctx, name)
	names := slices.SortedFunc(maps.Keys(found), cluster.Name.Compare)
	switch {
	case err != nil:
		return name, nil, Problemf(Unavailable, "finding the address of pod %s: %v; %s", bare, err, see)
	case len(names) == 0:
		return name, nil, Problemf(Unknown, "pod %s is in no EndpointSlice, and this proxy knows no other pods: %s",
			bare, see)
	case len(names) > 1:
		return name, nil, ambiguous("pods", short, names)
	}
	return names[0], found[names[0]], nil
}

// endText is one end of a packet; port 0 is none.
func endText(a netip.AddrPort) string {
	if a.Port() == 0 {
		return a.Addr().String()
	}
	return a.String()
}

func protoName(p lb.Proto) string {
	if p == trace.ICMPv4 || p == trace.ICMPv6 {
		return "icmp"
	}
	return p.String()
}
