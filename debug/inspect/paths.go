package inspect

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
	"kube-proxy/trace"
)

// Path is the path of one client's packet to a Service, and of its reply, through this node.
type Path struct {
	// Client is node (this node), pod (one of this node's) or outside.
	Client string `json:"client"`
	// From is the client's address, and To the frontend.
	From string `json:"from"`
	To   string `json:"to"`
	// Verdict is that of the whole node; "" if it is not known, see Note.
	Verdict trace.NodeVerdict `json:"verdict,omitempty"`
	// Lead has the culprit, the share of connections and the remedy, in the lines of trace; nil if
	// nothing stops the packet.
	Lead []string `json:"lead,omitempty"`
	// Wrong: something other than the objects decides, or table and kernel differ.
	Wrong bool `json:"wrong,omitempty"`
	// Rule: it is a rule or the policy of a chain of another program.
	Rule bool `json:"rule,omitempty"`
	// Trace is the command for the details.
	Trace string `json:"trace"`
	// Warnings are those of the rest of the node.
	Warnings []string `json:"warnings,omitempty"`
	// Passed is why eBPF programs leave the client's connection to the rules; "" if they do not.
	Passed string `json:"passed,omitempty"`
	// Note is the reason why the verdict is not known.
	Note string `json:"note,omitempty"`
}

// The clients of paths.
const (
	fromNode    = "node"
	fromPod     = "pod"
	fromOutside = "outside"
)

// outsiders are the addresses of outside clients, of ranges for documentation (RFC 5737, RFC 3849),
// unless a Service allows only other ones.
var outsiders = map[lb.Family]netip.Addr{
	lb.IPv4: netip.MustParseAddr("198.51.100.1"), lb.IPv6: netip.MustParseAddr("2001:db8:ffff::1"),
}

// Why is [Inspector.Service] with the paths of three clients to the Service's first port, or the
// named one, in each family: this node and one of its pods to the cluster IP, and an outside client
// to the first external address. It follows no packet if the objects explain the state.
func (i *Inspector) Why(ctx context.Context, said string) (*Detail, error) {
	d, err := i.Service(said)
	if err != nil || d.Severity.Bad() || i.cfg.Offline || i.cfg.Follow == nil {
		return d, err
	}
	name, port, err := i.find(said)
	if err != nil {
		return nil, err
	}
	d.Paths = []Path{}
	for _, f := range i.cfg.Families {
		if f.Settings != nil {
			i.paths(ctx, f, name, port, d)
		}
	}
	return d, nil
}

// paths adds those of a family.
func (i *Inspector) paths(ctx context.Context, f Family, name cluster.Name, port string, d *Detail) {
	ports := policy.Explain(i.cfg.Store.View(name), f.Settings(name)).Ports
	k := slices.IndexFunc(ports, func(p DetailPort) bool { return port == "" || p.Is(port) })
	if k < 0 {
		return
	}
	own := f.owned(name)
	find := func(kind lb.Kind) *lb.Frontend {
		var first *lb.Frontend
		for _, row := range own.rows {
			if _, lost := own.lost[row.Key]; lost || row.Kind != kind || row.Service != ports[k].Service ||
				row.Key.Proto.String() != ports[k].Protocol {
				continue
			}
			if first == nil || row.Key.Compare(first.Key) < 0 {
				first = row
			}
		}
		return first
	}
	if row := find(lb.ClusterIP); row != nil {
		d.Paths = append(d.Paths, i.path(ctx, fromNode, "node", row.Key.String()))
		if pod, known := i.podHere(f.Family, name); known {
			d.Paths = append(d.Paths, i.path(ctx, fromPod, pod.String(), row.Key.String()))
		}
	}
	for _, kind := range []lb.Kind{lb.LoadBalancer, lb.ExternalIP, lb.NodePort} {
		row := find(kind)
		if row == nil {
			continue
		}
		client := outsiders[f.Family]
		if len(row.Sources) > 0 && !lb.Within(row.Sources, client) {
			client = row.Sources[0].Addr()
		}
		to := row.Key.String()
		if row.Key.IsNodePort() {
			if to = i.nodePortHere(f, row.Key); to == "" {
				break // it answers at no address that others can reach
			}
		}
		d.Paths = append(d.Paths, i.path(ctx, fromOutside, client.String(), to))
		break
	}
}

// nodePortHere returns the destination of a NodePort at an address of this machine; "" without one.
// An address of the Node object may be that of a router before it.
func (i *Inspector) nodePortHere(f Family, k lb.Key) (to string) {
	if i.cfg.Local == nil {
		return ""
	}
	held, err := i.cfg.Local()
	if err != nil {
		return ""
	}
	if n := i.cfg.Store.Facts().Node; n != nil { // in mode ipvs the machine holds addresses of Services too
		slices.SortStableFunc(held, func(a, b netip.Addr) int {
			return cmp.Compare(slices.Index(n.Addrs, b), slices.Index(n.Addrs, a))
		})
	}
	f.Query(func(t *lb.Table) {
		for _, a := range held {
			if lb.FamilyOf(a) == f.Family && rank(a) == 0 && lb.Within(t.Node.NodePorts, a) {
				to = lb.Key{Addr: a, Port: k.Port, Proto: k.Proto}.String()
				return
			}
		}
	})
	return to
}

// path follows a packet to a frontend.
func (i *Inspector) path(ctx context.Context, client, from, to string) Path {
	p := Path{Client: client, From: from, To: to, Trace: "kube-proxy trace " + from + " " + to}
	a, err := i.Trace(ctx, TraceQuery{From: from, To: to})
	if err != nil {
		p.Note = err.Error()
		return p
	}
	p.From = a.Packet.From
	if a.Kernel != nil {
		p.Passed = a.Kernel.Passed
	}
	if a.Rest == nil {
		p.Note = "the rest of this node was not checked"
		if len(a.Notes) > 0 {
			p.Note = a.Notes[len(a.Notes)-1]
		}
		return p
	}
	p.Verdict, p.Wrong, p.Warnings = a.Rest.Verdict, a.Wrong(), a.Rest.Warnings
	p.Rule = a.Rest.Harmful() && (a.Rest.Verdict == trace.Translated || strings.Contains(a.Rest.By, ", chain "))
	if lead := a.lead(); lead != "" {
		p.Lead = strings.Split(strings.TrimSuffix(lead, "\n"), "\n")
	}
	return p
}

// podHere returns the address of an endpoint on this node that is not the node itself: of another
// Service if there is one, because a client is seldom its own server.
func (i *Inspector) podHere(fam lb.Family, not cluster.Name) (pod netip.Addr, known bool) {
	local, err := i.local()
	if err != nil {
		return pod, false
	}
	here := i.Node()
	pods := func(of cluster.Name, use func(netip.Addr)) {
		i.cfg.Store.Look(of, func(v cluster.View) {
			for _, s := range v.Slices {
				for e := range s.Endpoints.All() {
					if e.OnNode(here) && !e.Terminating && lb.FamilyOf(e.Addr) == fam &&
						!slices.Contains(local, e.Addr) {
						use(e.Addr)
					}
				}
			}
		})
	}
	own := map[netip.Addr]bool{}
	pods(not, func(a netip.Addr) { pod, known, own[a] = a, true, true })
	for _, name := range i.Names() {
		other := false
		pods(name, func(a netip.Addr) {
			if !other && !own[a] {
				pod, known, other = a, true, true
			}
		})
		if other {
			break
		}
	}
	return pod, known
}
