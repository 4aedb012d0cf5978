//go:build linux

package iptables

import (
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
)

// portID names a service port, the owner of chains.
type portID struct {
	service string
	proto   lb.Proto
}

func (u portID) chain(prefix string, more ...string) string {
	return prefix + xtables.Hash(append([]string{u.service, u.proto.String()}, more...)...)
}
