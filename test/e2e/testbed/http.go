package testbed

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"
)

// Answer is the response of a server.
type Answer struct {
	Code int
	Body string
}

// Get sends an HTTP request to a server, from a host, on a new connection, for up to 3 s.
func (b *Bed) Get(ctx context.Context, host string, server netip.AddrPort, path string) (*Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+server.String()+path, nil)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return b.Dial(ctx, host, network, address)
		},
	}}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("read the answer of %s: %w", request.URL, err)
	}
	return &Answer{Code: response.StatusCode, Body: string(body)}, nil
}

// Occupy listens on a TCP port of a host, on all its addresses, as another program would that has
// it.
func (b *Bed) Occupy(host string, port uint16) (net.Listener, error) {
	var l net.Listener
	err := b.Lab.Do(host, func() (err error) {
		l, err = net.Listen("tcp", fmt.Sprintf(":%d", port))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("occupy port %d of %s: %w", port, host, err)
	}
	return l, nil
}
