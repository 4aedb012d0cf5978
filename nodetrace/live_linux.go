package nodetrace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	nlconn "kube-proxy/internal/netlink"
	ctwire "kube-proxy/internal/netlink/conntrack"
	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/nodetrace/internal/hooks"
	"kube-proxy/plane/selfwrites"
	"kube-proxy/trace"
)

// Live has the kernel report on one real packet for the time given, and returns the reports. If
// the packet is this node's, Live sends it: a SYN or an empty datagram; else a client must. It
// works in the network namespace of the calling thread and needs CAP_NET_ADMIN. All that it adds to
// the kernel is a table that the kernel deletes when the socket closes, even after kill -9.
func Live(ctx context.Context, p trace.Packet, wait time.Duration) (trace.Live, error) {
	seen, answered := context.WithCancel(ctx)
	defer answered()
	w := &watcher{packet: p, ip: rule.IPOf(lb.FamilyOf(p.To.Addr())), answered: answered}
	w.own = wire.Table{Family: w.ip.Proto, Name: liveTable}.Title()
	sock, err := wire.Open()
	if err == nil {
		defer sock.Close()
		w.events, err = nlconn.Open(nlconn.Config{Protocol: unix.NETLINK_NETFILTER, ReceiveBuffer: 4 << 20})
	}
	if err == nil {
		defer w.events.Close()
		for _, group := range []uint32{unix.NFNLGRP_NFTRACE, ctwire.GroupNew} {
			err = errors.Join(err, w.events.Join(group))
		}
	}
	if err != nil {
		return trace.Live{}, liveError(err)
	}
	go w.events.Listen(w.notice, func() { w.note("the kernel dropped reports: too many packets at once") })
	there, _, err := wire.Table{Socket: sock, Family: w.ip.Proto, Name: liveTable}.State(ctx)
	if err == nil && there {
		err = fmt.Errorf("%w: another trace --live is running on this node", unix.EEXIST)
	} else if err == nil {
		_, err = sock.Commit(ctx, &selfwrites.Ledger{}, w.table())
	}
	if err != nil {
		return trace.Live{}, liveError(err)
	}
	seen, cancel := context.WithTimeout(seen, wait)
	defer cancel()
	var refused error
	if p.Host {
		refused = send(ctx, p, wait)
	}
	<-seen.Done()
	time.Sleep(liveTail)
	return w.result(refused), nil
}

// liveTail is how long reports are awaited after the reply.
const liveTail = 50 * time.Millisecond

// liveError explains why the kernel does not report.
func liveError(err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		err = fmt.Errorf("run as root, with CAP_NET_ADMIN: %w", err)
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL):
		err = fmt.Errorf("--live needs Linux 5.12 or newer with nftables: %w", err)
	}
	return fmt.Errorf("follow a real packet: %w", err)
}

// watcher collects the kernel's reports.
type watcher struct {
	packet trace.Packet
	ip     rule.IP
	own    string // the title of our table
	events *nlconn.Conn

	mu       sync.Mutex
	reports  []report
	flows    []ctwire.Entry
	notes    []string
	answered func() // to call when the reply has passed
}

// table is the table that marks the packet and its reply: both where they come and where they go.
func (w *watcher) table() *wire.Transaction {
	t := wire.NewTransaction(w.ip.Proto, liveTable, nil)
	t.AddOwnedTable()
	p := w.packet
	there := w.ip.From(uint8(p.Proto), p.From, p.To)
	conn := w.ip.OriginallyFrom(uint8(p.Proto), p.From, p.To)
	if p.Proto == lb.TCP {
		there, conn = append(there, rule.Opening), append(conn, rule.Handshake)
	}
	add := func(name string, at hooks.Hook, priority int32, conditions ...[]rule.Statement) {
		c := rule.Chain{Name: name + "/" + at.String(),
			Hook: wire.Hook{Type: "filter", Num: uint32(at), Priority: priority}}
		for _, all := range conditions {
			c.Rules = append(c.Rules, w.ip.New("", slices.Concat(all, rule.Traced)...))
		}
		t.AddChain(c.Name, c.Hook)
		c.AddTo(t)
	}
	const first, tracked, last = -1000, -199, 1<<31 - 2 // tracked: after conntrack
	original, answer := append(slices.Clone(conn), rule.Original), append(slices.Clone(conn), rule.Answer)
	for _, at := range []hooks.Hook{hooks.Prerouting, hooks.Output} {
		add(comes, at, first, there)
		add(replies, at, tracked, answer)
	}
	for _, at := range []hooks.Hook{hooks.Input, hooks.Postrouting} {
		add(goes, at, last, original, there)
		add(replyGoes, at, last, answer)
	}
	return t
}

// notice keeps a report.
func (w *watcher) notice(m nlconn.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case m.Type == ctwire.New:
		var e ctwire.Entry
		if e.Parse(m.Body) && e.Orig.Proto == uint8(w.packet.Proto) && len(w.flows) < maxReports {
			w.flows = append(w.flows, e)
		}
	case m.Type == wire.MsgType(unix.NFT_MSG_TRACE) && len(m.Body) > wire.Header && len(w.reports) < maxReports:
		r := parseReport(m.Body)
		w.reports = append(w.reports, r)
		if r.table == w.own && strings.HasPrefix(r.chain, replyGoes) && observed(w.own, w.reports).Answered {
			w.answered()
		}
	}
}

// parseReport reads a message about a traced packet.
func parseReport(m []byte) report {
	body := m[wire.Header:]
	verdict := nlconn.Attribute(body, unix.NFTA_TRACE_VERDICT)
	r := report{
		packet: nlconn.BE32(nlconn.Attribute(body, unix.NFTA_TRACE_ID)),
		table:  wire.Table{Family: m[0], Name: nlconn.CStr(nlconn.Attribute(body, unix.NFTA_TRACE_TABLE))}.Title(),
		chain:  nlconn.CStr(nlconn.Attribute(body, unix.NFTA_TRACE_CHAIN)),
		handle: nlconn.BE64(nlconn.Attribute(body, unix.NFTA_TRACE_RULE_HANDLE)),
	}
	code := int32(nlconn.BE32(nlconn.Attribute(verdict, unix.NFTA_VERDICT_CODE)))
	if policy := nlconn.Attribute(body, unix.NFTA_TRACE_POLICY); policy != nil {
		code, r.handle = int32(nlconn.BE32(policy)), 0
	}
	r.from, r.to = headers(nlconn.Attribute(body, unix.NFTA_TRACE_NETWORK_HEADER),
		nlconn.Attribute(body, unix.NFTA_TRACE_TRANSPORT_HEADER))
	switch code {
	case 0: // NF_DROP
		r.drop, r.text = true, "drop"
	case 1:
		r.text = "accept"
	case unix.NFT_JUMP, unix.NFT_GOTO:
		r.text = "to chain " + nlconn.CStr(nlconn.Attribute(verdict, unix.NFTA_VERDICT_CHAIN))
	case unix.NFT_RETURN:
		r.text = "return"
	default:
		r.text = "continue"
	}
	return r
}

// headers reads source and destination; not valid without both headers.
func headers(network, transport []byte) (from, to netip.AddrPort) {
	at, n := 12, 4
	if len(network) > 0 && network[0]>>4 == 6 {
		at, n = 8, 16
	}
	if len(network) < at+2*n || len(transport) < 4 {
		return from, to
	}
	source, _ := netip.AddrFromSlice(network[at : at+n])
	destination, _ := netip.AddrFromSlice(network[at+n : at+2*n])
	return netip.AddrPortFrom(source, nlconn.BE16(transport)),
		netip.AddrPortFrom(destination, nlconn.BE16(transport[2:]))
}

func (w *watcher) note(s string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Contains(w.notes, s) {
		w.notes = append(w.notes, s)
	}
}

// result says what became of the packet.
func (w *watcher) result(refused error) trace.Live {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := observed(w.own, w.reports)
	l.Sent, l.Notes = w.packet.Host, w.notes
	for _, e := range w.flows {
		if e.Orig.From == l.From && e.Orig.To == l.To { // IPVS and proxies translate without nftables
			l.Backend, l.Sees = e.Reply.From, e.Reply.To
		}
	}
	if l.Stopped() && rejection(refused) {
		l.Verdict = trace.Rejected
	}
	return l
}

// rejection reports whether an error of a connection is one that a rule or a route sends.
func rejection(err error) bool {
	return slices.ContainsFunc([]error{unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EACCES},
		func(errno error) bool { return errors.Is(err, errno) })
}

// send opens a connection of this node and ends it at once, or sends an empty datagram. It returns
// why the connection failed.
func send(ctx context.Context, p trace.Packet, wait time.Duration) error {
	d := net.Dialer{Timeout: wait, LocalAddr: net.TCPAddrFromAddrPort(p.From)}
	network := "tcp"
	if p.Proto == lb.UDP {
		network, d.LocalAddr = "udp", net.UDPAddrFromAddrPort(p.From)
	}
	c, err := d.DialContext(ctx, network, p.To.String())
	if err != nil {
		return err
	}
	defer c.Close()
	if t, ok := c.(*net.TCPConn); ok {
		return t.SetLinger(0)
	}
	if _, err := c.Write(nil); err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1))
	return err
}
