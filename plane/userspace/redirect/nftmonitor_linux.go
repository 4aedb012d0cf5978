package redirect

import (
	"sync/atomic"

	"kube-proxy/internal/nft/wire"
)

// monitor hears what others do to our table. It notes no more than that something was done: the table is small to read, and
// nobody else has anything to do there.
type monitor struct {
	*wire.Monitor
	heard atomic.Bool
}

// startMonitor listens in the network namespace of the calling thread. What own writes is ours.
func startMonitor(proto byte, signal chan<- struct{}, own *wire.Socket) (m *monitor, err error) {
	m = &monitor{}
	missed := func() {
		m.heard.Store(true)
		wake(signal)
	}
	m.Monitor, err = wire.Watch(own, proto, TableName, func(uint16, []byte) { missed() }, missed)
	return m, err
}

func wake(signal chan<- struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}
