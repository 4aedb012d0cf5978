package mode

import (
	"context"

	"kube-proxy/lb"
)

// The metrics of counted traffic, with the labels namespace and service.
const (
	ServiceConnections = "service_connections_total"
	ServiceBytes       = "service_bytes_total"
)

// Traffic is the value of one counter.
type Traffic struct {
	// Connections counts new connections, and flows of protocols without connections, that were
	// sent to an endpoint.
	Connections uint64
	// Bytes counts those of packets in both directions, with IP headers; 0 where the mode does not
	// count them.
	Bytes uint64
}

// CounterID identifies a counter of a plane, among all that it has had: by its frontend, or by a
// number if a frontend has several counters or several frontends share one.
type CounterID struct {
	// Frontend is zero if the counter has a number. A counter of a frontend may restart at 0, when
	// its frontend changes or was not used for minutes.
	Frontend lb.Key
	// N is 0 if the counter belongs to a frontend. A counter that restarts has another number,
	// unless another program reset it.
	N uint64
}

// Count is the value of a counter.
type Count struct {
	CounterID
	// ServicePort is the service port ([lb.Frontend.Service]) that was used; "" for that of the
	// counter's frontend.
	ServicePort string
	Traffic
}

// TrafficCounter is a plane that counts traffic if [Settings.CountServices] is set.
type TrafficCounter interface {
	// Counts reports whether the plane counts: it is configured to, and the kernel supports it.
	Counts() bool
	// Traffic calls f once with each counter that is not 0. It may be called from any goroutine, by
	// one at a time, and delays no write. An error names the parts that could not be read; the
	// counts passed to f are right, and counters that were not passed may still exist.
	Traffic(ctx context.Context, f func(Count)) error
}
