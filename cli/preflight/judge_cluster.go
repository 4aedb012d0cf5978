package preflight

import (
	"cmp"
	"fmt"
	"strings"
)

func clusterKinds() []Kind {
	return []Kind{
		{ID: "api-server", Everywhere: true, Worst: Error, judge: (*judge).server,
			Looks: "whether the API server answers, and its version",
			Why:   "Without the API server a starting proxy serves nothing; a running one keeps its last state.",
			Remedy: "Check that --kubeconfig (clientConnection.kubeconfig) or --master names it, that its address is " +
				"not a Service address, and that no firewall blocks it."},
		{ID: "rights", Everywhere: true, Worst: Error, judge: (*judge).rights,
			Looks: "whether the credentials allow the proxy's requests",
			Why: "Without Services and EndpointSlices nothing is served. Without the Node, the zone, pod CIDRs " +
				"and node addresses are unknown. Without events, problems are not reported.",
			Remedy: "Bind the proxy's user to the ClusterRole system:node-proxier."},
		{ID: "node", Everywhere: true, Worst: Error, judge: (*judge).node,
			Looks: "whether a Node with the proxy's node name exists",
			Why: "The proxy finds its local endpoints, addresses, zone and pod CIDRs by that name. With a wrong " +
				"name, Services with a local policy have no endpoints here, and load balancers skip this node.",
			Remedy: "Set --hostname-override to the name in kubectl get nodes; in a pod, set $NODE_NAME from " +
				"spec.nodeName."},
	}
}

func (j *judge) server() {
	c := j.facts.Cluster
	switch {
	case c == nil:
		j.ok("", "Services come from a folder")
	case c.Version.Err != nil:
		j.wrong("", "%s does not answer: %s", cmp.Or(c.Server, "the API server"), oneLine(c.Version.Err))
	default:
		j.ok("", "%s is %s", c.Server, c.Version.Value)
	}
}

// needless are requests without which all Services are served.
func needless(denied string) bool {
	return strings.Contains(denied, "events") || strings.Contains(denied, "servicecidrs")
}

func (j *judge) rights() {
	c := j.facts.Cluster
	if c == nil || c.Version.Err != nil {
		return
	}
	denied, ok := of(j, "", c.Denied)
	if !ok {
		return
	}
	for _, d := range denied {
		sev := Error
		if needless(d) {
			sev = Warning
		}
		j.add(sev, d, "not allowed")
	}
	if len(denied) == 0 {
		j.ok("", "all requests of the proxy are allowed")
	}
}

func (j *judge) node() {
	c := j.facts.Cluster
	differs := ""
	if !strings.EqualFold(j.NodeName, j.Hostname) && j.Hostname != "" {
		differs = fmt.Sprintf("; the host name is %q", j.Hostname)
	}
	if c == nil || c.Version.Err != nil {
		j.info("", "the proxy's node name is %q%s", j.NodeName, differs)
		return
	}
	node, ok := of(j, "", c.Node)
	switch {
	case !ok:
	case !node.Found:
		j.wrong("", "there is no Node %q%s", j.NodeName, differs)
	case len(node.Addrs) > 0 && j.facts.Links.Err == nil && !j.hasAddress(node):
		j.warn("", "the Node %q has the address %s, which this machine lacks%s", j.NodeName, node.Addrs[0], differs)
	default:
		j.ok("", "the Node %q exists%s", j.NodeName, differs)
	}
}

// hasAddress reports whether one of the Node's addresses is this machine's.
func (j *judge) hasAddress(n Node) bool {
	for _, l := range j.facts.Links.Value {
		for _, a := range l.Addrs {
			for _, b := range n.Addrs {
				if a.Addr() == b {
					return true
				}
			}
		}
	}
	return false
}
