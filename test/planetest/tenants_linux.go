package planetest

import (
	"fmt"
	"hash/maphash"
	"iter"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/nodetrace"
	"kube-proxy/policy"
	"kube-proxy/test/adversary"
	"kube-proxy/test/scenario"
	"kube-proxy/test/seedtest"
	"kube-proxy/trace"
)

// Tenants proves that adding any objects of one namespace does not change the kernel's state at
// keys of other namespaces (TN-01): random tenants are added one after the other, each in its own
// namespace, and removed. Each time packets to the keys of others must have the same outcome as
// before, and the kernel must list the same lines about them. A tenant takes a key of another only
// by its kind (SV-24), or for its health check NodePort at an address of the node (TN-98). walks is
// the number of worlds in each family.
//
// fresh gives the calling goroutine an empty kernel, as in [Verbs].
func Tenants(t *testing.T, walks int, fresh func(testing.TB) Kernel) {
	seed := seedtest.Of(t)
	for _, f := range families {
		for walk := range uint64(walks) {
			t.Run(fmt.Sprintf("%s/%d", f, walk), func(t *testing.T) {
				n := newNeighbours(t, f, fresh)
				var came []*adversary.Tenant
				for i := range uint64(3) {
					came = append(came, n.tenant(seed+3*walk+i))
					n.acts(came[i].Namespace, "comes", everything(came[i])...)
				}
				for _, tenant := range came {
					n.acts(tenant.Namespace, "goes", tenant.Leave()...)
				}
				for _, p := range n.problems {
					t.Error(p)
				}
			})
		}
	}
}

func (n *neighbours) errorf(format string, args ...any) {
	n.problems = append(n.problems, fmt.Sprintf(format, args...))
}

// everything is each object that a tenant has, once.
func everything(t *adversary.Tenant) (out []cluster.Event) {
	for i := range 4 {
		out = append(out, cluster.ServiceSet{Service: t.Service(i)})
		for k := range 2 {
			out = append(out, cluster.SliceSet{Slice: t.Slice(i, k)})
		}
	}
	return out
}

// neighbours are Services of several namespaces in one kernel.
type neighbours struct {
	*testing.T
	World
	fresh    func(testing.TB) Kernel
	plane    Plane
	kernel   Kernel
	store    *cluster.Store
	table    *lb.Table
	settings policy.Settings
	victims  adversary.Victims
	created  int64
	tenants  int
	seed     maphash.Seed
	known    map[question]treatment // the last known behaviour of the kernel
	problems []string
}

// honestOnes are the namespaces that exist before the tenants.
const honestOnes = 4

func newNeighbours(t *testing.T, f lb.Family, fresh func(testing.TB) Kernel) *neighbours {
	n := &neighbours{T: t, World: World{Family: f}, store: cluster.NewStore("node1"), seed: maphash.MakeSeed(),
		fresh: fresh, kernel: fresh(t)}
	node := n.Node()
	n.settings = policy.Settings{Family: f, ClusterCIDRs: node.Pods.Prefixes, NodePortAddrs: policy.NodePortAddrs{
		Primary: true}}
	n.victims = adversary.Victims{Special: adversary.Special(), Node: []netip.Addr{n.Addr(192, 1)}, NodeName: "node1",
		Free: []netip.Addr{n.Addr(10, 9000), n.Addr(10, 9001)}, Ports: []uint16{80, 8080, 53, 31000, 31001},
		NodePorts: []uint16{30080, 30081}, Targets: []uint16{80, 8080}}
	n.store.Fold(cluster.NodeSet{Node: &cluster.Node{Name: "node1", Addrs: n.victims.Node}})
	n.store.Fold(cluster.CIDRsListed{CIDRs: []*cluster.ServiceCIDR{{Name: "kubernetes", Prefixes: node.ServiceCIDRs}}})
	n.table = &lb.Table{Family: f, Node: policy.ResolveNode(n.store.Facts(), n.settings)}
	for i := range honestOnes {
		n.replace(n.honest(i)...)
	}
	n.plane = n.newPlane(n.table)
	return n
}

// newPlane returns a plane over the kernel that has the table in force.
func (n *neighbours) newPlane(want *lb.Table) Plane {
	p := (&verbs{TB: n.T, Kernel: n.kernel, w: n.World}).new(n.kernel.New)
	if _, err := ResetAll(n.Context(), p, want); err != nil {
		n.Fatal(err)
	}
	return p
}

// honest has addresses of each kind, which are known to tenants.
func (n *neighbours) honest(i int) []cluster.Event {
	name := cluster.Name{Namespace: fmt.Sprint("honest", i), Name: "web"}
	s := &cluster.Service{
		Name: name, Created: 1, Type: cluster.TypeLoadBalancer, ClusterIPs: []netip.Addr{n.Addr(10, 1+i)},
		LoadBalancerIPs: []netip.Addr{n.Addr(198, 1+i)}, ExternalIPs: []netip.Addr{n.Addr(203, 1+i)},
		ExternalPolicy: cluster.TrafficPolicy(i % 2), AffinitySeconds: int32(i/2) * 10800,
		Ports: []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80, NodePort: uint16(31000 + i)},
			{Name: "dns", Protocol: cluster.UDP, Port: 53, NodePort: uint16(31100 + i)}},
	}
	if i == 3 {
		s.SourceRanges = []netip.Prefix{netip.PrefixFrom(n.Addr(203, 0), s.ClusterIPs[0].BitLen()-8)}
	}
	sl := &cluster.Slice{Name: name, Service: name, IPv6: n.Family == lb.IPv6,
		Ports: []cluster.SlicePort{{Name: "http", Protocol: cluster.TCP, Port: 8080},
			{Name: "dns", Protocol: cluster.UDP, Port: 53}}}
	for k := range 3 {
		pod := n.Addr(100, 10*i+k+1)
		sl.Endpoints = sl.Endpoints.With(cluster.Endpoint{Addr: pod, Where: cluster.At(fmt.Sprint("node", k), ""),
			Ready: true, Serving: true})
		n.victims.Pods = append(n.victims.Pods, pod)
	}
	n.victims.ClusterIPs = slices.Concat(n.victims.ClusterIPs, s.ClusterIPs, s.LoadBalancerIPs, s.ExternalIPs)
	n.victims.NodePorts = append(n.victims.NodePorts, uint16(31000+i))
	return []cluster.Event{cluster.ServiceSet{Service: s}, cluster.SliceSet{Slice: sl}}
}

func (n *neighbours) tenant(seed uint64) *adversary.Tenant {
	n.tenants++
	first := 100 * n.tenants
	return adversary.New(fmt.Sprint("tenant", n.tenants), seed, n.victims, func(i int) []netip.Addr {
		return []netip.Addr{n.Addr(10, first+i)}
	})
}

// replace brings events into the table. Later Services are younger, as in the API server.
func (n *neighbours) replace(events ...cluster.Event) (changed []lb.Change) {
	for _, ev := range events {
		if set, ok := ev.(cluster.ServiceSet); ok {
			n.created++
			set.Service.Created = n.created
		}
		for _, ref := range n.store.Fold(ev).Services {
			v := n.store.View(ref.Name)
			o := lb.Owner{Name: ref.Name.String()}
			if v.Service != nil {
				o.Created = v.Service.Created
			}
			more, _ := n.table.Replace(o, policy.Resolve(v, n.settings))
			changed = append(changed, more...)
		}
	}
	return latest(changed)
}

// latest is the last change of each key, in the order of keys.
func latest(all []lb.Change) []lb.Change {
	return slices.SortedFunc(slices.Values(scenario.Fold(all)),
		func(a, b lb.Change) int { return a.Key.Compare(b.Key) })
}

// acts lets one namespace write objects, and compares the state of all others.
func (n *neighbours) acts(namespace, does string, events ...cluster.Event) {
	n.Helper()
	before, lines, rows := n.held(namespace), n.lines(n.plane), n.rows()
	was := n.answers(n.some(before), n.known)
	frees := func(lb.Key) bool { return false }
	moved := n.claimed()
	if does == "goes" && n.kernel.FirstKeeps {
		frees = n.frees(namespace)
	}
	n.apply(n.plane, n.replace(events...))
	after := n.held(namespace)
	var taken, claims []lb.Change
	for k := range before {
		switch now := n.table.Get(k); {
		case now.Equal(rows[k]):
		case (precedes(now, rows[k]) || n.checked(now, rows[k], events)) && after[k] == "":
			taken = append(taken, lb.Change{Key: k, Old: rows[k]})
		default:
			n.errorf("%s %s: it changes a row of another, against SV-24: %s, and before %s", namespace, does, now,
				rows[k])
		}
		if claim := n.claim(k); claim != nil && !claim.Equal(rows[claim.Key]) {
			claims = append(claims, lb.Change{Key: claim.Key, New: claim})
		}
	}
	maps.Copy(moved, n.claimed())
	n.known = n.answers(n.some(after), nil)
	for at, now := range n.known {
		was, asked := was[at]
		if !asked || before[at.key] != after[at.key] || frees(at.key) {
			continue
		}
		if n.kernel.Sockets && moved[at.key] {
			if n.leadsToServices(at.key) { // the packet path refuses there what a socket reaches
				continue
			}
			was.masquerade = now.masquerade
		}
		if now != was {
			n.errorf("%s %s: packets %s, which %s has, meet %s, and before %s", namespace, does, at, before[at.key],
				now, was)
		}
	}
	if does == "goes" {
		return // its own lines are removed
	}
	lost := missing(lines, n.lines(n.plane))
	if len(lost) > 0 && len(taken)+len(claims) > 0 {
		lost = missing(lost, n.allowed(rows, taken, claims))
	}
	for l := range lost {
		n.errorf("%s %s: the kernel has no longer: %s", namespace, does, l)
	}
}

// precedes reports whether a new Service has the key of an older one: only as an address of a kind
// with priority (SV-24).
func precedes(now, was *lb.Frontend) bool {
	order := []lb.Kind{lb.ClusterIP, lb.LoadBalancer, lb.ExternalIP}
	return now != nil && slices.Contains(order, now.Kind) && slices.Index(order, now.Kind) < slices.Index(order,
		was.Kind)
}

// checked reports whether the node answers in place of a Service, because a health check NodePort
// of a Service that came has the port of an address of the node (TN-98).
func (n *neighbours) checked(now, was *lb.Frontend, came []cluster.Event) bool {
	claimed := was.Kind == lb.ExternalIP || was.Kind == lb.LoadBalancer
	if now != nil || !claimed || was.Key.Proto != lb.TCP || !slices.Contains(n.victims.Node, was.Key.Addr) {
		return false
	}
	return slices.ContainsFunc(came, func(ev cluster.Event) bool {
		set, is := ev.(cluster.ServiceSet)
		return is && set.Service.HasHealthCheck() && set.Service.HealthCheckNodePort == was.Key.Port
	})
}

// missing are the lines that was has more often than is, and the difference.
func missing(was, is map[string]int) map[string]int {
	out := map[string]int{}
	for l, count := range was {
		if count > is[l] {
			out[l] = count - is[l]
		}
	}
	return out
}

// allowed returns the lines that a kernel with those frontends loses because of the taken ones and
// the claims alone (SV-24, SV-65).
func (n *neighbours) allowed(rows map[lb.Key]*lb.Frontend, taken, claims []lb.Change) (lines map[string]int) {
	n.Run("allowed", func(t *testing.T) {
		alone := *n
		alone.T, alone.kernel = t, n.fresh(t)
		p := alone.newPlane(&lb.Table{Family: n.Family, Node: n.table.Node})
		var come []lb.Change
		for k, row := range rows {
			come = append(come, lb.Change{Key: k, New: row})
		}
		alone.apply(p, latest(come))
		before := alone.lines(p)
		alone.apply(p, latest(taken))
		alone.apply(p, latest(claims))
		lines, n.problems = missing(before, alone.lines(p)), alone.problems
	})
	return lines
}

// frees reports whether a namespace to be removed had an address that a key of others needs: as a
// Service's where the key has an endpoint, or as an endpoint where the key is.
func (n *neighbours) frees(namespace string) func(lb.Key) bool {
	services, endpoints := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for f := range n.table.All() {
		if strings.HasPrefix(f.Service, namespace+"/") {
			services[f.Key.Addr] = true
			for a := range backends(f) {
				endpoints[a] = true
			}
		}
	}
	return func(k lb.Key) bool {
		if endpoints[k.Addr] {
			return true
		}
		for a := range backends(n.table.Get(k)) {
			if services[a] {
				return true
			}
		}
		return false
	}
}

// backends returns the backend addresses of a frontend.
func backends(f *lb.Frontend) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for _, r := range f.Routes {
			if r.To == nil {
				continue
			}
			for b := range r.To.Backends.All() {
				if !yield(b.Addr.Addr()) {
					return
				}
			}
		}
	}
}

// apply has the plane write changes, and each alone if it refuses some, as the engine does.
func (n *neighbours) apply(p Plane, changes []lb.Change) {
	for piece := range slices.Chunk(changes, 50) {
		if err := ApplyAll(n.Context(), p, piece); err == nil {
			continue
		}
		for i := range piece {
			if err := ApplyAll(n.Context(), p, piece[i:i+1]); err != nil && piece[i].New != nil &&
				strings.HasPrefix(piece[i].New.Service, "honest") {
				n.errorf("refused: %v", err)
			}
		}
	}
}

// some are the keys for queries to the kernel: all of honest Services, and a few of tenants.
func (n *neighbours) some(keys map[lb.Key]string) map[lb.Key]string {
	out := map[lb.Key]string{}
	tenants := 0
	for k, service := range keys {
		if !strings.HasPrefix(service, "honest") {
			tenants++
			if tenants > 10 {
				continue
			}
		}
		out[k] = service
	}
	return out
}

// held are the keys that other namespaces hold, each with its service port.
func (n *neighbours) held(but string) map[lb.Key]string {
	keys := map[lb.Key]string{}
	for f := range n.table.All() {
		if ns, _, _ := strings.Cut(f.Service, "/"); ns != but && f.Kind != lb.HealthCheck {
			keys[f.Key] = f.Service
		}
	}
	return keys
}

// rows returns all frontends in force.
func (n *neighbours) rows() map[lb.Key]*lb.Frontend {
	rows := map[lb.Key]*lb.Frontend{}
	for f := range n.table.All() {
		rows[f.Key] = f
	}
	return rows
}

// question is a packet to a key.
type question struct {
	key  lb.Key
	from netip.Addr
}

func (q question) String() string { return fmt.Sprintf("%s → %s", q.from, q.key) }

// treatment is the kernel's treatment of packets.
type treatment struct {
	meet       string
	masquerade bool
}

func (t treatment) String() string { return fmt.Sprintf("%s, masquerade %t", t.meet, t.masquerade) }

// claimed are the keys with an endpoint that is a frontend too.
func (n *neighbours) claimed() map[lb.Key]bool {
	keys := map[lb.Key]bool{}
	for f := range n.table.All() {
		for _, r := range f.Routes {
			if r.To == nil {
				continue
			}
			for b := range r.To.Backends.All() {
				at := lb.Key{Addr: b.Addr.Addr(), Port: b.Addr.Port(), Proto: f.Key.Proto}
				if n.table.Get(at) != nil {
					keys[f.Key] = true
				}
			}
		}
	}
	return keys
}

// leadsToServices reports whether a frontend has an endpoint at an address for Services.
func (n *neighbours) leadsToServices(k lb.Key) bool {
	for a := range backends(n.table.Get(k)) {
		if lb.Within(n.table.Node.ServiceCIDRs, a) {
			return true
		}
	}
	return false
}

// answers returns the kernel's treatment of packets to the keys, each from a pod, the node or
// outside; known are answers that still hold.
func (n *neighbours) answers(keys map[lb.Key]string, known map[question]treatment) map[question]treatment {
	look, ok := tracer(n.plane)
	if !ok {
		n.Fatal("the plane does not report the kernel's treatment of packets")
	}
	node := n.victims.Node[0]
	out := map[question]treatment{}
	for k := range keys {
		to := netip.AddrPortFrom(k.Addr, k.Port)
		if k.IsNodePort() {
			to = netip.AddrPortFrom(node, k.Port)
			if n.claim(k) != nil {
				continue
			}
		}
		at := question{k, []netip.Addr{n.Addr(100, 500), node, n.Addr(203, 77)}[maphash.Comparable(n.seed, k)%3]}
		if is, fresh := known[at]; fresh {
			out[at] = is
			continue
		}
		is, err := look.TracePacket(n.Context(), trace.Packet{From: netip.AddrPortFrom(at.from, 0),
			Host: at.from == node, To: to, Here: k.IsNodePort(), Proto: k.Proto}, nodetrace.Kernel)
		if err != nil {
			n.Fatalf("follow a packet %s: %v", at, err)
		}
		if n.kernel.Balances { // its distribution of clients depends on its measurements, and is no state of the kernel
			for i := range is.Backends {
				is.Backends[i].Share = 0
			}
		}
		meet := fmt.Sprintf("%s drains %t to", is.Verdict, is.Drains)
		for _, b := range is.Backends {
			meet += fmt.Sprintf(" %s %.4f %t", b.Address, b.Share, b.Hairpin)
		}
		out[at] = treatment{meet, is.Masquerade}
	}
	return out
}

// claim returns the frontend of a Service that claims the node's address, and so the port of a
// NodePort there (SV-65); nil if none does.
func (n *neighbours) claim(k lb.Key) *lb.Frontend {
	if !k.IsNodePort() {
		return nil
	}
	return n.table.Get(lb.Key{Addr: n.victims.Node[0], Port: k.Port, Proto: k.Proto})
}

// dispatch is the name of a chain in front of its rule: as Services are added, rules move between
// chains that only dispatch.
var dispatch = regexp.MustCompile(`^(nat|filter) KUBE-PORTALS-\S+ `)

// branches are sub-chains of the dispatch trees of modes iptables and userspace, and the rules that
// jump to them: each new Service may split the trees at another place. answers checks that packets
// still find their rules.
var branches = regexp.MustCompile(`KUBE-(SVC-TO|SVC-NP|SERVICES|NODEPORTS|EXTERNAL|EXTNP|` +
	`PROXY-FW|PORTALS-[CN]|NODEPORT-[CLN])-([0-9A-F]+|H[0-9A-Z]{12})$`)

// own are the chains of a service port or endpoint: their rules do not move.
var own = regexp.MustCompile(`^(nat|filter) KUBE-(SVC|SVL|EXT|FW|SEP)-[A-Z2-7]{16}$`)

func (n *neighbours) lines(p Plane) map[string]int {
	text, err := Dump(p)
	if err != nil {
		n.Fatal(err)
	}
	lines := map[string]int{}
	chain := "" // whose rules follow, each with four spaces before it
	for l := range strings.Lines(text) {
		l = strings.TrimSuffix(l, "\n")
		rule, inChain := strings.CutPrefix(l, "    ")
		switch {
		case !inChain:
			chain = own.FindString(l)
		case chain != "":
			rule = chain + " " + rule
		}
		if !branches.MatchString(rule) {
			lines[dispatch.ReplaceAllString(rule, "")]++
		}
	}
	return lines
}
