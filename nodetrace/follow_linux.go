package nodetrace

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	"kube-proxy/internal/netlink"
	rtnl "kube-proxy/internal/netlink/route"
	"kube-proxy/internal/nft/rule"
	"kube-proxy/lb"
	"kube-proxy/nodetrace/internal/hooks"
	"kube-proxy/trace"
)

// Filter is the packet filter of the node.
type Filter interface {
	// Pass takes a packet through a hook.
	Pass(context.Context, hooks.Hook, hooks.Packet) ([]hooks.Way, error)
	// Notes says what was not read, because of its size.
	Notes() []string
	// Path returns the rules that matched so far, a line each.
	Path() []string
}

// Ask reads the packet filter, and follows a packet and its reply through the node. An error is of
// reading.
func Ask(ctx context.Context, q Question) (trace.Node, error) {
	filter, err := hooks.Open(ctx, lb.FamilyOf(q.Packet.To.Addr()))
	if err != nil {
		return trace.Node{}, err
	}
	defer filter.Close()
	return Follow(ctx, q, filter)
}

// Follow follows a packet and its reply through the node. An error is of reading.
func Follow(ctx context.Context, q Question, filter Filter) (trace.Node, error) {
	conn, err := netlink.Open(netlink.Config{Protocol: unix.NETLINK_ROUTE})
	if err != nil {
		return trace.Node{}, fmt.Errorf("query routes: %w", err)
	}
	defer conn.Close()
	family := rule.IPOf(lb.FamilyOf(q.Packet.To.Addr())).Proto
	w := &walk{q: q}
	w.sysctl, w.conntrack = sysctl, conntrack
	w.route = func(q rtnl.Query) (rtnl.Route, error) { return rtnl.Lookup(ctx, conn, q) }
	w.hops = func(q rtnl.Query) (int, error) { return rtnl.Legs(ctx, conn, q) }
	if w.links, err = rtnl.Links(ctx, conn); err != nil {
		return trace.Node{}, err
	}
	if w.neighbours, err = rtnl.Neighbours(ctx, conn, family); err != nil {
		return trace.Node{}, err
	}
	w.pass = func(h hooks.Hook, p hooks.Packet) ([]hooks.Way, error) { return filter.Pass(ctx, h, p) }
	if slices.ContainsFunc(w.links, func(l rtnl.Link) bool { return l.Kind == "bridge" }) {
		if w.ports, err = rtnl.Ports(ctx, conn); err == nil {
			w.stations, err = rtnl.Stations(ctx, conn)
		}
		if err != nil {
			return trace.Node{}, err
		}
	}
	if w.rules, err = rtnl.Rules(ctx, conn, family); err != nil {
		return trace.Node{}, err
	}
	w.addresses = sync.OnceValues(func() ([]rtnl.Address, error) { return rtnl.Addresses(ctx, conn, 0) })
	if w.ipsec, err = readPolicies(ctx, family); err != nil {
		return trace.Node{}, err
	}
	whole := func(w *walk) (trace.Node, error) {
		w.follow()
		if w.err != nil {
			return trace.Node{}, w.err
		}
		w.doubts = append(w.doubts, filter.Notes()...)
		if err := w.programs(ctx, conn, family); err != nil {
			return trace.Node{}, err
		}
		return w.judge(), w.err
	}
	n, err := whole(w)
	n.Rules = filter.Path()
	if err != nil {
		return trace.Node{}, err
	}
	return n, w.compareUplinks(&n, whole)
}

// sysctl reads a setting below net of the thread's network namespace; "" without one.
func sysctl(path string) string {
	value, _ := os.ReadFile("/proc/sys/net/" + path)
	return strings.TrimSpace(string(value))
}

// conntrack sums the counters of /proc/net/stat/nf_conntrack, one line of hexadecimal numbers for
// each processor; 0 if the kernel has none.
func conntrack() (dropped, evicted uint64) {
	text, _ := os.ReadFile("/proc/thread-self/net/stat/nf_conntrack")
	var names []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if names == nil {
			names = fields
			continue
		}
		for i, field := range fields[:min(len(fields), len(names))] {
			switch n, _ := strconv.ParseUint(field, 16, 64); names[i] {
			case "drop":
				dropped += n
			case "early_drop":
				evicted += n
			}
		}
	}
	return dropped, evicted
}

// programs names what sees packets on this node and is not evaluated.
func (w *walk) programs(ctx context.Context, conn netlink.Asker, family byte) error {
	qdiscs, err := rtnl.Qdiscs(ctx, conn)
	if err != nil {
		return err
	}
	for _, dir := range []struct {
		links       []int32
		parent      uint32
		tcx, netkit uint32
		name        string
	}{{w.in, rtnl.FilterIngress, kernel.BPFTcxIngress, kernel.BPFNetkitPeer, "ingress"},
		{w.out, rtnl.FilterEgress, kernel.BPFTcxEgress, kernel.BPFNetkitPrimary, "egress"}} {
		for _, index := range w.withPorts(dir.links) {
			l := w.link(index)
			if l.XDP && dir.name == "ingress" {
				w.doubt("program of XDP on %s", l.Name)
			}
			parents := []rtnl.Qdisc{{Handle: dir.parent, Kind: dir.name}}
			for _, q := range qdiscs {
				switch {
				case q.Link != index || dir.name == "ingress":
				case !strings.Contains(orderly, " "+q.Kind+" "):
					w.doubt("qdisc %s on %s", q.Kind, l.Name)
				case q.Handle != 0:
					parents = append(parents, rtnl.Qdisc{Handle: q.Handle, Kind: "qdisc " + q.Kind})
				}
			}
			for _, p := range parents {
				filters, err := rtnl.Filters(ctx, conn, index, p.Handle)
				if err != nil {
					return err
				}
				for _, f := range filters {
					w.doubt("filter of tc on %s, %s: %s", l.Name, p.Kind, f)
				}
			}
			w.attached(uint32(index), dir.tcx, fmt.Sprintf("BPF program of tcx on %s, %s", l.Name, dir.name))
			if l.Kind == "netkit" {
				w.attached(uint32(index), dir.netkit, fmt.Sprintf("BPF program of netkit on %s, %s", l.Name, dir.name))
			}
			w.unusual(l)
		}
	}
	w.cgroup()
	if w.listens {
		w.attachedAt("/proc/thread-self/ns/net", "this network namespace", skLookup)
	}
	w.atHooks(uint32(family))
	return nil
}

// orderly are the kinds of queueing disciplines that drop packets by their filters, or under load.
const orderly = " noqueue pfifo bfifo pfifo_fast pfifo_head_drop mq mqprio fq fq_codel fq_pie codel pie sfq sfb cake " +
	"htb hfsc tbf prio multiq drr qfq ets red gred choke hhf skbprio cbs etf taprio dualpi2 clsact ingress "

// unusual names an interface whose packets also take a way that is not followed.
func (w *walk) unusual(l rtnl.Link) {
	switch {
	case l.Kind == "vrf" || w.link(l.Master).Kind == "vrf":
		w.doubt("VRF of %s: its packets meet rules with the VRF's name too", l.Name)
	case l.Kind == "xfrm" || l.Kind == "vti" || l.Kind == "vti6":
		w.doubt("IPsec by interface %s", l.Name)
	case slices.Contains([]string{"vxlan", "geneve", "wireguard", "ipip", "sit", "gre", "ip6gre", "ip6tnl"}, l.Kind):
		w.warn("Not evaluated: the outer packets of %s, which is of kind %s.", l.Name, l.Kind)
	}
}

// atHooks warns about BPF programs at the hooks of netfilter. They do not make the answer unknown,
// because the kernel does not report their network namespace.
func (w *walk) atHooks(family uint32) {
	all, err := kernel.BPFAtHooks(family)
	if err != nil {
		w.warn("Not evaluated: BPF programs of netfilter, which cannot be listed: %v.", err)
	}
	for _, p := range all {
		w.warn("Not evaluated: BPF program of netfilter at %s, priority %d: %s (of this or another network namespace).",
			hooks.Hook(p.Hook), p.Priority, p.Name)
	}
}

// withPorts adds to interfaces the ports of those that are bridges, each once.
func (w *walk) withPorts(links []int32) []int32 {
	all := slices.Clone(links)
	for _, l := range w.links {
		if slices.Contains(links, l.Master) && w.link(l.Master).Kind == "bridge" {
			all = append(all, l.Index)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// attached names BPF programs of a target, but for those whose answer is known.
func (w *walk) attached(target, typ uint32, what string) {
	all, err := kernel.BPFAttached(target, typ)
	if err != nil {
		w.doubt("%s: cannot be listed: %v", what, err)
	}
	for _, p := range all {
		if own := w.programsOfMode(); own == nil || !slices.Contains(own.IDs, p.ID) {
			w.doubt("%s: %s", what, p.Name)
		}
	}
}

// attachedAt names the programs of the file of a cgroup or a network namespace, by types.
func (w *walk) attachedAt(path, where string, types map[uint32]string) {
	f, err := os.Open(path)
	if err != nil {
		w.doubt("BPF programs of %s: cannot be listed: %v", where, err)
		return
	}
	defer f.Close()
	for _, typ := range slices.Sorted(maps.Keys(types)) {
		w.attached(uint32(f.Fd()), typ, "BPF program of "+where+", "+types[typ])
	}
}

// programsOfMode are those of the proxy's mode that meet sockets; nil for none.
func (w *walk) programsOfMode() *trace.Programs {
	if w.q.Kernel == nil {
		return nil
	}
	return w.q.Kernel.Programs
}

// skLookup is where programs choose the socket of a packet for this node.
var skLookup = map[uint32]string{kernel.BPFSkLookup: "sk_lookup"}

// cgroupHooks are where programs of the root cgroup see packets and sockets, by IP family.
var cgroupHooks = map[bool]map[uint32]string{
	false: {kernel.BPFCgroupIngress: "ingress", kernel.BPFCgroupEgress: "egress", kernel.BPFCgroupConnect4: "connect",
		kernel.BPFCgroupSendmsg4: "sendmsg", kernel.BPFCgroupRecvmsg4: "recvmsg"},
	true: {kernel.BPFCgroupIngress: "ingress", kernel.BPFCgroupEgress: "egress", kernel.BPFCgroupConnect6: "connect",
		kernel.BPFCgroupSendmsg6: "sendmsg", kernel.BPFCgroupRecvmsg6: "recvmsg"},
}

// cgroup names the programs of the root cgroup, or of that which the mode was given in its place:
// they see the sockets of this node and of its pods.
func (w *walk) cgroup() {
	path, err := kernel.Cgroup2(kernel.MountInfo)
	where := "the root cgroup"
	if own := w.programsOfMode(); own != nil {
		path, where, err = own.Cgroup, "cgroup "+own.Cgroup, nil
	}
	switch {
	case err != nil:
		w.doubt("BPF programs of %s: cannot be listed: %v", where, err)
	case path != "": // else there is no cgroup v2
		w.attachedAt(path, where, cgroupHooks[w.q.Packet.To.Addr().Is6()])
	}
}
