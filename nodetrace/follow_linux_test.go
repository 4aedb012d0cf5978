package nodetrace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/nodetrace/internal/hooks"
	"kube-proxy/trace"
)

// fault is something on node1 that harms packets, or does not.
type fault struct {
	name     string
	from, to string // hosts
	six      bool
	in       string
	bridge   bool
	break_   func() error // on node1; nil for nothing
	rules    string       // of nft; "" has the packet meet no rules
	want     trace.NodeVerdict
	by       string // a part of the culprit
	doubt    string // a part of what was not evaluated
}

func sysctls(kv ...string) func() error {
	return func() error {
		for i := 0; i < len(kv); i += 2 {
			if err := os.WriteFile("/proc/sys/net/"+kv[i], []byte(kv[i+1]), 0); err != nil {
				return err
			}
		}
		return nil
	}
}

// failedNeighbour routes an address that no host has to a link.
func failedNeighbour(link, addr string) func() error {
	return runs(fmt.Sprintf("ip route add %[1]s dev %[2]s; ip neigh add %[1]s dev %[2]s nud failed", addr, link))
}

// asksNeighbour routes an address that no host has to a link, and sends a datagram to it.
func asksNeighbour(link, addr string) func() error {
	return both(runs("ip route add "+addr+" dev "+link), func() error {
		c, err := net.Dial("udp", addr+":9")
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("x"))
		return err
	})
}

// asks has a neighbour answer, so that its entry and the bridge's exist.
func asks(addr string) func() error {
	return runs("for i in 1 2 3 4 5; do echo x > /dev/udp/" + addr + "/9 || true; sleep 0.1; done")
}

func both(all ...func() error) func() error {
	return func() (err error) {
		for _, f := range all {
			err = errors.Join(err, f())
		}
		return err
	}
}

// runs runs a command of a shell, on the thread of the caller.
func runs(command string) func() error {
	return func() error {
		if out, err := exec.Command("bash", "-ec", command).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", command, err, out)
		}
		return nil
	}
}

// blocked adds an XFRM policy that drops packets.
func blocked(selector string) func() error {
	return runs("ip xfrm policy add " + selector + " action block")
}

// refusesAnd refuses packets of pods to port 8080, and drops the node's own, except by a rule.
func refusesAnd(rule string) string {
	return "table ip refuses { chain c { type filter hook forward priority 0; tcp dport 8080 reject; }; }\n" +
		"table inet guard { chain c { type filter hook output priority -300; policy drop; " + rule + " }; }"
}

// uplink adds one with an address.
func uplink(address string) func() error {
	return runs("ip link add eth1 type veth peer name peer1; ip link set eth1 up; ip link set peer1 up; " +
		"ip addr add " + address)
}

// at has rules of a chain at a hook of IPv4, with its priority.
func at(hook, rules string) string {
	return "table ip x { chain c { type filter hook " + hook + "; " + rules + "; }; }"
}

// forward has rules of a chain at the hook forward.
func forward(rules string) string { return at("forward priority 0", rules) }

var faults = []fault{
	{name: "nothing", from: "pod1", to: "pod2", want: trace.Delivered},
	{name: "nothing, bridge", from: "pod1", to: "pod3", bridge: true, want: trace.Delivered},
	{name: "bridge-nf-call", from: "pod1", to: "10.96.0.1", bridge: true, want: trace.Undecided,
		rules: "table ip x { chain c { type nat hook prerouting priority -100; " +
			"ip daddr 10.96.0.1 dnat to 10.1.1.12; }; }",
		doubt: "net.bridge.bridge-nf-call-iptables is not 1"}, // the lab's pods have no direct route, others have
	{name: "bridge-nf-call, not translated", from: "pod1", to: "pod2", bridge: true, want: trace.Delivered},
	{name: "the port of the bridge is blocked", from: "pod1", to: "pod3", bridge: true, want: trace.Dropped,
		by:     "port vethpod3 of bridge cbr0 is not in state forwarding",
		break_: both(asks("10.1.1.13"), runs("bridge link set dev vethpod3 state 0"))},
	{name: "nothing, from outside", from: "client", to: "pod2", want: trace.Delivered},
	{name: "nothing, to another node", from: "pod1", to: "pod4", want: trace.Delivered},
	{name: "nothing, from the node", from: "node1", to: "pod1", want: trace.Delivered},
	{name: "nothing, to the node", from: "pod1", to: "node1", want: trace.Delivered},
	{name: "nothing, to itself", from: "node1", to: "node1", want: trace.Delivered},
	{name: "nothing, IPv6", from: "pod1", to: "pod4", six: true, want: trace.Delivered},
	{name: "ip_forward", from: "pod1", to: "pod2", break_: sysctls("ipv4/ip_forward", "0"),
		want: trace.Dropped, by: "net.ipv4.ip_forward=0"},
	{name: "ip_forward, local only", from: "pod1", to: "node1", break_: sysctls("ipv4/ip_forward", "0"),
		want: trace.Delivered},
	{name: "forwarding of the device", from: "pod1", to: "pod2", break_: sysctls("ipv4/conf/vethpod1/forwarding", "0"),
		want: trace.Dropped, by: "net.ipv4.conf.vethpod1.forwarding=0"},
	{name: "forwarding of the reply's device", from: "pod1", to: "pod2",
		break_: sysctls("ipv4/conf/vethpod2/forwarding", "0"),
		want:   trace.Dropped, by: "net.ipv4.conf.vethpod2.forwarding=0"},
	{name: "forwarding of IPv6", from: "pod1", to: "pod2", six: true, break_: sysctls("ipv6/conf/all/forwarding", "0"),
		want: trace.Dropped, by: "net.ipv6.conf.all.forwarding=0"},
	{name: "forwarding of IPv6, forced by both devices", from: "pod1", to: "pod2", six: true,
		break_: sysctls("ipv6/conf/all/forwarding", "0", "ipv6/conf/vethpod1/force_forwarding", "1",
			"ipv6/conf/vethpod2/force_forwarding", "1"), want: trace.Delivered},
	{name: "forwarding of IPv6, forced on the way in alone", from: "pod1", to: "pod2", six: true,
		break_: sysctls("ipv6/conf/all/forwarding", "0", "ipv6/conf/vethpod1/force_forwarding", "1"),
		want:   trace.Dropped, by: "net.ipv6.conf.all.forwarding=0"},
	{name: "no route", from: "client", to: "pod2", break_: runs("ip route del 10.1.1.12; ip route del default"),
		want: trace.Rejected, by: "no route to 10.1.1.12"},
	{name: "no route, IPv6", from: "client", to: "pod2", six: true,
		break_: runs("ip -6 route del fd00:10:1:1::12; ip -6 route del default"),
		want:   trace.Rejected, by: "no route"},
	{name: "no route, from the node", from: "node1", to: "pod2",
		break_: runs("ip route del 10.1.1.12; ip route del default"),
		want:   trace.Rejected, by: "no route to 10.1.1.12"},
	{name: "no route for the reply", from: "client", to: "pod2",
		break_: runs("ip route add blackhole 172.18.0.100"),
		in:     "eth0", want: trace.Dropped, by: "172.18.0.100 is a blackhole"},
	{name: "blackhole", from: "pod1", to: "pod4",
		break_: runs("ip route replace blackhole 10.1.2.14"),
		want:   trace.Dropped, by: "the route to 10.1.2.14 is a blackhole"},
	{name: "unreachable", from: "pod1", to: "pod4",
		break_: runs("ip route replace unreachable 10.1.2.14"),
		want:   trace.Rejected, by: "the route to 10.1.2.14 is unreachable"},
	{name: "prohibit", from: "pod1", to: "pod4", break_: runs("ip route replace prohibit 10.1.2.14"),
		want: trace.Rejected, by: "prohibits 10.1.2.14"},
	{name: "blackhole, IPv6", from: "pod1", to: "pod4", six: true,
		break_: runs("ip route add blackhole fd00:10:1:2::14 metric 1"),
		want:   trace.Dropped, by: "blackhole"},
	{name: "policy rule", from: "pod1", to: "pod4", want: trace.Dropped, by: "blackhole",
		break_: runs("ip route add blackhole 10.1.2.0/24 table 77; ip rule add from 10.1.1.11 lookup 77 prio 10")},
	{name: "policy rule of the device", from: "pod1", to: "pod4", want: trace.Rejected, by: "prohibits",
		break_: runs("ip route add prohibit 10.1.2.0/24 table 77; ip rule add iif vethpod1 lookup 77 prio 10")},
	{name: "policy rule of the port", from: "pod1", to: "pod4", want: trace.Dropped, by: "blackhole",
		break_: runs("ip rule add ipproto tcp dport 8080 blackhole prio 10")},
	{name: "policy rule of another port", from: "pod1", to: "pod4", want: trace.Delivered,
		break_: runs("ip rule add ipproto tcp dport 8081 blackhole prio 10")},
	{name: "policy rule of the protocol", from: "node1", to: "pod4", six: true, want: trace.Rejected, by: "blackhole",
		break_: runs("ip -6 rule add ipproto tcp prio 10 blackhole")},
	{name: "policy rule of the source, from the node", from: "node1", to: "pod4", want: trace.Rejected, by: "prohibits",
		break_: runs("ip route add prohibit 10.1.2.0/24 table 77; ip rule add from 172.18.0.2 lookup 77 prio 10")},
	{name: "policy rule of the source, the reply", from: "pod1", to: "node1", want: trace.Dropped, by: "blackhole",
		break_: runs("ip route add blackhole 10.1.1.11 table 77; ip rule add from 172.18.0.2 lookup 77 prio 10; " +
			"ip rule add prio 9 lookup local; ip rule del prio 0")},
	{name: "policy rule of the source's port", from: "pod1", to: "pod4", want: trace.Undecided,
		doubt:  "ip rule of priority 10, which selects by the source port",
		break_: runs("ip rule add ipproto tcp sport 40000-50000 prio 10 blackhole")},
	{name: "the refusal has no route", from: "client", to: "pod2", in: "eth0", want: trace.Dropped, by: "prohibits",
		break_: runs("ip route replace prohibit 10.1.1.12; ip route add prohibit 172.18.0.100")},
	{name: "device down", from: "client", to: "pod2",
		break_: runs("ip link set vethpod2 down"), want: trace.Dropped,
		by: "endpoint 10.1.1.12:8080 is on this node, but its route leads through eth0 to 172.18.0.254"},
	{name: "neighbour failed", from: "pod1", to: "10.1.1.99", break_: failedNeighbour("vethpod2", "10.1.1.99"),
		want: trace.Dropped, by: "neighbour 10.1.1.99 on vethpod2 is FAILED"},
	{name: "neighbour incomplete", from: "pod1", to: "10.1.1.99", break_: asksNeighbour("vethpod2", "10.1.1.99"),
		want: trace.Dropped, by: "neighbour 10.1.1.99 on vethpod2 is INCOMPLETE"},
	{name: "next hop incomplete", from: "pod1", to: "pod4", want: trace.Dropped,
		break_: both(asksNeighbour("vethpod2", "10.1.1.99"),
			runs("ip route replace 10.1.2.14 via 10.1.1.99 dev vethpod2 onlink")),
		by: "neighbour 10.1.1.99 on vethpod2 is INCOMPLETE"},
	{name: "next hop of the reply failed", from: "client", to: "pod2", in: "eth0", want: trace.Dropped,
		break_: both(failedNeighbour("vethpod1", "10.1.1.99"),
			runs("ip route replace 172.18.0.100 via 10.1.1.99 dev vethpod1 onlink")),
		by: "neighbour 10.1.1.99 on vethpod1 is FAILED"},
	{name: "strict rp_filter", from: "client", to: "pod2", in: "eth0", want: trace.Dropped,
		by:     "rp_filter=1 (strict) of eth0: the route back to 172.18.0.100 leads through vethpod1",
		break_: both(sysctls("ipv4/conf/eth0/rp_filter", "1"), runs("ip route add 172.18.0.100 dev vethpod1"))},
	{name: "XFRM, forwarded", from: "pod1", to: "pod2", want: trace.Dropped,
		by:     "XFRM policy src 0.0.0.0/0 dst 10.1.1.12/32 dir fwd priority 0 action block",
		break_: blocked("dst 10.1.1.12 proto tcp dport 8080 dir fwd")},
	{name: "XFRM, other selectors", from: "pod1", to: "pod2", want: trace.Delivered, break_: both(
		blocked("dst 10.1.1.12 proto tcp dport 8081 dir fwd"), blocked("dst 10.1.1.13 dir fwd"),
		blocked("src 10.1.2.0/24 dir out"), blocked("dst 10.1.1.12 dir in"), blocked("dst 10.1.1.12 proto udp dir fwd"),
		blocked("dst 10.1.1.12 dir fwd mark 7 mask 7"))},
	{name: "XFRM, an exception", from: "pod1", to: "pod2", want: trace.Delivered, break_: both(
		blocked("dst 10.1.1.12/31 dir fwd priority 2"), runs("ip xfrm policy add dst 10.1.1.12 dir fwd priority 1"))},
	{name: "XFRM, the reply", from: "pod1", to: "pod2", want: trace.Dropped, by: "src 10.1.1.12/32",
		break_: blocked("src 10.1.1.12 dir out")},
	{name: "XFRM, IPv6", from: "pod1", to: "pod2", six: true, want: trace.Dropped, by: "dst fd00:10:1:1::12/128",
		break_: blocked("dst fd00:10:1:1::12 dir fwd")},
	{name: "XFRM, to the node", from: "pod1", to: "node1", want: trace.Dropped, by: "dir in",
		break_: blocked("src 10.1.1.11 dir in")},
	{name: "XFRM, from the node", from: "node1", to: "pod2", want: trace.Rejected, by: "dir out",
		break_: blocked("dst 10.1.1.12 dir out")},
	{name: "XFRM, on the loopback device", from: "node1", to: "node1", want: trace.Delivered,
		break_: both(blocked("dst 172.18.0.0/16 dir out"), blocked("dst 172.18.0.0/16 dir in"))},
	{name: "XFRM, a device without policies", from: "pod1", to: "pod2", want: trace.Delivered, break_: both(
		blocked("dst 10.1.1.12 dir fwd"), sysctls("ipv4/conf/vethpod1/disable_policy", "1"))},
	{name: "XFRM, by default", from: "pod1", to: "pod2", want: trace.Dropped, by: "of direction fwd block by default",
		break_: runs("ip xfrm policy setdefault fwd block")},
	{name: "XFRM, encrypted", from: "pod1", to: "pod4", want: trace.Undecided, doubt: "priority 0: IPsec",
		break_: runs("ip xfrm policy add dst 10.1.2.14 dir out tmpl src 172.18.0.2 dst 172.18.0.3 proto esp")},
	{name: "XFRM, by an unknown port", from: "pod1", to: "pod2", want: trace.Undecided, doubt: "XFRM policy",
		break_: blocked("dst 10.1.1.12 proto tcp sport 40000 dir fwd")},
	{name: "strict rp_filter of an uplink that is not assumed", from: "client", to: "pod2", want: trace.Undecided,
		doubt: "through eth0, it is dropped by rp_filter=1 (strict) of eth0",
		break_: both(sysctls("ipv4/conf/eth0/rp_filter", "1"), runs("ip link add eth1 type veth peer name peer1; "+
			"ip link set eth1 up; ip link set peer1 up; ip addr add 172.19.0.2/24 dev eth1; "+
			"ip route add 172.18.0.100 via 172.19.0.100 dev eth1; ip neigh del 172.18.0.100 dev eth0"))},
	{name: "strict rp_filter of another uplink, and the client is a neighbour", from: "client", to: "pod2",
		want: trace.Undecided, doubt: "through eth1, it is dropped by rp_filter=1 (strict) of eth1",
		break_: both(runs("ip link add eth1 type veth peer name peer1; ip link set eth1 up; ip link set peer1 up; "+
			"ip addr add 172.19.0.2/24 dev eth1"), sysctls("ipv4/conf/eth1/rp_filter", "1"))},
	{name: "strict rp_filter of uplinks, and the client is a pod", from: "pod1", to: "pod2", want: trace.Delivered,
		break_: sysctls("ipv4/conf/all/rp_filter", "1")},
	{name: "the error of a refusal belongs to the refused connection", from: "pod1", to: "pod2", want: trace.Rejected,
		by: "table ip refuses, chain c, rule 1", rules: refusesAnd("ct state related ct direction reply accept;")},
	{name: "the error of a refusal has a protocol of its own", from: "pod1", to: "pod2", want: trace.Rejected,
		by: "table ip refuses, chain c, rule 1", rules: refusesAnd("accept;"),
		break_: runs("ip rule add to 10.1.1.11 ipproto udp prio 50 unreachable")},
	{name: "the error of a refusal has a source of its own", from: "pod1", to: "node1", want: trace.Dropped,
		by:     "table ip refuses, chain c, rule 1",
		rules:  "table ip refuses { chain c { type filter hook input priority 0; tcp dport 8080 reject; }; }",
		break_: runs("ip rule add from 172.0.0.0/8 prohibit prio 32000")},
	{name: "the error of a refusal has a source of its own, IPv6", from: "client", to: "pod2", six: true,
		want: trace.Undecided, doubt: "whether the error that refuses the packet has its source fd00:18::2",
		break_: runs("ip -6 rule add not from fd00:18::2 prohibit prio 100")},
	{name: "a reset is no SYN", from: "pod1", to: "pod2", want: trace.Rejected, by: "table ip refuses, chain c, rule 1",
		rules: "table ip refuses { chain c { type filter hook forward priority 0; " +
			"tcp dport 8080 reject with tcp reset; }; }\ntable ip guard { chain c { " +
			"type filter hook output priority 0; tcp flags syn drop; tcp flags & (rst | ack) != rst | ack drop; }; }"},
	{name: "policy rule of root", from: "pod1", to: "pod4", want: trace.Dropped, by: "blackhole",
		break_: runs("ip rule add uidrange 0-0 blackhole prio 10")},
	{name: "policy rule of root, IPv6", from: "pod1", to: "pod4", six: true, want: trace.Undecided,
		doubt:  "unless these decide otherwise, it is dropped by there is no route to fd00:10:1:2::14",
		break_: runs("ip -6 rule add uidrange 0-0 unreachable prio 10")},
	{name: "policy rule of another user", from: "pod1", to: "pod4", want: trace.Delivered,
		break_: runs("ip rule add uidrange 7-7 blackhole prio 10")},
	{name: "the error of a refusal, without its connection", from: "pod1", to: "pod2", want: trace.Dropped,
		by: "table ip refuses, chain c, rule 1", rules: refusesAnd("ct state new,invalid accept;")},
	{name: "a rule lets the TTL end", from: "pod1", to: "pod2", want: trace.Rejected, by: "TTL",
		rules: at("prerouting priority -150", "ip ttl set 1")},
	{name: "a rule lets the TTL end, of the reply", from: "pod1", to: "pod2", want: trace.Dropped, by: "TTL",
		rules: at("prerouting priority -150", "ip saddr 10.1.1.12 ip ttl set 1")},
	{name: "a rule lets the hop limit end", from: "pod1", to: "pod2", six: true, want: trace.Rejected, by: "TTL",
		rules: "table ip6 x { chain c { type filter hook prerouting priority -150; ip6 hoplimit set 1; }; }"},
	{name: "a packet that comes in without IPv6", from: "client", to: "pod2", in: "eth0", six: true,
		want: trace.Dropped, by: "net.ipv6.conf.eth0.disable_ipv6=1",
		break_: both(sysctls("ipv6/conf/eth0/disable_ipv6", "1"), runs("ip -6 route add default dev vethpod1"))},
	{name: "a loopback device without IPv6", from: "node1", to: "node1", six: true, want: trace.Dropped,
		by: "net.ipv6.conf.lo.disable_ipv6=1", break_: sysctls("ipv6/conf/lo/disable_ipv6", "1")},
	{name: "a policy rule of sources, and the socket has none yet", from: "node1", to: "pod2", want: trace.Rejected,
		by: "unreachable", break_: runs("ip route add unreachable default table 77; " +
			"ip rule add not from 172.18.0.0/16 table 77 prio 100")},
	{name: "a policy rule of sources, and the socket has none yet, IPv6", from: "node1", to: "pod2", six: true,
		want: trace.Delivered, break_: runs("ip -6 route add unreachable default table 77; " +
			"ip -6 rule add not from fd00:18::/64 table 77 prio 100")},
	{name: "another uplink without IPv6", from: "client", to: "pod2", six: true, want: trace.Undecided,
		doubt: "whether the packet comes in through eth1, as assumed: through eth0, it is dropped by " +
			"net.ipv6.conf.eth0.disable_ipv6=1: say --in",
		break_: both(uplink("fd00:19::2/64 dev eth1 nodad"), sysctls("ipv6/conf/eth0/disable_ipv6", "1"),
			runs("ip -6 route replace fd00:18::100 via fd00:19::100 dev eth1"))},
	{name: "another uplink that does not forward", from: "client", to: "pod2", want: trace.Undecided,
		doubt:  "through eth1, it is dropped by net.ipv4.conf.eth1.forwarding=0: say --in",
		break_: both(uplink("172.19.0.2/24 dev eth1"), sysctls("ipv4/conf/eth1/forwarding", "0"))},
	{name: "another uplink that is alike", from: "client", to: "pod2", want: trace.Delivered,
		break_: uplink("172.19.0.2/24 dev eth1")},
	{name: "a rule refuses next packets", from: "pod1", to: "pod2", want: trace.Rejected, by: "table ip x",
		rules: forward("ct state established ct direction original reject")},
	{name: "a rule drops replies after the handshake", from: "pod1", to: "pod2", want: trace.Dropped, by: "table ip x",
		rules: forward("ip saddr 10.1.1.12 tcp flags & (fin|syn|rst) == 0 drop")},
	{name: "a rule drops the handshake's reply alone", from: "pod1", to: "pod2", want: trace.Dropped, by: "table ip x",
		rules: forward("ip saddr 10.1.1.12 tcp flags & (syn|ack) == syn|ack drop")},
	{name: "a rule about all ports of clients, in the reply", from: "pod1", to: "pod2", want: trace.Dropped,
		by: "table ip x", rules: forward("ip saddr 10.1.1.12 tcp dport 1024-65535 drop")},
	{name: "a rule about some ports of clients, in the reply", from: "pod1", to: "pod2", want: trace.Undecided,
		doubt: "tcp dport >= 30000", rules: forward("ip saddr 10.1.1.12 tcp dport 30000-40000 drop")},
	{name: "rules about ports that no client has", from: "pod1", to: "pod2", want: trace.Delivered,
		rules: forward("tcp dport 80 drop; tcp dport < 1024 drop; tcp sport { 53, 80 } drop; meta l4proto tcp " +
			"ct original proto-src 80 drop; tcp sport . tcp dport { 80 . 8080 } drop")},
	{name: "a rule of iptables about all ports of clients, in the reply", from: "pod1", to: "pod2",
		rules: "table ip x {}", want: trace.Dropped, by: "--dport 1024:65535", break_: runs("iptables -w -A FORWARD " +
			"-s 10.1.1.12 -p tcp -m tcp --dport 1024:65535 -m comment --comment x -j DROP")},
	{name: "a rule of iptables about some ports of clients", from: "pod1", to: "pod2", rules: "table ip x {}",
		want: trace.Undecided, doubt: "30000:40000",
		break_: runs("iptables -w -A FORWARD -p tcp -m multiport --ports 30000:40000 -j DROP")},
	{name: "rules of iptables about ports that no client has", from: "pod1", to: "pod2", rules: "table ip x {}",
		want: trace.Delivered, break_: runs("iptables -w -A FORWARD -p tcp -m multiport --ports 80,443 -j DROP; " +
			"iptables -w -A FORWARD -p tcp -m tcp --sport 80 -m comment --comment x -j DROP")},
	{name: "a reply is of a connection that is confirmed", from: "pod1", to: "pod2", want: trace.Dropped,
		by: "table ip x", rules: forward("ct status confirmed ip saddr 10.1.1.12 drop")},
	{name: "the first packet is of none, and next ones are assured", from: "pod1", to: "pod2", want: trace.Dropped,
		by: "rule 2", rules: forward("ct direction original ct status & (confirmed | seen-reply) == confirmed drop; " +
			"ct status assured drop")},
	{name: "a masqueraded packet of the node has another port", from: "node1", to: "pod2", want: trace.Dropped,
		by: "ct status snat", rules: at("input priority 0", "ct status snat drop") +
			"\ntable ip x { chain n { type nat hook postrouting priority 100; masquerade fully-random; }; }"},
	{name: "a masqueraded packet of the node keeps its source", from: "node1", to: "pod2", want: trace.Delivered,
		rules: at("input priority 0", "ct status snat drop") +
			"\ntable ip x { chain n { type nat hook postrouting priority 100; masquerade; }; }"},
	{name: "a masqueraded packet of the node has another port, of iptables", from: "node1", to: "pod2",
		want: trace.Dropped, by: "ct status snat", rules: at("input priority 0", "ct status snat drop"),
		break_: runs("iptables -w -t nat -A POSTROUTING -p tcp -j MASQUERADE --random-fully")},
	{name: "the error of a refusal comes from the address that the client asked", from: "node1", to: "10.96.0.1",
		want: trace.Rejected, by: "ip saddr 172.18.0.2 reject",
		rules: at("input priority 0", "ip saddr 172.18.0.2 reject") +
			"\ntable ip x { chain n { type nat hook output priority -100; ip daddr 10.96.0.1 dnat to 172.18.0.2; }; }"},
	{name: "the error of a refusal has a source before its route, IPv6", from: "client", to: "pod2", six: true,
		want: trace.Undecided, doubt: "whether the error that refuses the packet has its source fd00:18::2",
		break_: runs("ip -6 route del fd00:10:1:1::12; ip -6 route del default; " +
			"ip -6 rule add from fd00:18::/124 iif lo unreachable prio 32000")},
	{name: "the node has no route to the client, and forwarded replies have one", from: "client", to: "pod2",
		want: trace.Delivered, break_: runs("ip rule add iif lo to 172.18.0.100 prohibit prio 50")},
	{name: "an error of a refusal is dropped, of next packets", from: "node1", to: "pod2", want: trace.Dropped,
		by: "ct direction original reject", rules: at("output priority 0", "ct state established "+
			"ct direction original reject; ct state related drop")},
	{name: "a socket that is not bound sends from the address of the route", from: "node1", to: "pod2",
		want: trace.Dropped, by: "ip saddr 172.20.0.1",
		break_: runs("ip addr add 172.20.0.1/32 dev lo; ip route replace 10.1.1.12 dev vethpod2 src 172.20.0.1"),
		rules:  at("output priority 0", "ip saddr 172.20.0.1 ip daddr 10.1.1.12 drop")},
	{name: "a socket of IPv6 that is not bound sends from the nearest address", from: "node1", to: "pod2", six: true,
		want: trace.Delivered, break_: runs("ip addr add fd00:10:1:1::1/128 dev vethpod1 nodad; " + // ready a bit later
			"until ip -6 route show table local | grep -q fd00:10:1:1::1; do sleep 0.01; done; " +
			"ip -6 route replace fd00:10:1:1::12 dev vethpod2; " +
			"ip -6 rule add not from fd00:10:1:1::/64 blackhole prio 100")},
	{name: "a rule about addresses of the input interface", from: "client", to: "node1", in: "eth0",
		rules: "table ip x {}", want: trace.Dropped, by: "--limit-iface-in",
		break_: runs("iptables -w -A INPUT -i eth0 -m addrtype --dst-type LOCAL --limit-iface-in -j DROP")},
	{name: "a rule about addresses of another interface", from: "pod1", to: "node1", rules: "table ip x {}",
		want:   trace.Delivered,
		break_: runs("iptables -w -A INPUT -m addrtype --dst-type LOCAL --limit-iface-in -j DROP")},
	{name: "a rule about addresses of the output interface", from: "node1", to: "node1", six: true,
		rules: "table ip x {}", want: trace.Delivered,
		break_: runs("ip6tables -w -A OUTPUT -m addrtype ! --src-type LOCAL --limit-iface-out -o eth0 -j DROP")},
	{name: "a reset has a source before its route, IPv6", from: "client", to: "pod2", six: true, want: trace.Rejected,
		by: "table ip6 x", rules: "table ip6 x { chain c { type filter hook forward priority 0; tcp dport 8080 " +
			"reject with tcp reset; }; }",
		break_: runs("ip -6 rule add from fd00:18::/124 unreachable prio 50")},
	{name: "the error of a refusal is sent elsewhere", from: "pod1", to: "pod2", want: trace.Dropped,
		by: "tcp dport 8080", rules: forward("tcp dport 8080 reject") +
			"\ntable ip x { chain o { type filter hook output priority -300; ip daddr set 192.0.2.11; }; }"},
	{name: "the error of a refusal before the route has no source", from: "pod1", to: "node1", want: trace.Rejected,
		by: "table ip x", rules: at("prerouting priority -110", "tcp dport 8080 reject"),
		break_: runs("ip rule add from 172.18.0.0/28 blackhole prio 50")},
	{name: "a reset before the route has a source", from: "pod1", to: "node1", want: trace.Dropped,
		by: "table ip x", rules: at("prerouting priority -110", "tcp dport 8080 reject with tcp reset"),
		break_: runs("ip rule add from 172.18.0.0/28 blackhole prio 50")},
	{name: "loopback from outside", from: "pod1", to: "127.0.0.1",
		want: trace.Dropped, by: "net.ipv4.conf.vethpod1.route_localnet=0"},
}

// TestFaults breaks a node, asks, and sends a real packet (NT-02, NT-03, NT-04, NT-07,
// NT-14, NT-18, NT-21).
func TestFaults(t *testing.T) {
	for _, f := range faults {
		if f.break_ == nil {
			f.break_ = both()
		}
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			lab := netlab.ForTest(t, netlab.Options{Bridge: f.bridge})
			const port = 8080
			from, _ := netlab.HostByName(f.from)
			to := netip.AddrPort{}
			if h, ok := netlab.HostByName(f.to); ok {
				lab.Serve(netlab.TCP, port, f.to)
				to = netip.AddrPortFrom(h.Addr(f.six), port)
			} else {
				to = netip.AddrPortFrom(netip.MustParseAddr(f.to), port)
			}
			lab.On(netlab.Node1, func() {
				if err := f.break_(); errors.Is(err, os.ErrNotExist) {
					t.Skipf("only newer kernels have that: %v", err)
				} else if err != nil {
					t.Fatal(err)
				}
				q := Question{Packet: trace.Packet{
					From: netip.AddrPortFrom(from.Addr(f.six), 0), To: to,
					Host: f.from == netlab.Node1, Unbound: f.from == netlab.Node1, In: f.in, Proto: lb.TCP,
				}, OnNode: onNode1}
				n, err := Follow(t.Context(), q, open{})
				if f.rules != "" {
					if err = runs("nft '" + f.rules + "'")(); err == nil {
						n, err = Ask(t.Context(), q)
					}
				}
				if err != nil {
					t.Fatal(err)
				}
				if n.Verdict != f.want || !strings.Contains(n.By, f.by) || (n.By == "") != (f.by == "") ||
					(len(n.NotEvaluated) > 0) != (f.doubt != "") ||
					!strings.Contains(strings.Join(n.NotEvaluated, "\n"), f.doubt) {
					t.Errorf("%s by %q (do %q), want %s by %q\n%+v", n.Verdict, n.By, n.Do, f.want, f.by, n)
				}
				for _, s := range n.Steps {
					t.Logf("%v %s: %s", s.Reply, s.Stage, s.Text)
				}
			})
			if !to.Addr().IsLoopback() && f.want != trace.Undecided {
				if real, err := outcome(lab, f.from, to, f.want); real != f.want {
					t.Errorf("the real packet is %s (%v), want %s", real, err, f.want)
				}
			}
		})
	}
}

// A cgroup that cannot be read is one thing that was not evaluated: the rest is (NT-06).
func TestCgroupUnreadable(t *testing.T) {
	lab := netlab.ForTest(t, netlab.Options{})
	lab.On(netlab.Node1, func() {
		from, _ := netlab.HostByName("pod1")
		n, err := Follow(t.Context(), Question{Packet: trace.Packet{From: netip.AddrPortFrom(from.V4, 0),
			To: netip.MustParseAddrPort("10.1.1.12:8080"), Proto: lb.TCP},
			Kernel: &trace.Kernel{Programs: &trace.Programs{Cgroup: "/nowhere"}}}, open{})
		want := []string{"BPF programs of cgroup /nowhere: cannot be listed: open /nowhere: no such file or directory"}
		if err != nil || n.Verdict != trace.Undecided || !slices.Equal(n.NotEvaluated, want) || len(n.Steps) == 0 {
			t.Errorf("%+v, %v", n, err)
		}
	})
}

// open is a packet filter without rules.
type open struct{}

func (open) Pass(_ context.Context, _ hooks.Hook, p hooks.Packet) ([]hooks.Way, error) {
	if p.To.Addr() == netip.MustParseAddr("10.1.1.12") && !p.Flow.Reply { // as if a Service led there
		return []hooks.Way{{Packet: p, Share: 1, Translated: true}}, nil
	}
	return []hooks.Way{{Packet: p, Share: 1}}, nil
}
func (open) Notes() []string { return nil }
func (open) Path() []string  { return nil }

func onNode1(a netip.AddrPort) bool { return netlab.Node1Pods4.Contains(a.Addr()) }

// outcome sends a real packet. It waits long for an answer only if it wants one.
func outcome(lab *netlab.TestLab, from string, to netip.AddrPort, want trace.NodeVerdict) (trace.NodeVerdict, error) {
	timeout := 10 * time.Second
	if want == trace.Dropped {
		timeout = 300 * time.Millisecond
	}
	_, err := lab.Dial(from, netlab.TCP, to, netlab.DialOptions{Timeout: timeout})
	switch {
	case err == nil:
		return trace.Delivered, nil
	case errors.Is(err, netlab.ErrTimeout):
		return trace.Dropped, err
	}
	return trace.Rejected, err
}
