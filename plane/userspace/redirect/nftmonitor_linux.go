package redirect

import (
	"sync/atomic"

	"kube-proxy/internal/nft/wire"
)

// monitor notices changes of our table by other programs. It only records that a change happened:
// reading the table is cheap, and no other program should change it.
type monitor struct {
	*wire.Monitor
	noticed atomic.Bool
}

// startMonitor listens in the network namespace of the calling thread. It ignores writes of own.
func startMonitor(proto byte, signal chan<- struct{}, own *wire.Socket) (m *monitor, err error) {
	m = &monitor{}
	missed := func() {
		m.noticed.Store(true)
		wake(signal)
	}
	note := func(uint16, []byte) { m.noticed.Store(true) }
	m.Monitor, err = wire.Watch(own, proto, wire.Of(TableName), note, missed, missed)
	return m, err
}

func wake(signal chan<- struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}
