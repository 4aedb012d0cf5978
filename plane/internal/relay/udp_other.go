//go:build !linux

package relay

func newUDP(r *Relay) (engine, error) { return newPortableUDP(r), nil }
