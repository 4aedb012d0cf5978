//go:build !linux

package relay

func newConns(r *Relay) (connEngine, error) { return newPortable(r), nil }
