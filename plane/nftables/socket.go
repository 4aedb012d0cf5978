//go:build linux

package nftables

import "kube-proxy/internal/nft/wire"

// socket is a connection to the nftables of the network namespace in which it was opened.
type socket struct{ *wire.Socket }

func openSocket() (*socket, error) {
	s, err := wire.Open()
	if err != nil {
		return nil, err
	}
	return &socket{s}, nil
}
