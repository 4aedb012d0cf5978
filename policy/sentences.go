package policy

import (
	"fmt"
	"slices"
	"strings"

	"kube-proxy/cluster"
	"kube-proxy/internal/plural"
	"kube-proxy/lb"
)

// say adds a sentence about the port.
func (c *portExplainer) say(format string, args ...any) {
	c.port.Why = append(c.port.Why, fmt.Sprintf(format, args...))
}

// choose adds a sentence about how the backends were chosen.
func (c *portExplainer) choose(format string, args ...any) {
	c.say(format, args...)
	c.port.Chosen = append(c.port.Chosen, c.port.Why[len(c.port.Why)-1])
}

// why adds the sentences about a port whose endpoints are listed.
func (c *portExplainer) why(p *cluster.ServicePort) {
	switch {
	case p.Port == 0:
		c.say("The port has no number, so no client can use it.")
		return
	case len(c.port.Frontends) == 0:
		c.say("An earlier port of the Service has the same number and protocol, and only that one is served.")
		return
	}
	if c.port.MoreEndpoints > 0 {
		c.say("%s here.", plural.Count(c.port.MoreEndpoints, "more endpoint is not listed",
			"more endpoints are not listed"))
	}
	if !c.hasAny((*candidate).usable) {
		c.noEndpoint(p)
		c.say("No endpoint serves it, so connections are rejected, whatever the traffic policy.")
		return
	}
	if c.port.Cluster && c.cluster.avoided || c.port.Local && c.local.avoided && c.hasAny(c.local.takes) {
		c.say("This node reaches none of its endpoints, so none is avoided.")
	}
	if c.port.Cluster && c.cluster.draining {
		c.say("No endpoint is ready, so terminating endpoints that still serve get the connections.")
	}
	if c.port.Cluster {
		c.hints()
	}
	if c.port.Local {
		c.localOnly()
	}
}

// noEndpoint adds the reason why no endpoint serves the port.
func (c *portExplainer) noEndpoint(p *cluster.ServicePort) {
	all := len(c.entire.view.Slices)
	switch {
	case all == 0:
		c.choose("No EndpointSlice names the Service: does its selector match a pod?")
	case c.has.slices == 0:
		c.choose("It has %s, but none of %s.", plural.Count(all, "EndpointSlice", "EndpointSlices"), c.settings.Family)
	case c.has.endpoints == 0:
		c.choose("Its EndpointSlices have no endpoint: does its selector match a pod?")
	case slices.ContainsFunc(c.port.Endpoints, func(e ExplainedEndpoint) bool { return e.Address.Port() != 0 }) ||
		c.port.MoreEndpoints > 0:
		c.choose("None of its %s serves: %s.", plural.Count(len(c.port.Endpoints)+c.port.MoreEndpoints, "endpoint",
			"endpoints"), c.tally())
	case len(c.has.ports) == 0:
		// The controller leaves out a port whose targetPort names no port of a pod, but still
		// writes the pod's endpoint.
		c.choose("Its EndpointSlices have %s, but no port: does targetPort of the port %q name a port of the pods' "+
			"containers?", plural.Count(c.has.endpoints, "endpoint", "endpoints"), p.Name)
	default:
		c.choose("No EndpointSlice with an endpoint has the port %q of %s: they have %s. Does targetPort name a port "+
			"of the pods?", p.Name, lb.Proto(p.Protocol), strings.Join(c.has.ports, ", "))
	}
}

// tally counts the endpoints by the reason of their exclusion.
func (c *portExplainer) tally() string {
	var order []string
	n := map[string]int{}
	for _, e := range c.port.Endpoints {
		why := e.WhyNotCluster
		if !c.port.Cluster {
			why = e.WhyNotLocal
		}
		n[why]++
		if n[why] == 1 {
			order = append(order, why)
		}
	}
	for i, why := range order[:min(len(order), 5)] {
		order[i] = fmt.Sprintf("%d %s", n[why], why)
	}
	return strings.Join(order[:min(len(order), 5)], "; ")
}

// hints adds the effect of the topology hints (SV-38).
func (c *portExplainer) hints() {
	ready, chosen := 0, 0
	c.hasAny(func(x *candidate) bool {
		if x.ready && (c.cluster.avoided || x.avoided == reached) {
			ready++
		}
		if c.cluster.takes(x) {
			chosen++
		}
		return false
	})
	node := &c.view.Node
	zone := ""
	if node.Node != nil {
		zone = node.Node.Zone
	}
	ignored := func(kind, none string, has, this hints) bool {
		switch {
		case c.known.some&has == 0 || c.cluster.hints == this:
			return false
		case c.known.every&has == 0:
			c.choose("Topology hints for %s are ignored, because not every ready endpoint has one.", kind)
		default:
			c.choose("Topology hints for %s are ignored, because %s.", kind, none)
		}
		return true
	}
	noNode := "none is for this node, " + node.NodeName
	if node.NodeName == "" {
		noNode = "this node's name is not known"
	}
	noZone := "none is for this node's zone, " + zone
	if zone == "" {
		noZone = "this node's zone is not known"
	}
	ignored("nodes", noNode, hasNodes, thisNode)
	switch c.cluster.hints {
	case thisNode:
		c.choose("By topology hints for nodes, %d of %d ready endpoints serve this node, %s.", chosen, ready,
			node.NodeName)
	case thisZone:
		c.choose("By topology hints for zones, %d of %d ready endpoints serve this node, in zone %s.", chosen, ready,
			zone)
	default:
		ignored("zones", noZone, hasZones, thisZone)
	}
}

// localOnly adds the effect of a Local traffic policy on this node (SV-51, SV-52).
func (c *portExplainer) localOnly() {
	switch {
	case c.hasAny(c.local.takes):
		if c.local.draining {
			c.say("No endpoint on this node is ready, so terminating ones that still serve get the connections of " +
				"the policy Local.")
		}
		return
	case c.view.Node.NodeName == "":
		c.say("This node's name is not known, so no endpoint counts for one on it.")
	default:
		c.say("None of the endpoints that serve runs on this node, %s.", c.view.Node.NodeName)
	}
	if c.svc.InternalPolicy == cluster.PolicyLocal {
		c.say("The internal traffic policy is Local: connections from this node and its pods to the cluster IP are " +
			"dropped.")
	}
	if c.svc.ExternalPolicy == cluster.PolicyLocal && slices.ContainsFunc(c.port.Frontends,
		func(f *lb.Frontend) bool { return f.Kind != lb.ClusterIP }) {
		c.say("The external traffic policy is Local: connections from outside the cluster to this node are dropped, " +
			"and load balancers with health checks skip the node.")
	}
}

// about returns the sentences about the whole Service.
func (e *explainer) about() (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	svc := e.svc
	if e.settings.NoExternalIPs && len(svc.ExternalIPs) > 0 {
		say("Its external IPs are not served: the feature gate AllowServiceExternalIPs is off.")
	}
	if svc.Type == cluster.TypeLoadBalancer && len(e.loadBalancerIPs) == 0 {
		say("It is of type LoadBalancer, but has no address of a load balancer in this family that is served here: " +
			"none was assigned yet, or its ipMode is Proxy.")
	}
	if len(svc.SourceRanges) > 0 && len(e.loadBalancerIPs) > 0 {
		e.aboutSources(say)
	}
	if seconds := affinity(svc); seconds > 0 {
		say("Session affinity: a client keeps its backend for %s after its last new connection.", seconds)
	}
	for _, f := range e.rows {
		if f.Kind == lb.HealthCheck {
			say("Port %d answers the health checks of load balancers: %s here.", f.Key.Port,
				plural.Count(f.LocalEndpoints, "endpoint is ready", "endpoints are ready"))
		}
	}
	return out
}

// aboutSources adds the allowed clients of the load-balancer addresses (SV-15, SV-16).
func (e *explainer) aboutSources(say func(string, ...any)) {
	if len(e.sources) == 0 {
		say("loadBalancerSourceRanges exclude no client: no range is of this family, or one has all addresses.")
		return
	}
	var words []string
	for i, p := range e.sources {
		if i == 5 {
			words = append(words, plural.Count(len(e.sources)-i, "other", "others"))
			break
		}
		words = append(words, p.String())
	}
	say("Only clients in %s may use the load balancer's addresses (loadBalancerSourceRanges).",
		strings.Join(words, ", "))
	if e.nodeMay {
		say("This node is in these ranges, so packets whose source is one of these addresses are allowed too: a " +
			"node that has such an address sends from it.")
	}
}
