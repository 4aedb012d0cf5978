//go:build linux

package nftables

import "kube-proxy/internal/nftwire"

// socket is a connection to the nftables of the network namespace in which it was opened.
type socket struct{ *nftwire.Socket }

func openSocket() (*socket, error) {
	s, err := nftwire.Open()
	if err != nil {
		return nil, err
	}
	return &socket{s}, nil
}
