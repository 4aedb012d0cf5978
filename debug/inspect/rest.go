package inspect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/nodetrace"
	"kube-proxy/trace"
)

// restWait limits the time for reading the rest of the node.
const restWait = 5 * time.Second

// rest adds the treatment of the packet by the rest of this node, after the answers of the table,
// the kernel and conntrack.
func (i *Inspector) rest(ctx context.Context, f Family, p trace.Packet, a *TraceAnswer) {
	switch {
	case i.cfg.Offline:
		return // a note already says so
	case p.Proto == trace.ICMPv4 || p.Proto == trace.ICMPv6:
		a.Notes = append(a.Notes, "pings are not followed through the rest of this node")
		return
	case i.cfg.Follow == nil:
		a.Notes = append(a.Notes, "the rest of this node was not checked")
		return
	}
	q := nodetrace.Question{Packet: p, Table: a.Answer, Mode: f.Trace, Kernel: a.Kernel, OnNode: onNode(a.Frontend)}
	facts := i.cfg.Store.Facts()
	home, here := i.home(p), facts.NodeName
	q.ClientHere = home != "" && home == here ||
		home == "" && facts.Node != nil && lb.Within(facts.Node.PodCIDRs, p.From.Addr())
	if c := a.existing(p); c != nil {
		q.Backend, q.Sees, q.Offloaded, q.Mark = c.Backend, c.Sees, c.Offloaded, c.Mark
	}
	ctx, cancel := context.WithTimeout(ctx, restWait)
	defer cancel()
	select {
	case i.following <- struct{}{}: // two at once would take all of a small node
		defer func() { <-i.following }()
	case <-ctx.Done():
		a.Rest = &trace.Node{Verdict: trace.Undecided,
			NotEvaluated: []string{"the rest of this node: another trace is still running"}}
		return
	}
	n, err := i.cfg.Follow(ctx, q)
	if errors.Is(err, errors.ErrUnsupported) {
		a.Notes = append(a.Notes, "the rest of this node was not checked: that is not available on this system")
		return
	}
	if err != nil {
		a.Rest = &trace.Node{Verdict: trace.Undecided,
			NotEvaluated: []string{"the rest of this node: " + err.Error()}}
		return
	}
	n.Pinned = i.pinned(f, a)
	if home != "" && home != here {
		n.Elsewhere = fmt.Sprintf("%s is on node %s: ask the proxy there; this is the answer for packets that reach %s",
			p.From.Addr(), home, here)
	}
	a.Rest = &n
}

// existing returns the open connection from the packet's own port, if there is one: it decides
// before any rule.
func (a *TraceAnswer) existing(p trace.Packet) *Connection {
	if p.From.Port() == 0 || len(a.Conntrack) == 0 || over[a.Conntrack[0].State] {
		return nil
	}
	return &a.Conntrack[0]
}

// over are the states after which a packet begins a new connection.
var over = map[string]bool{
	"TIME_WAIT": true, "CLOSE": true, "LAST_ACK": true, "CLOSED": true, "SHUTDOWN_ACK_SENT": true,
}

// onNode reports which endpoints of a frontend run on this node.
func onNode(row *lb.Frontend) func(netip.AddrPort) bool {
	return func(a netip.AddrPort) bool {
		if row == nil {
			return false
		}
		for _, r := range row.Routes {
			if r.To == nil {
				continue
			}
			if b, ok := r.To.Backends.Find(a); ok && b.Local {
				return true
			}
		}
		return false
	}
}

// pinned returns the open connections to addresses at which the Service has no endpoint, not even a
// terminating one.
func (i *Inspector) pinned(f Family, a *TraceAnswer) (all []trace.Pinned) {
	if a.Frontend == nil || f.Trace.Terminates ||
		f.Trace.LocalhostProxy && a.Asked.To.Addr().IsLoopback() || a.Verdict == trace.Pass {
		return nil
	}
	endpoints := map[netip.Addr]bool{}
	for _, s := range i.cfg.Store.View(ParseName(a.Service)).Slices {
		for e := range s.Endpoints.All() {
			endpoints[e.Addr] = true
		}
	}
	for _, c := range a.Conntrack {
		if over[c.State] || c.gaveUp() || !c.Backend.IsValid() || c.Backend == c.To || endpoints[c.Backend.Addr()] {
			continue
		}
		all = append(all, trace.Pinned{
			From: c.From, To: c.To, Backend: c.Backend, Proto: c.Proto, Do: deleteCommand(c),
		})
	}
	return all
}

// The longest pause between two SYNs of a client (tcp_syn_retries 6), and the time for which the
// kernel keeps a connection after one (nf_conntrack_tcp_timeout_syn_sent), in seconds.
const (
	longestSYNPause = 64
	keptAfterSYN    = 120
)

// gaveUp reports that the client has closed the connection, or would have repeated its SYN by now:
// the entry in conntrack outlives it.
func (c Connection) gaveUp() bool {
	switch c.State {
	case "FIN_WAIT", "CLOSE_WAIT":
		return true
	case "SYN_SENT":
		return !c.Answered && c.Timeout < keptAfterSYN-longestSYNPause
	}
	return false
}

// deleteCommand deletes a connection from conntrack.
func deleteCommand(c Connection) string {
	family := ""
	if c.To.Addr().Is6() {
		family = " -f ipv6"
	}
	return fmt.Sprintf("conntrack -D%s -p %s --orig-src %s --sport %d --orig-dst %s --dport %d",
		family, c.Proto, c.From.Addr(), c.From.Port(), c.To.Addr(), c.To.Port())
}

// home returns the node of the source, if that is an endpoint: another node translates its packets
// itself.
func (i *Inspector) home(p trace.Packet) string {
	if p.Host {
		return ""
	}
	var pod cluster.Place
	for _, name := range i.Names() {
		i.cfg.Store.Look(name, func(v cluster.View) { pod = placeOf(v, p.From.Addr()) })
		if pod.Node != "" {
			break
		}
	}
	return pod.Node
}

// placeOf returns where the endpoint of an address runs, if the Service has it.
func placeOf(v cluster.View, a netip.Addr) cluster.Place {
	for _, s := range v.Slices {
		for e := range s.Endpoints.All() {
			if e.Addr == a && e.Where != (cluster.Endpoint{}).Where {
				return e.Where.Value()
			}
		}
	}
	return cluster.Place{}
}
