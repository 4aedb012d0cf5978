package kube

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"time"

	"kube-proxy/cluster"
)

// dialer connects to the API server, or to the HTTP proxy before it, and first reports where that
// is, so that no Service takes the address (TN-66). A name is resolved at each connection, so the
// addresses are as new as the connection.
type dialer struct {
	base func(ctx context.Context, network, addr string) (net.Conn, error) // nil is a plain connection
	send func(cluster.Event)                                               // set before the first connection
}

// dial is for [k8s.io/client-go/rest.Config].
func (d *dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if all := addrsOf(ctx, addr); len(all) > 0 {
		d.send(cluster.APIServerAt{Addrs: all})
	}
	base := d.base
	if base == nil {
		base = (&net.Dialer{Timeout: dialTimeout, KeepAlive: dialTimeout}).DialContext
	}
	conn, err := base(ctx, network, addr)
	if err != nil {
		return nil, noConnection{err}
	}
	return conn, nil
}

// noConnection is an error of connecting: no request can reach the server.
type noConnection struct{ error }

func (n noConnection) Unwrap() error { return n.error }

// dialTimeout is client-go's, for connecting and between keep-alive probes.
const dialTimeout = 30 * time.Second

// addrsOf returns the addresses that "host:port" stands for; none if they cannot be found, which
// the dial reports.
func addrsOf(ctx context.Context, addr string) (all []netip.AddrPort) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return nil
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return nil
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host) // of an address, that address
	if err != nil {
		return nil
	}
	for _, a := range found {
		all = append(all, netip.AddrPortFrom(a.Unmap().WithZone(""), uint16(port)))
	}
	return all
}
