package main

import (
	"net/netip"
	"regexp"
	"slices"
)

// incident is a Service that does not work, for one of the reasons of "Debug Services" in the
// documentation of Kubernetes, or of those that operators meet beside it.
type incident struct {
	name    string
	bridge  bool
	flat    bool
	flags   []string
	service service
	late    *service // replaces the Service after a first connection
	absent  bool     // no such Service
	stopped bool     // the proxy does not run
	first   bool     // a connection before the trouble
	host    string   // of the script
	do      string
	from    string // the client
	to      string // "" for the cluster IP
	udp     bool
	// not has the modes in which it does not happen, because the sockets of clients or backends are
	// connected by the proxy or its programs.
	not []string
	// fails: a connection to it fails, in part at least.
	fails bool
	// says has, for each command that must name the cause, a pattern of its first lines.
	says map[string]string
	// never has patterns that a command must not say.
	never map[string]string
}

// commands are the commands of operators, in the order of the queries.
var commands = []string{"status", "check", "why", "trace", "events", "probe"}

// topLines are the lines in which a command must name the cause.
const topLines = 10

func web(backends ...string) service {
	s := service{name: "s10", number: 10, kind: "ClusterIP", port: 80, target: served}
	for _, b := range backends {
		s.backends = append(s.backends, backend{b, true})
	}
	return s
}

func (s service) with(change func(*service)) service {
	s.backends = slices.Clone(s.backends)
	change(&s)
	return s
}

// incidents are those that this test plays, in the order of the page.
func incidents() []incident {
	const clean = `(?i)nothing is wrong|no problems`
	quiet := map[string]string{"status": `no problems`}
	all := []incident{
		{name: "a: no such Service", absent: true, service: web("pod2"), from: "pod1", to: "10.96.0.99:80",
			fails: true,
			says:  map[string]string{"trace": `(?i)drop|no service|unknown`, "why": `(?i)no service`}},
		{name: "b: the cluster's DNS has no endpoints", service: web().with(func(s *service) { s.port = 53 }),
			from: "pod1",
			to:   "10.96.0.10:53", udp: true, fails: true,
			says: map[string]string{"status": `no-backends`, "why": `no backends`, "trace": `reject`}, never: quiet},
		{name: "c: the selector matches no pod", service: web(), from: "pod1", fails: true,
			says:  map[string]string{"status": `no-backends`, "why": `selector`, "trace": `selector|reject`},
			never: quiet},
		{name: "d: wrong targetPort", service: web("pod2").with(func(s *service) { s.target = deaf }),
			from: "pod1", fails: true,
			says: map[string]string{"probe": `(?i)refuse`, "why": `(?i)refuse|targetPort`}},
		{name: "e: the endpoints are not ready",
			service: web("pod2").with(func(s *service) { s.backends[0].ready = false }),
			from:    "pod1", fails: true,
			says:  map[string]string{"status": `no-backends`, "why": `not ready`, "trace": `not ready|reject`},
			never: quiet},
		{name: "f: a firewall in the pod", service: web("pod2"), host: "pod2", from: "pod1", fails: true,
			do:   "nft 'table inet f { chain c { type filter hook input priority 0; tcp dport 8080 drop; }; }'",
			says: map[string]string{"probe": `(?i)silent|prohibited`, "why": `(?i)silent`}},
		{not: []string{"userspace"}, name: "g: the proxy does not run", service: web("pod2"), stopped: true,
			from: "pod1",
			says: map[string]string{"status": `kube-proxy has exited`, "trace": `kube-proxy has exited`}},
		{not: []string{"userspace", "ebpf"}, name: "h: hairpin is off", bridge: true, flat: true,
			service: web("pod2"), from: "pod2", fails: true,
			do:   "echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables; bridge link set dev vethpod2 hairpin off",
			says: map[string]string{"trace": `(?i)hairpin`}, never: map[string]string{"why": clean}},
		{not: []string{"userspace"}, name: "i: no forwarding", service: web("pod2"), from: "pod1", fails: true,
			do: "echo 0 >/proc/sys/net/ipv4/ip_forward",
			says: map[string]string{"trace": `ip_forward`, "status": `ip_forward|forward`, "check": `ip_forward`,
				"why": `ip_forward`}, never: quiet},
		{not: []string{"userspace"}, name: "j: a firewall of the node drops what it forwards",
			service: web("pod2"), from: "pod1", fails: true,
			do: "nft 'table inet firewall { chain forward { type filter hook forward priority 0; policy drop; " +
				"ct state established accept; }; }'",
			says: map[string]string{"trace": `table inet firewall, chain forward`, "status": `firewall`,
				"why": `table inet firewall`}, never: quiet},
		{name: "k: wrong cluster CIDR", flags: []string{"--cluster-cidr=10.200.0.0/16,fd00:99::/48"},
			service: web("pod2"),
			from:    "pod1", says: map[string]string{"status": `(?i)cidr`, "check": `(?i)cidr`}, never: quiet},
		{name: "l: strict reverse path filter, and a client that comes by another uplink",
			service: web("pod2").with(func(s *service) { s.kind = "NodePort" }), from: "client",
			to: "172.18.0.2:30010", fails: true,
			do: "ip link add eth1 type veth peer name eth1 netns $CLIENT; ip link set eth1 up; " +
				"ip addr add 172.19.0.2/24 dev eth1; " +
				"nsenter --net=$CLIENT sh -ec 'ip link set eth1 up; ip addr add 172.19.0.100/24 dev eth1'; " +
				"ip route replace 172.18.0.100/32 via 172.19.0.100 dev eth1; " +
				"echo 1 >/proc/sys/net/ipv4/conf/eth0/rp_filter",
			says: map[string]string{"trace": `rp_filter|assum`, "check": `rp_filter`}},
		{name: "m: the MTU of a pod is smaller", service: web("pod2"), from: "pod1",
			do:   "ip link set vethpod2 mtu 1280",
			says: map[string]string{"check": `(?i)mtu`}},
		{not: []string{"ebpf"}, name: "n: another agent translates first", service: web("pod2"), from: "pod1",
			do: "nft 'table ip agent { chain c { type nat hook prerouting priority -110; " +
				"ip daddr 10.96.0.10 tcp dport 80 dnat to 10.1.1.13:9999; }; }'",
			says:  map[string]string{"trace": `(?i)translated|differs|table ip agent`},
			never: map[string]string{"status": `no problems`, "why": clean}},
		{not: []string{"userspace"}, name: "o: a NetworkPolicy", service: web("pod2"), from: "pod1", fails: true,
			do: "iptables -N cali-FORWARD; iptables -A cali-FORWARD -d 10.1.1.12 -s 10.1.1.11 -j DROP; " +
				"iptables -I FORWARD -j cali-FORWARD",
			says: map[string]string{"trace": `Calico`}},
		{name: "p: a program has the NodePort", service: web("pod2").with(func(s *service) { s.kind = "NodePort" }),
			from: "client", to: "172.18.0.2:30010", do: "listen 30010", host: "node1",
			says: map[string]string{"check": `30010`}},
		{name: "q: externalTrafficPolicy Local without local endpoints",
			service: web("pod4").with(func(s *service) { s.kind, s.etp = "NodePort", "Local" }), from: "client",
			to: "172.18.0.2:30010", fails: true,
			says: map[string]string{"trace": `(?i)local`, "why": `(?i)none of the endpoints.*on this node|Local`}},
		{name: "r: loadBalancerSourceRanges", service: web("pod2").with(func(s *service) {
			s.kind,
				s.ranges = "LoadBalancer", true
		}),
			from: "client", to: "192.0.2.10:80", fails: true,
			says: map[string]string{"trace": `(?i)source ?ranges|203\.0\.113`}},
		{name: "s: affinity keeps a client at an endpoint that does not answer", first: true,
			service: web("pod2").with(func(s *service) { s.affinity = true }), from: "pod1", fails: true,
			host: "pod2",
			do:   "nft 'table inet f { chain c { type filter hook input priority 0; tcp dport 8080 drop; }; }'",
			says: map[string]string{"trace": `(?i)affinity|keeps`, "probe": `(?i)silent`}},
		{not: []string{"userspace"}, name: "t: one of two endpoints is unreachable", service: web("pod2", "pod4"),
			from: "pod1", fails: true,
			do: "ip route replace blackhole 10.1.2.14/32",
			says: map[string]string{"trace": `(?i)blackhole`, "probe": `10\.1\.2\.14`,
				"why": `10\.1\.2\.14|blackhole`}},
		{name: "u: the endpoint changed", first: true, service: web("pod2"), from: "pod1",
			late: new(web("pod3")), says: map[string]string{"events": `10\.1\.1\.13`}},
	}
	for i := range all {
		if all[i].host == "" {
			all[i].host = "node1"
		}
		if all[i].to == "" {
			all[i].to = "10.96.0.10:80"
		}
	}
	return all
}

// query is the connection of the incident.
func (i incident) query() query {
	return query{from: i.from, to: netip.MustParseAddrPort(i.to), udp: i.udp, about: i.name}
}

// missing returns what the first lines of an answer lack, or say wrongly; "" if they are right.
func (i incident) missing(command, text string) string {
	head := firstLines(text, topLines)
	if command == "events" { // the last come last
		head = text
	}
	pattern := i.says[command]
	if pattern != "" && !regexp.MustCompile(pattern).MatchString(head) {
		return "does not say " + pattern
	}
	pattern = i.never[command]
	if pattern != "" && regexp.MustCompile(pattern).MatchString(text) {
		return "says " + pattern
	}
	return ""
}
