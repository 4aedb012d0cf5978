package main

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/netlink/route"
)

// kernelAddrs follows the addresses by notifications of the kernel.
type kernelAddrs struct {
	conn, events *netlink.Conn
	devices      []string
	wake         chan struct{}
	done         chan struct{}

	mu     sync.Mutex     // for conn too
	spared map[int32]bool // by interface index: it is one of devices
}

// newOwnAddrs follows the network namespace of the calling thread.
func newOwnAddrs(devices []string) (ownAddrs, error) {
	conn, events, err := route.Open(unix.AF_INET, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return nil, err
	}
	k := &kernelAddrs{conn: conn, events: events, devices: devices, wake: make(chan struct{}, 1),
		done: make(chan struct{}), spared: map[int32]bool{}}
	go func() {
		defer close(k.done)
		events.Listen(k.notice, k.signal)
	}()
	return k, nil
}

func (k *kernelAddrs) changed() <-chan struct{} { return k.wake }

func (k *kernelAddrs) signal() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// notice ignores the devices' changes, which are this process's own and may be thousands.
func (k *kernelAddrs) notice(m netlink.Message) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if a, ok := route.ParseAddress(m.Body); ok && !k.spares(context.Background(), a.Index) {
		k.signal()
	}
}

// spares reports whether an interface is one of the devices. An unknown one is not. The caller
// holds mu.
func (k *kernelAddrs) spares(ctx context.Context, index int32) bool {
	is, known := k.spared[index]
	if known {
		return is
	}
	name, err := route.LinkName(ctx, k.conn, index)
	if err != nil || name == "" {
		return false
	}
	is = slices.Contains(k.devices, name)
	if is {
		k.spared[index] = true // the index of another interface may pass to one of them
	}
	return is
}

func (k *kernelAddrs) list(ctx context.Context) (addrs []netip.Addr, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	all, err := route.Addresses(ctx, k.conn, 0)
	if err != nil {
		return nil, err
	}
	spared := map[int32]bool{}
	for _, a := range all {
		is, known := spared[a.Index]
		if !known {
			is = k.spares(ctx, a.Index)
			spared[a.Index] = is
		}
		// No Service is served at loopback and link-local addresses. Each pod's interface brings a
		// link-local one, and a change of the list costs a look at all Services.
		if !is && !a.Addr.IsLoopback() && !a.Addr.IsLinkLocalUnicast() {
			addrs = append(addrs, a.Addr)
		}
	}
	return addrs, nil
}

func (k *kernelAddrs) close() {
	k.events.Close()
	<-k.done
	k.conn.Close()
}
