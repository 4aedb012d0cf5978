package relay

import "errors"

// Sessions counts what became of datagrams.
type Sessions struct{}

// newUDP is to be written by helper udp.
func newUDP(*Relay) (engine, error) { return noUDP{}, nil }

type noUDP struct{}

func (noUDP) listen(*Listener, Listening) (socket, error) {
	return nil, errors.New("udp is not there yet")
}
func (noUDP) add(*Stats) {}
func (noUDP) end()       {}
func (noUDP) stop()      {}
