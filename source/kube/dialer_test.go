package kube

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"kube-proxy/cluster"
)

// Where the API server is becomes known before it is connected to, by address and by name (TN-66).
func TestWhereTheAPIServerIs(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "localhost"} {
		var known []netip.AddrPort
		refused := errors.New("refused")
		d := dialer{send: func(ev cluster.Event) { known = ev.(cluster.APIServerAt).Addrs },
			base: func(_ context.Context, _, addr string) (net.Conn, error) {
				if addr != host+":6443" || !slices.Contains(known, netip.MustParseAddrPort(serverAddr)) {
					t.Errorf("%s is dialed, and known at %v", addr, known)
				}
				return nil, refused
			}}
		if _, err := d.dial(t.Context(), "tcp", host+":6443"); !errors.Is(err, refused) {
			t.Errorf("%s: %v", host, err)
		}
	}
}
