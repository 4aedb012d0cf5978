package relay

import "sync/atomic"

// Stats is what a relay holds, and has done since it was made.
type Stats struct {
	TCP, SCTP Connections
	UDP       Sessions
}

// Connections counts what became of clients that connect.
type Connections struct {
	// Open is how many are open, those included for which a backend is being dialled.
	Open int64
	// Accepted is how many clients have connected.
	Accepted uint64
	// Refused is how many of them were reset before they had a backend: the Balancer refused them,
	// or none was reached.
	Refused uint64
	// DialsFailed is how many attempts to reach a backend have failed, and Retried how many clients
	// had another attempt.
	DialsFailed, Retried uint64
	// ToBackends and ToClients are the bytes of user data that were passed on.
	ToBackends, ToClients uint64
	// OutOfDescriptors is how often a client had to wait or was refused for lack of a descriptor,
	// of the process or in its listener's share.
	OutOfDescriptors uint64
}

// counters are Connections that many goroutines count.
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
