package relay

import "sync/atomic"

// Stats are a relay's open connections and sessions, and its counts since its creation.
type Stats struct {
	TCP, SCTP Connections
	UDP       Sessions
}

// Connections counts clients that connect, by outcome.
type Connections struct {
	// Open is the number of open connections, including those whose backend is being dialled.
	Open int64
	// Accepted is the number of clients that have connected.
	Accepted uint64
	// Refused is the number of clients that were reset before they had a backend: the Balancer
	// refused them, or no backend was reached.
	Refused uint64
	// DialsFailed is the number of failed attempts to reach a backend, and Retried the number of
	// clients with more than one attempt.
	DialsFailed, Retried uint64
	// ToBackends and ToClients are the bytes of user data that were passed on.
	ToBackends, ToClients uint64
	// OutOfDescriptors counts clients that had to wait or were refused because the process or their
	// listener's share had no descriptor left.
	OutOfDescriptors uint64
}

// counters are Connections for concurrent updates.
type counters struct {
	open                                    atomic.Int64
	accepted, refused, dialsFailed, retried atomic.Uint64
	toBackends, toClients, outOfDescriptors atomic.Uint64
}

func (c *counters) read() Connections {
	return Connections{
		Open: c.open.Load(), Accepted: c.accepted.Load(), Refused: c.refused.Load(),
		DialsFailed: c.dialsFailed.Load(), Retried: c.retried.Load(),
		ToBackends: c.toBackends.Load(), ToClients: c.toClients.Load(), OutOfDescriptors: c.outOfDescriptors.Load(),
	}
}
