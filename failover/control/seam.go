package control

import (
	"context"

	"kube-proxy/failover"
)

// NoticeSource reports packets without an answer. The plane of a family implements it, and the
// process finds that by a type assertion. Run is called while failover is on, again after it was
// off: the kernel reports nothing at other times.
type NoticeSource interface {
	// Run calls each for every notice until ctx ends, and then returns nil. Within a rate limit of
	// its own it reports the first retransmission within 100 ms. each returns quickly.
	Run(ctx context.Context, each func(failover.Notice)) error
}

// Rescuer ends waits for endpoints that do not answer. The plane of a family implements it, too.
type Rescuer interface {
	// Rescue makes the kernel forget unreplied connections to the endpoints, so that the next
	// retransmission of each waiting client meets another endpoint. It returns their number. It is
	// called after the rules that avoid the endpoints are in force.
	Rescue(ctx context.Context, endpoints []failover.Endpoint) (rescued int, err error)
	// ResetConnections ends established connections to the endpoints with a reset towards the
	// client, and returns their number.
	ResetConnections(ctx context.Context, endpoints []failover.Endpoint) (ended int, err error)
}

// Avoider is a Rescuer of a kernel that may send repeated packets to another endpoint only while
// the rules avoid the first one, as IPVS does. If RescueAvoids, the rules avoid unreachable
// endpoints in mode rescue, too, while clients wait for them.
type Avoider interface {
	RescueAvoids() bool
}
