package engine

import "kube-proxy/lb"

// NoLocal counts service ports, each name and protocol once, whose traffic policy is Local and which have endpoints,
// but none on this node, so that packets are dropped (MT-13, SV-51, SV-52).
type NoLocal struct {
	Internal int // of cluster IPs
	External int // of NodePorts, load-balancer IPs and external IPs
}

// noLocal counts the rows in force that drop everything that policy Local leaves over. Its memory follows the number
// of such rows, its time the changes.
type noLocal struct {
	rows  map[lb.Key]localPort
	ports map[localPort]int // their rows
	count NoLocal
}

// localPort is a service port, and which of its traffic policies counts.
type localPort struct {
	service  string
	proto    lb.Proto
	external bool
}

// noLocalIn counts the rows of a table.
func noLocalIn(t *lb.Table) noLocal {
	var n noLocal
	for f := range t.All() {
		n.set(f.Key, f)
	}
	return n
}

// set says that f is in force for the key; nil, that nothing is.
func (n *noLocal) set(k lb.Key, f *lb.Frontend) {
	if was, had := n.rows[k]; had {
		delete(n.rows, k)
		n.ports[was]--
		if n.ports[was] == 0 {
			delete(n.ports, was)
			*n.counter(was)--
		}
	}
	// A row drops for want of a local endpoint only: source ranges are not among the routes.
	if f == nil || len(f.Routes) == 0 || f.Routes[len(f.Routes)-1].Do != lb.Drop {
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
