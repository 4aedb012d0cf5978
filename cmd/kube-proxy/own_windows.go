package main

import (
	"context"
	"net/netip"
)

// listedAddrs lists the addresses; no mode of Windows gives a device service addresses.
type listedAddrs struct{}

func newOwnAddrs([]string) (ownAddrs, error) { return listedAddrs{}, nil }

func (listedAddrs) list(context.Context) ([]netip.Addr, error) { return localAddrs("") }
func (listedAddrs) changed() <-chan struct{}                   { return nil }
func (listedAddrs) close()                                     {}
