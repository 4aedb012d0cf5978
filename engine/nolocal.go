package engine

import "kube-proxy/lb"

// NoLocal counts service ports, each name and protocol once, with traffic policy Local that have
// endpoints, but none on this node, so that packets are dropped (MT-13, SV-51, SV-52).
type NoLocal struct {
	Internal int // of cluster IPs
	External int // of NodePorts, load-balancer IPs and external IPs
}

// noLocal counts the frontends in force that drop all traffic because of policy Local. Its memory
// is proportional to the number of such frontends, its time to the changes.
type noLocal struct {
	rows  map[lb.Key]localPort
	ports map[localPort]int // their frontends
	count NoLocal
}

// localPort is a service port and the traffic policy that counts.
type localPort struct {
	service  string
	proto    lb.Proto
	external bool
}

// noLocalIn counts the frontends of a table.
func noLocalIn(t *lb.Table) noLocal {
	var n noLocal
	for f := range t.All() {
		n.set(f.Key, f)
	}
	return n
}

// set records that f is in force for the key; nil means no frontend.
func (n *noLocal) set(k lb.Key, f *lb.Frontend) {
	if was, had := n.rows[k]; had {
		delete(n.rows, k)
		n.ports[was]--
		if n.ports[was] == 0 {
			delete(n.ports, was)
			*n.counter(was)--
		}
	}
	// A frontend that drops lacks a local endpoint: source ranges are not among the routes.
	if f == nil || len(f.Routes) == 0 || f.Last().Do != lb.Drop {
		return
	}
	if n.rows == nil {
		n.rows, n.ports = map[lb.Key]localPort{}, map[localPort]int{}
	}
	p := localPort{f.Service, k.Proto, f.Kind != lb.ClusterIP}
	n.rows[k] = p
	n.ports[p]++
	if n.ports[p] == 1 {
		*n.counter(p)++
	}
}

func (n *noLocal) counter(p localPort) *int {
	if p.external {
		return &n.count.External
	}
	return &n.count.Internal
}
