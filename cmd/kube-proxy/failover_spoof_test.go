//go:build linux

package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
)

// TestFailoverSpoofed: a tenant's slices list 10,000 silent endpoints, those of a stranger, the
// node, the API server and what is outside of the cluster, and a pod sends first packets with
// random sources and few hops, to that Service, to the stranger's and to closed ports, each of them
// twice. No connection of others fails or moves, a dead endpoint is avoided meanwhile, and the node
// sends no more than it may, counted on the wire (FO-05, FO-08, FO-10).
func TestFailoverSpoofed(t *testing.T) {
	inFailoverModes(t, func(t *testing.T, n *failoverLab) {
		n.hostileSlices()
		n.run(netlab.Node1, "ip", "route", "add", hostileRange, "via", "172.18.0.3")
		drops := filter(netlab.Node2, "ip daddr "+hostileRange+" drop")
		drops.begin(n)
		n.run(netlab.Node1, "nft", "add table ip wire; add set ip wire to { type ipv4_addr . inet_service; "+
			"flags dynamic; counter; }; add chain ip wire out { type filter hook output priority 300; }; "+
			"add rule ip wire out tcp dport != 10249 tcp flags & (syn | ack) == syn add @to { ip daddr . tcp dport }")
		p := n.serveFailover("--failover=avoid")
		begun := time.Now()
		stop := n.spoof(n.vip, netip.MustParseAddrPort("10.96.0.66:80"), netip.MustParseAddrPort("10.96.0.66:81"),
			netip.MustParseAddrPort("10.96.0.10:81"))
		until(t, func() string {
			silent := p.metric(`kubeproxy_failover_probes_total{result="silent"}`)
			if answers := p.metric(`kubeproxy_failover_probes_total{result="answers"}`); silent < 40 || answers < 3 {
				return fmt.Sprintf("%v probes were silent, want 40, and %v answered, want 3", silent, answers)
			}
			return ""
		})
		n.unmoved(2)
		for _, reason := range []string{"node", "endpoint"} {
			if v := p.metric(`kubeproxy_failover_avoided_endpoints{reason="` + reason + `"}`); v != 0 {
				t.Errorf("%v endpoints are avoided because of the %s, want none", v, reason)
			}
		}
		drops.end(n)
		filter(netlab.Node2, "drop").begin(n)
		until(t, func() string { // meanwhile clients may wait for their share of probes
			if all := n.crowd(patience); all.elsewhere() != crowd || p.metric(avoidances) == 0 {
				return fmt.Sprintf("while node2 is cut off: %v\n%s", all, p.log())
			}
			return ""
		})
		stop()
		n.checkWire(time.Since(begun))
		nodeDead.end(n)
		n.awaitPod4()
		p.end(syscall.SIGTERM)
	})
}

// hostileRange has no hosts.
const hostileRange = "10.66.0.0/16"

// Others' endpoints in the hostile slices. Policy serves none of refused (docs/adr/0023).
var (
	stolen  = []string{"10.1.1.11", "10.1.2.14", "172.18.0.2", "172.18.0.254", "192.0.2.1"}
	refused = []string{"127.0.0.1", "169.254.169.254", "224.0.0.1", "10.96.0.10"}
)

// hostileSlices add Service evil/web.
func (n *failoverLab) hostileSlices() {
	n.t.Helper()
	const slices, each = 10, 1000
	var text strings.Builder
	text.WriteString("kind: Service\nmetadata: {name: web, namespace: evil}\n" +
		"spec: {clusterIP: 10.96.0.66, ports: [{name: http, port: 80}]}\n")
	for i := range slices {
		var all []string
		if i == 0 {
			all = append(all, stolen...)
		}
		for j := range each {
			all = append(all, fmt.Sprintf("10.66.%d.%d", i*4+j/250, 1+j%250))
		}
		fmt.Fprintf(&text, "---\nkind: EndpointSlice\nmetadata: {name: web-%d, namespace: evil, labels: "+
			"{kubernetes.io/service-name: web}}\naddressType: IPv4\nports: [{name: http, port: 8080}]\nendpoints:\n", i)
		for j, a := range all {
			fmt.Fprintf(&text, "- {addresses: [%s], nodeName: %s}\n", a, []string{"node2", "sink", "node9"}[j%3])
		}
	}
	for _, a := range refused {
		fmt.Fprintf(&text, "- {addresses: [%s], nodeName: node2}\n", a)
	}
	n.apply("evil", text.String())
}

// spoof sends first packets from pod3 until stopped, 100 a second, each of them twice.
func (n *failoverLab) spoof(to ...netip.AddrPort) (stop func()) {
	n.t.Helper()
	var fd int
	var err error
	n.On("pod3", func() { fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW) })
	do(n.t, err)
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var again [][]byte // those of a second
		for ticks := time.NewTicker(10 * time.Millisecond); ; {
			select {
			case <-end:
				unix.Close(fd)
				return
			case <-ticks.C:
			}
			source := netip.AddrFrom4([4]byte{10, 1, 1, byte(100 + rand.IntN(100))})
			if rand.IntN(2) == 0 {
				source = netip.AddrFrom4([4]byte{198, 18, byte(rand.IntN(256)), byte(rand.IntN(256))})
			}
			packet := firstPacket(source, to[rand.IntN(len(to))], byte(2+rand.IntN(2)))
			again = append(again, packet)
			send := [][]byte{packet}
			if len(again) > 100 {
				send = append(send, again[0])
				again = again[1:]
			}
			for _, b := range send {
				// The kernel may have no room or no route: the next one follows.
				_ = unix.Sendto(fd, b, 0, &unix.SockaddrInet4{Addr: [4]byte(b[16:20])})
			}
		}
	}()
	return func() {
		close(end)
		<-done
	}
}

// firstPacket is a SYN from a random port, RFC 791 and RFC 9293. The kernel fills in the length and
// the checksum of the IP header.
func firstPacket(from netip.Addr, to netip.AddrPort, hops byte) []byte {
	const ip, tcp = 20, 20
	b := make([]byte, ip+tcp)
	b[0], b[8], b[9] = 0x45, hops, unix.IPPROTO_TCP
	source, dest := from.As4(), to.Addr().As4()
	copy(b[12:], source[:])
	copy(b[16:], dest[:])
	order := binary.BigEndian
	order.PutUint16(b[2:], ip+tcp)
	order.PutUint16(b[ip:], uint16(1024+rand.IntN(60000)))
	order.PutUint16(b[ip+2:], to.Port())
	order.PutUint32(b[ip+4:], rand.Uint32())
	const syn = 1 << 1
	b[ip+12], b[ip+13] = tcp/4<<4, syn
	order.PutUint16(b[ip+14:], 64240)
	sum := uint32(unix.IPPROTO_TCP + tcp)
	for i := 12; i < len(b); i += 2 { // from the source on: the pseudo header has both addresses
		sum += uint32(order.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	order.PutUint16(b[ip+16:], ^uint16(sum))
	return b
}

// checkWire compares the first packets that node1 sent with the limits.
func (n *failoverLab) checkWire(during time.Duration) {
	n.t.Helper()
	out, err := n.Command(netlab.Node1, "nft", "list", "set", "ip", "wire", "to").Output()
	do(n.t, err)
	all, hostile := 0, 0
	counter := regexp.MustCompile(`([\d.]+) \. \S+ counter packets (\d+)`)
	for _, m := range counter.FindAllStringSubmatch(string(out), -1) {
		packets, err := strconv.Atoi(m[2])
		do(n.t, err)
		all += packets
		if netip.MustParsePrefix(hostileRange).Contains(netip.MustParseAddr(m[1])) {
			hostile += packets
		}
		for _, a := range refused {
			if m[1] == a {
				n.t.Errorf("%d packets to %s, which policy does not serve", packets, a)
			}
		}
	}
	seconds := int(during.Seconds()) + 1
	// The kernel sends the packet of a try again if the probe is late to close its socket.
	const perSeries, perShare, perSecond = 2 * 3, 20, 200
	if hostile == 0 || hostile > perSeries*perShare*seconds || all > perSeries*perSecond*seconds {
		n.t.Errorf("%d first packets to the tenant's endpoints and %d in all in %d s; at most %d and %d may be\n%s",
			hostile, all, seconds, perSeries*perShare*seconds, perSeries*perSecond*seconds, out)
	}
	n.t.Logf("%d first packets to the tenant's endpoints and %d in all in %d s", hostile, all, seconds)
}
