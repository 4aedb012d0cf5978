package preflight

import (
	"fmt"
	"strings"
)

func clusterKinds() []Kind {
	return []Kind{
		{ID: "api-server", Everywhere: true, Worst: Error, judge: (*judge).server,
			Looks:  "whether the API server answers, and its version",
			Why:    "Without the API server a proxy that starts serves nothing; one that runs goes on with what it knows.",
			Remedy: "See that --kubeconfig (clientConnection.kubeconfig) or --master names it, that its address is not one that a proxy has to serve, and that no firewall is between."},
		{ID: "rights", Everywhere: true, Worst: Error, judge: (*judge).rights,
			Looks:  "whether the credentials may do what the proxy does",
			Why:    "Without Services and EndpointSlices nothing is served; without the Node, zones, pod CIDRs and the node's addresses are not known; without events nobody is told.",
			Remedy: "Bind the proxy's user to the ClusterRole system:node-proxier."},
		{ID: "node", Everywhere: true, Worst: Error, judge: (*judge).node,
			Looks:  "whether there is a Node of the name that the proxy goes by",
			Why:    "By that name the proxy finds its own endpoints, addresses, zone and pod CIDRs. With a wrong one Services with a local policy have no endpoints here, and load balancers are told to leave this node out.",
			Remedy: "Set --hostname-override to the name that kubectl get nodes shows; in a pod, from spec.nodeName by $NODE_NAME."},
	}
}

func (j *judge) server() {
	c := j.facts.Cluster
	switch {
	case c == nil:
		j.ok("", "Services come from a folder")
	case c.Version.Err != nil:
		j.wrong("", "%s does not answer: %s", orThe(c.Server), oneLine(c.Version.Err))
	default:
		j.ok("", "%s is %s", c.Server, c.Version.Value)
	}
}

func orThe(server string) string {
	if server == "" {
		return "the API server"
	}
	return server
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
		j.add(sev, d, "it is not allowed")
	}
	if len(denied) == 0 {
		j.ok("", "all that the proxy asks for is allowed")
	}
}

func (j *judge) node() {
	c := j.facts.Cluster
	differs := ""
	if !strings.EqualFold(j.NodeName, j.Hostname) && j.Hostname != "" {
		differs = fmt.Sprintf("; this machine calls itself %q", j.Hostname)
	}
	if c == nil || c.Version.Err != nil {
		j.info("", "the proxy goes by the name %q%s", j.NodeName, differs)
		return
	}
	node, ok := of(j, "", c.Node)
	switch {
	case !ok:
	case !node.Found:
		j.wrong("", "there is no Node %q%s", j.NodeName, differs)
	case len(node.Addrs) > 0 && j.facts.Links.Err == nil && !j.hasAddress(node):
		j.warn("", "the Node %q has the address %s, which this machine does not have%s", j.NodeName, node.Addrs[0], differs)
	default:
		j.ok("", "the Node %q is there%s", j.NodeName, differs)
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
