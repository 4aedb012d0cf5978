package main

import (
	"kube-proxy/internal/sockets"
	"kube-proxy/lb"
	"kube-proxy/mode"
)

// newFlows returns nothing: a flow of HNS ends with its load balancer, and the userspace proxy owns
// its flows.
func (p *proxy) newFlows(lb.Family, mode.Plane) (flows, error) { return nil, nil }

// conntrackUse returns nothing: Windows has no conntrack table.
func conntrackUse() (entries, limit uint64, ok bool) { return 0, 0, false }

// newSockets returns nothing: on Windows a NodePort and a program's listener are not compared.
func newSockets(sockets.Config) (*sockets.Watcher, error) { return nil, nil }

// defaultWillChange is not so: there is one mode that is tried first.
const defaultWillChange = false
