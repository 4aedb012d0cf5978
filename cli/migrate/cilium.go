package migrate

import (
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// ciliumMode represents Cilium's replacement of kube-proxy among the modes.
const ciliumMode = "cilium"

// ciliumKey is a key of the ConfigMap cilium-config that is about Services.
type ciliumKey struct {
	name string
	// idle are values without a statement: the default, or the behaviour of this proxy.
	idle []string
	// field is the corresponding field of the configuration; "" if there is no such field.
	field string
	// text converts its value to that of the field; nil for the value itself.
	text func(string) any

	sev              Severity
	differs, why, do string
}

// listed turns words with blanks or commas between into a list.
func listed(s string) any {
	all := []any{}
	for _, w := range strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' }) {
		all = append(all, w)
	}
	return all
}

var off = []string{"", "false", "disabled"}

// ciliumKeys are those in Cilium's documents about its kube-proxy replacement, 1.14 to 1.18.
var ciliumKeys = []ciliumKey{
	{name: "kube-proxy-replacement-healthz-bind-address", idle: off, field: "healthzBindAddress"},
	{name: "nodeport-addresses", idle: off, field: "nodePortAddresses", text: listed},
	{name: "cluster-pool-ipv4-cidr", idle: off},
	{name: "cluster-pool-ipv6-cidr", idle: off},
	{name: "bpf-lb-mode", idle: []string{"", "snat"}, sev: Missing, differs: "replies return through the node that " +
		"received the request", why: "Direct server return is a Cilium feature; here connections are translated both " +
		"ways.",
		do: "externalTrafficPolicy: Local keeps client addresses and avoids the second hop."},
	{name: "node-port-mode", idle: []string{"", "snat"}, sev: Missing, differs: "replies return through the node " +
		"that received the request", why: "Direct server return is Cilium's.",
		do: "externalTrafficPolicy: Local keeps client addresses and avoids the second hop."},
	{name: "bpf-lb-algorithm", idle: []string{"", "random"}, sev: Change,
		differs: "endpoints are chosen at random, not by Maglev", why: "Consistent hashing is a Cilium feature; mode " +
			"ipvs has the scheduler mh.", do: "Use --to ipvs with ipvs.scheduler: mh if connections may change the " +
			"receiving node."},
	{name: "bpf-lb-acceleration", idle: append([]string{"best-effort"}, off...), sev: Change,
		differs: "packets are translated in netfilter, not at the network card", why: "XDP is Cilium's.",
		do: "Check the nodes' CPU; docs/performance.md has the cost of a packet."},
	{name: "bpf-lb-sock", idle: off, sev: Change, differs: "pods' connections are translated in the packet path, not " +
		"at connect(2)", why: "Pods see the cluster IP as the peer, and conntrack has an entry for each connection.",
		do: "Check conntrack's size: kube-proxy check."},
	{name: "enable-socket-lb", idle: off, sev: Change, differs: "pods' connections are translated in the packet " +
		"path, not at connect(2)", why: "Pods see the cluster IP as the peer, and conntrack has an entry for each " +
		"connection.", do: "Check conntrack's size: kube-proxy check."},
	{name: "enable-host-port", idle: off, sev: Missing, differs: "hostPort of pods is not served",
		why: "A kube-proxy serves Services; host ports belong to the network plugin.",
		do:  "Chain the CNI plugin portmap: cni.chainingMode: portmap of Cilium's chart."},
	{name: "enable-local-redirect-policy", idle: off, sev: Missing, differs: "CiliumLocalRedirectPolicy has no effect",
		why: "It needs Cilium's translation at sockets.",
		do:  "node-local DNS caches: use internalTrafficPolicy: Local."},
	{name: "enable-ipv4-egress-gateway", idle: off, sev: Missing, differs: "egress gateways need the replacement",
		why: "Cilium's documentation says so.", do: "Keep the replacement, or use another egress gateway."},
	{name: "enable-egress-gateway", idle: off, sev: Missing, differs: "egress gateways need the replacement",
		why: "Cilium's documentation says so.", do: "Keep the replacement, or use another egress gateway."},
	{name: "enable-gateway-api", idle: off, sev: Missing, differs: "Cilium's Gateway API needs its NodePorts",
		why: "Cilium refuses it without the replacement.", do: "Keep the replacement, or use another implementation."},
	{name: "enable-ingress-controller", idle: off, sev: Missing, differs: "Cilium's ingress controller needs its " +
		"NodePorts", why: "Cilium refuses it without the replacement.",
		do: "Keep the replacement, or use another controller."},
	{name: "enable-l2-announcements", idle: off, sev: Missing, differs: "layer 2 announcements need the replacement",
		why: "Cilium's documentation says so.", do: "Use MetalLB, or keep the replacement."},
	{name: "enable-service-topology", idle: off, sev: Same, differs: "topology hints are always used",
		why: "Here as upstream.", do: "Nothing."},
	{name: "bpf-lb-external-clusterip", idle: off, sev: Change, differs: "cluster IPs are reachable from outside the " +
		"cluster, as with upstream's kube-proxy", why: "No rule rejects them.", do: "Nothing."},
	{name: "node-port-range", idle: append([]string{"30000,32767"}, off...), sev: Same,
		differs: "the range is the API server's", why: "A proxy serves the port that a Service has.", do: "Nothing."},
	{name: "enable-bpf-masquerade", idle: off, sev: Same, differs: "masquerading of pods' packets to the world stays " +
		"Cilium's", why: "A proxy masquerades only traffic to Services.", do: "Cilium before 1.19 needs NodePort in " +
		"BPF for it: set enable-bpf-masquerade to false where its agent refuses."},
}

// cilium converts Cilium's ConfigMap to a configuration, as far as it has corresponding settings.
func (c *converter) cilium(data map[string]string) ([]byte, error) {
	root := map[string]any{"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"mode": "nftables"}
	switch r := data["kube-proxy-replacement"]; {
	case slices.Contains(off, r):
		return nil, fmt.Errorf("kube-proxy-replacement is %q in the ConfigMap of Cilium, so a kube-proxy serves "+
			"Services: pass its ConfigMap", r)
	case r == "partial" || r == "probe":
		c.add(Change, "kube-proxy-replacement", "it is "+r+": some of Services are Cilium's, the rest a kube-proxy's",
			"Cilium removed these values in 1.14.", "Give the kube-proxy's ConfigMap too, by itself; turn off what "+
				"Cilium serves.")
	default:
		c.add(Change, "kube-proxy-replacement", "it is "+r+": it must become false",
			"Both would serve the same addresses.", "docs/migrating.md has the safe order.")
	}
	var pods []string
	for _, key := range []string{"cluster-pool-ipv4-cidr", "cluster-pool-ipv6-cidr"} {
		all := listed(data[key]).([]any)
		if len(all) > 1 {
			c.add(Change, key, "it has several networks, but clusterCIDR takes one for each IP family",
				"The proxy recognizes pod traffic by it.",
				"Set detectLocalMode: NodeCIDR, or a network that holds all.")
		}
		if len(all) == 1 {
			pods = append(pods, fmt.Sprint(all[0]))
		}
	}
	if len(pods) > 0 {
		root["clusterCIDR"] = strings.Join(pods, ",")
		c.add(Same, "cluster-pool-ipv4-cidr, cluster-pool-ipv6-cidr", "clusterCIDR is "+strings.Join(pods, ","),
			"The proxy recognizes pod traffic by it.", "Nothing.")
	} else {
		root["detectLocalMode"] = "NodeCIDR"
		c.add(Change, "ipam", "detectLocalMode is NodeCIDR, because Cilium's ConfigMap has no pod networks",
			"The proxy recognizes pod traffic by the Node's spec.podCIDRs.",
			"Make sure that Nodes have podCIDRs, or set clusterCIDR.")
	}
	for _, k := range ciliumKeys {
		value, ok := data[k.name]
		switch {
		case !ok || slices.Contains(k.idle, value):
		case k.field != "":
			root[k.field] = any(value)
			if k.text != nil {
				root[k.field] = k.text(value)
			}
			c.add(Same, k.name, k.field+" is "+value, "It is the same.", "Nothing.")
		case k.differs != "":
			c.add(k.sev, k.name, fmt.Sprintf("it is %s: %s", value, k.differs), k.why, k.do)
		}
	}
	return yaml.Marshal(root)
}
