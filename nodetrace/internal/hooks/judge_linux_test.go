package hooks

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	nlconn "kube-proxy/internal/netlink"
	"kube-proxy/lb"
	"kube-proxy/trace"
)

// judge is a node between pods, where the kernel shows what becomes of a packet and of its reply.
type judge struct {
	t       testing.TB
	lab     *netlab.TestLab
	family  lb.Family
	node    netip.Addr
	pods    map[string]netip.Addr
	servers map[netip.AddrPort]*net.UDPConn
	guide   [2]*net.UDPConn // client and server of packets that every rule set accepts
	ct      *nlconn.Conn
	port    uint16
	round   uint32 // of samples
}

// Ports on which the server and the node answer; guided is that of packets that every rule set
// accepts.
var served = []uint16{53, 80, 443, 8080, 9000}

const guided = 9

// newJudge builds the lab. The calling thread keeps to one CPU, on which the kernel then handles
// all packets, in their order.
func newJudge(t testing.TB, family lb.Family) *judge {
	t.Helper()
	runtime.LockOSThread()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	for cpu := 0; one.Count() == 0; cpu++ {
		if before.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.SchedSetaffinity(0, &before); runtime.UnlockOSThread() })
	six := family == lb.IPv6
	j := &judge{t: t, lab: netlab.ForTest(t, netlab.Options{NoNode2: true, NoClient: true}), family: family,
		pods: map[string]netip.Addr{}, servers: map[netip.AddrPort]*net.UDPConn{}, port: 10000}
	for _, h := range j.lab.Hosts() {
		j.pods[h.Name] = h.Addr(six)
	}
	j.node = j.pods[netlab.Node1]
	for _, host := range []string{"pod2", netlab.Node1} {
		for _, port := range append([]uint16{guided}, served...) {
			at := netip.AddrPortFrom(j.pods[host], port)
			j.servers[at] = j.socket(host, at, netip.AddrPort{})
		}
	}
	for _, pod := range []string{"pod1", "pod2", "pod3"} { // rules may drop neighbour discovery
		var mac net.HardwareAddr
		j.on(pod, func() {
			link, err := net.InterfaceByName(netlab.Uplink)
			if err != nil {
				t.Fatal(err)
			}
			mac = link.HardwareAddr
		})
		j.on(netlab.Node1, func() {
			load(t, "", "ip", "neigh", "replace", j.pods[pod].String(), "lladdr", mac.String(),
				"dev", j.device(j.pods[pod]), "nud", "permanent")
		})
	}
	at := netip.AddrPortFrom(j.pods["pod2"], guided)
	j.guide = [2]*net.UDPConn{j.socket("pod1", netip.AddrPortFrom(j.pods["pod1"], guided), at), j.servers[at]}
	j.on(netlab.Node1, func() {
		for _, name := range []string{"ipv4/icmp_ratemask", "ipv6/icmp/ratelimit"} {
			if err := os.WriteFile("/proc/sys/net/"+name, []byte("0"), 0); err != nil {
				t.Fatal(err)
			}
		}
		var err error
		if j.ct, err = nlconn.Open(nlconn.Config{Protocol: unix.NETLINK_NETFILTER}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { j.ct.Close() })
	})
	return j
}

func (j *judge) on(host string, f func()) { j.lab.On(host, f) }

// socket opens a socket in a host, connected if to is valid.
func (j *judge) socket(host string, from, to netip.AddrPort) *net.UDPConn {
	j.t.Helper()
	var c *net.UDPConn
	j.on(host, func() {
		var err error
		if to.IsValid() {
			c, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(from), net.UDPAddrFromAddrPort(to))
		} else {
			c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(from))
		}
		if err != nil {
			j.t.Fatal(err)
		}
	})
	return c
}

// barrier returns when the kernel has handled all packets sent before, and those that they
// caused.
func (j *judge) barrier() {
	j.t.Helper()
	var b [8]byte
	for i := range 2 {
		for _, c := range j.guide {
			if err := c.SetReadDeadline(time.Now().Add(3 * time.Second)); err != nil {
				j.t.Fatal(err)
			}
		}
		if _, err := j.guide[0].Write([]byte{byte(i)}); err != nil {
			j.t.Fatal(err)
		}
		_, from, err := j.guide[1].ReadFromUDPAddrPort(b[:])
		if err == nil {
			_, err = j.guide[1].WriteToUDPAddrPort(b[:1], from)
		}
		if err == nil {
			_, err = j.guide[0].Read(b[:])
		}
		if err != nil {
			j.t.Fatalf("a packet that every rule set accepts: %v", err)
		}
	}
}

// forget makes conntrack forget all connections.
func (j *judge) forget() {
	j.t.Helper()
	var e nlconn.Encoder
	at := e.Netfilter(unix.NFNL_SUBSYS_CTNETLINK<<8|2, unix.NLM_F_ACK, unix.AF_UNSPEC, 0, 0) // IPCTNL_MSG_CT_DELETE
	e.EndMessage(at)
	if err := j.ct.Do(j.t.Context(), e.B, nil); err != nil {
		j.t.Fatal(err)
	}
}

// sample is a packet that is judged.
type sample struct {
	host     string
	from, to netip.AddrPort
	conn     *net.UDPConn

	want []outcome
	got  outcome
}

// outcome is what becomes of a packet.
type outcome struct {
	verdict  trace.Verdict  // Pass, Drop or Reject
	at, from netip.AddrPort // where it is received, and the source that the receiver sees
	replied  bool
	doubtful bool // a rule on the way is not evaluated
	by       string
}

func (o outcome) String() string {
	return fmt.Sprintf("%s at %s from %s, replied %t, doubtful %t %s", o.verdict, o.at, o.from, o.replied,
		o.doubtful, o.by)
}

// agrees reports whether the kernel did what was predicted. An error that a rule sends may be
// dropped on its way.
func (o outcome) agrees(got outcome, masked bool) bool {
	switch {
	case o.verdict != trace.Pass:
		return got.verdict == o.verdict || o.verdict == trace.Reject && got.verdict == trace.Drop
	case got.verdict != trace.Pass || o.at != got.at || o.replied != got.replied:
		return false
	}
	return masked || o.from.Addr() == got.from.Addr()
}

// Datagrams say which round and sample they belong to, and whether they are the request or the
// reply: a rule may lead a reply to another server, or a datagram may arrive when its round has
// ended.
const (
	asks = iota
	answers
)

func (j *judge) datagram(kind, id uint32) []byte {
	b := binary.BigEndian.AppendUint32(nil, j.round)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, kind), id)
}

// send sends the samples and sees what becomes of them.
func (j *judge) send(all []*sample) {
	j.t.Helper()
	j.round++
	for i, s := range all {
		s.conn = j.socket(s.host, s.from, s.to)
		if _, err := s.conn.Write(j.datagram(asks, uint32(i))); err != nil &&
			!errors.Is(err, unix.EPERM) && !rejection(err) {
			j.t.Fatal(err)
		} else if err != nil { // a local packet that is dropped is refused to its sender
			s.got.verdict = trace.Drop
		}
	}
	j.barrier()
	for at, c := range j.servers {
		j.each(c, asks, func(id uint32, from netip.AddrPort) {
			all[id].got = outcome{verdict: trace.Pass, at: at,
				from: netip.AddrPortFrom(from.Addr().Unmap(), from.Port())}
			if _, err := c.WriteToUDPAddrPort(j.datagram(answers, id), from); err != nil &&
				!errors.Is(err, unix.EPERM) && !rejection(err) {
				j.t.Fatal(err)
			}
		})
	}
	j.barrier()
	for i, s := range all {
		err := j.each(s.conn, answers, func(id uint32, _ netip.AddrPort) {
			s.got.replied = s.got.replied || int(id) == i
		})
		switch {
		case s.got.verdict == trace.Pass:
		case rejection(err):
			s.got.verdict = trace.Reject
		default:
			s.got.verdict = trace.Drop
		}
		s.conn.Close()
	}
}

func rejection(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err,
		unix.ENETUNREACH) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOPROTOOPT)
}

// each calls f for the datagrams of a kind that a socket has of this round, and returns the error
// that ends them.
func (j *judge) each(c *net.UDPConn, kind uint32, f func(id uint32, from netip.AddrPort)) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	for {
		var b [64]byte
		var n int
		var from unix.Sockaddr
		if e := raw.Control(func(fd uintptr) {
			n, from, err = unix.Recvfrom(int(fd), b[:], unix.MSG_DONTWAIT)
		}); e != nil {
			return e
		}
		if err != nil {
			return err
		}
		if id := binary.BigEndian.Uint32(b[8:]); n == 12 && bytes.Equal(b[:n], j.datagram(kind, id)) {
			f(id, netlab.AddrPort(from))
		}
	}
}

// device is the node's device to an address, "" for one of the node or of no host.
func (j *judge) device(a netip.Addr) string {
	for _, pod := range []string{"pod1", "pod2", "pod3"} {
		if j.pods[pod] == a {
			return netlab.PodInterfacePrefix + pod[3:]
		}
	}
	return ""
}

// walked is a packet on its way, as predicted.
type walked struct {
	Packet
	verdict      trace.Verdict
	doubtful     bool
	masked, dnat bool
	by           string
}

// hooks sends a packet through a hook, and those that continue onwards.
func (j *judge) hook(s *Snapshot, h Hook, all []walked, prepare func(*walked)) (out []walked) {
	j.t.Helper()
	for _, w := range all {
		if w.verdict != "" {
			out = append(out, w)
			continue
		}
		prepare(&w)
		ways, err := s.Pass(j.t.Context(), h, w.Packet)
		if err != nil {
			j.t.Fatal(err)
		}
		for _, way := range ways {
			next := walked{way.Packet, way.Verdict, w.doubtful || len(way.NotEvaluated) > 0,
				w.masked || way.Masqueraded, w.dnat || way.Translated, w.by}
			if way.By != nil {
				next.by = h.String() + ": " + way.By.String()
			}
			out = append(out, next)
		}
	}
	return out
}

// forth follows packets to where they are received.
func (j *judge) forth(s *Snapshot, all []walked, local bool) []walked {
	if local {
		all = j.hook(s, Output, all, func(w *walked) { w.Out = j.device(w.To.Addr()) })
	} else {
		all = j.hook(s, Prerouting, all, func(w *walked) { w.In = j.device(w.From.Addr()) })
	}
	for i := range all {
		if w := &all[i]; w.verdict == "" && w.To.Addr() != j.node && j.device(w.To.Addr()) == "" {
			w.verdict, w.by = trace.Reject, "no host has "+w.To.Addr().String() // of no host
			if w.To.Addr().IsUnspecified() || w.To.Addr().IsLoopback() {
				w.verdict, w.doubtful = trace.Drop, true
			}
		}
	}
	var here, away []walked
	for _, w := range all {
		if w.To.Addr() == j.node && !local {
			here = append(here, w)
		} else {
			away = append(away, w)
		}
	}
	here = j.hook(s, Input, here, func(w *walked) {})
	if !local {
		away = j.hook(s, Forward, away, func(w *walked) {
			w.Out = j.device(w.To.Addr())
			w.TTL -= min(w.TTL, 1)
		})
	}
	away = j.hook(s, Postrouting, away, func(w *walked) { w.Out = j.device(w.To.Addr()) })
	return append(here, away...)
}

// predict says what becomes of a sample.
func (j *judge) predict(s *Snapshot, p *sample) (masked bool) {
	j.t.Helper()
	first := walked{Packet: Packet{Proto: lb.UDP, From: p.from, To: p.to}}
	for _, w := range j.forth(s, []walked{first}, p.host == netlab.Node1) {
		o := outcome{verdict: w.verdict, at: w.To, from: w.From, doubtful: w.doubtful, by: w.by}
		if o.verdict == "" {
			o.verdict = trace.Pass
			masked = masked || w.masked
			o.replied = j.back(s, p, w, &o)
		}
		p.want = append(p.want, o)
	}
	return masked
}

// back reports whether the reply comes to the client.
func (j *judge) back(s *Snapshot, p *sample, w walked, o *outcome) bool {
	sees := w.From
	if w.masked && sees == p.from { // an address of the node
		sees = netip.AddrPortFrom(j.node, p.from.Port())
	}
	reply := walked{Packet: Packet{Proto: lb.UDP, From: w.To, To: sees}}
	reply.Flow = Flow{State: Established, Reply: true, Orig: Tuple{p.from, p.to}, Reverse: Tuple{w.To,
		sees}, Mark: w.Flow.Mark, Label: w.Flow.Label}
	if w.Flow.State == Untracked {
		reply.Flow = Flow{} // it opens a connection of its own
	}
	all := j.forth(s, []walked{reply}, w.To.Addr() == j.node)
	back := false
	for _, r := range all {
		o.doubtful = o.doubtful || r.doubtful
		if o.by = r.by; r.verdict == "" && (!r.masked || p.to.Addr() == j.node) &&
			r.To.Addr() == p.from.Addr() && r.From == p.to {
			back = true
		}
	}
	return back
}
