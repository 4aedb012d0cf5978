//go:build linux

package xt

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	nlconn "kube-proxy/internal/netlink"
	rtnl "kube-proxy/internal/netlink/route"
)

// surroundings answers the queries of rules about the node: the owner of an address, and the
// interface to it.
type surroundings struct {
	conn       *nlconn.Conn
	routes     map[netip.Addr]rtnl.Route
	interfaces map[int32]string
}

// inspectAround opens them in the network namespace of the calling thread.
func inspectAround() (*surroundings, error) {
	conn, err := nlconn.Open(nlconn.Config{Protocol: unix.NETLINK_ROUTE})
	if err != nil {
		return nil, fmt.Errorf("query routes: %w", err)
	}
	return &surroundings{conn: conn, routes: map[netip.Addr]rtnl.Route{}, interfaces: map[int32]string{}}, nil
}

func (s *surroundings) close() { s.conn.Close() }

func (s *surroundings) route(ctx context.Context, a netip.Addr) (rtnl.Route, error) {
	if way, known := s.routes[a]; known {
		return way, nil
	}
	way, err := rtnl.Lookup(ctx, s.conn, rtnl.Query{To: a})
	if err != nil {
		return rtnl.Route{}, fmt.Errorf("query the route to %s: %w", a, err)
	}
	s.routes[a] = way
	return way, nil
}

// interfaceTo returns the name of the interface to an address, "" without a route.
func (s *surroundings) interfaceTo(ctx context.Context, a netip.Addr) (string, error) {
	way, err := s.route(ctx, a)
	if err != nil || way.Out == 0 {
		return "", err
	}
	name, known := s.interfaces[way.Out]
	if !known {
		if name, err = rtnl.LinkName(ctx, s.conn, way.Out); err != nil {
			return "", err
		}
		s.interfaces[way.Out] = name
	}
	return name, nil
}

// The surroundings are the route of a walk through the kernel's own chains.

func (s *surroundings) here(w *walker, a netip.Addr) bool {
	if a == w.from() && w.packet.Host || a == w.packet.To.Addr() && w.packet.Here {
		return true
	}
	way, err := s.route(w.ctx, a)
	w.fail(err)
	return way.Here()
}

func (s *surroundings) comesIn(w *walker) (name string, known bool) {
	switch {
	case !w.arriving:
		return "", true
	case w.packet.Host:
		return "lo", true
	case w.packet.In != "":
		return w.packet.In, true
	}
	return s.interfaceFor(w, w.from()) // the way back, as most networks have it
}

func (s *surroundings) leaves(w *walker, to netip.Addr) (name string, known bool) {
	if !w.leaving {
		return "", true
	}
	if w.sending {
		to = w.packet.To.Addr()
	}
	return s.interfaceFor(w, to)
}

func (s *surroundings) interfaceFor(w *walker, a netip.Addr) (name string, known bool) {
	name, err := s.interfaceTo(w.ctx, a)
	w.fail(err)
	return name, name != ""
}

// remembers reports whether a list of xt_recent has a client that was seen within so many seconds,
// 0 for any time, and its age.
func remembers(list string, client netip.Addr, within uint32) (age time.Duration, known bool) {
	if strings.Contains(list, "/") { // no list can be called so
		return 0, false
	}
	f, err := os.Open("/proc/thread-self/net/xt_recent/" + list)
	if err != nil { // the list is made with the first rule that names it
		return 0, false
	}
	defer f.Close()
	seen, found := seenIn(f, client)
	if !found {
		return 0, false
	}
	now, tick, err := jiffies()
	if err != nil {
		return 0, false
	}
	age = time.Duration(max(int32(now-seen), 0)) * tick
	return age, within == 0 || age <= time.Duration(within)*time.Second
}

// seenIn returns the time in jiffies at which a list saw a client last.
func seenIn(list io.Reader, client netip.Addr) (seen uint32, found bool) {
	lines := bufio.NewScanner(list)
	for lines.Scan() {
		words := strings.Fields(lines.Text()) // src=10.0.0.1 ttl: 64 last_seen: 4295022318 oldest_pkt: 1 4295022318
		if len(words) < 5 || words[3] != "last_seen:" {
			continue
		}
		src, err := netip.ParseAddr(strings.TrimPrefix(words[0], "src="))
		if err != nil || src != client {
			continue
		}
		n, err := strconv.ParseUint(words[4], 10, 64)
		return uint32(n), err == nil
	}
	return 0, false
}

// jiffies returns the low half of the kernel's clock, which xt_recent uses, and the length of a
// tick. The clock started five minutes before its overflow.
func jiffies() (now uint32, tick time.Duration, err error) {
	var ts unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &ts); err != nil {
		return 0, 0, os.NewSyscallError("clock_getres", err)
	}
	if tick = time.Duration(ts.Nano()); tick <= 0 {
		return 0, 0, errors.New("the kernel does not report the tick of its clock")
	}
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, 0, os.NewSyscallError("clock_gettime", err)
	}
	hz := (time.Second + tick/2) / tick
	return uint32(time.Duration(ts.Nano())/tick) - uint32(300*hz), tick, nil
}
