package planetest

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/scenario"
)

// attempt is how a connection ended that a line began.
type attempt struct {
	conn *netlab.Conn
	err  error
}

// begin starts a connection and returns when node1 tracks it. The client then repeats its SYN until
// an answer arrives. sent is false if the line is not for this family.
func (r *run) begin(p scenario.Packet) (sent bool, err error) {
	shots, err := r.resolve(p)
	if err != nil || len(shots) == 0 {
		return false, err
	}
	from, to := netip.AddrPortFrom(shots[0].Local, r.lab.nextPort()), shots[0].To
	ended := make(chan attempt, 1)
	go func() {
		c, err := r.lab.lab.Open(p.From, netlab.Proto(shots[0].Proto.String()), to,
			netlab.DialOptions{Timeout: r.s.timeout, Local: from})
		ended <- attempt{c, err}
	}()
	r.mu.Lock()
	r.begun[p.Conn] = ended
	r.mu.Unlock()
	for len(ended) == 0 {
		if tracked, err := r.lab.tracks(r.family, from.Port(), to); tracked || err != nil {
			return true, err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return true, errors.New("the connection ended before node1 tracked it")
}

// reaches waits for a connection that was begun before, and keeps it open. sent is false if it was
// not for this family.
func (r *run) reaches(p scenario.Packet) (sent bool, err error) {
	r.mu.Lock()
	ended := r.begun[p.Conn]
	r.mu.Unlock()
	if ended == nil {
		return false, nil
	}
	got := <-ended
	if got.err != nil {
		return true, fmt.Errorf("connection %s: %w", p.Conn, got.err)
	}
	r.mu.Lock()
	r.conns[p.Conn] = got.conn
	r.mu.Unlock()
	if server, want := got.conn.First().Server, p.Want.Backends[0].Host; server != want {
		return true, fmt.Errorf("connection %s was answered by %s, not by %s", p.Conn, server, want)
	}
	return true, nil
}

// tracks reports whether node1 has a flow from the client's port to the address.
func (f *field) tracks(family lb.Family, from uint16, to netip.AddrPort) (tracked bool, err error) {
	all, err := f.tracked(family)
	return all[way{from, to}], err
}

// way is a client's port, and where its packets go.
type way struct {
	from uint16
	to   netip.AddrPort
}

// tracked returns the flows of node1, as they began.
func (f *field) tracked(family lb.Family) (map[way]bool, error) {
	all := map[way]bool{}
	err := f.inHost(netlab.Node1, func(h *netlink.Handle) error {
		number := netlink.InetFamily(netlink.FAMILY_V4)
		if family == lb.IPv6 {
			number = netlink.FAMILY_V6
		}
		flows, err := h.ConntrackTableList(netlink.ConntrackTable, number)
		if err != nil {
			return fmt.Errorf("list the flows of node1: %w", err)
		}
		for _, flow := range flows {
			to, _ := netip.AddrFromSlice(flow.Forward.DstIP)
			all[way{flow.Forward.SrcPort, netip.AddrPortFrom(to.Unmap(), flow.Forward.DstPort)}] = true
		}
		return nil
	})
	return all, err
}
