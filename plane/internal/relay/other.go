//go:build !linux

package relay

func newConns(r *Relay) (connEngine, error) { return newPortable(r), nil }

// EphemeralPorts is how many ports the host has for sockets that ask for none: those that IANA has
// set aside (RFC 6335).
func EphemeralPorts() int { return 65535 - 49152 + 1 }

// namespace is nothing where the host has one network.
type namespace struct{}

func currentNamespace() (namespace, error) { return namespace{}, nil }

func (namespace) close() {}

func (namespace) run(fn func() error) error { return fn() }
