package mode

import (
	"context"

	"kube-proxy/lb"
)

// The metrics of what is counted, with the labels namespace and service.
const (
	ServiceConnections = "service_connections_total"
	ServiceBytes       = "service_bytes_total"
)

// Traffic is what one counter has counted.
type Traffic struct {
	// Connections are new connections, and flows of protocols without connections, that were led to an endpoint.
	Connections uint64
	// Bytes are those of the user's packets in both directions; 0 where the mode does not count them.
	Bytes uint64
}

// CounterID names one of the counters of a plane, among all that it has had: by the row that it is of, or by a number, where a row has several, or
// several have one.
type CounterID struct {
	// Row is zero of one that has a number. A counter of a row may begin anew at 0, when its row changes or was not used for minutes.
	Row lb.Key
	// N is 0 of one that is a row's. One that begins anew has another number, unless somebody else than the plane had it begin.
	N uint64
}

// Count is what a counter tells.
type Count struct {
	CounterID
	// ServicePort is the service port ([lb.Frontend.Service]) that was used; "" for that of the row which the counter is of.
	ServicePort string
	Traffic
}

// TrafficCounter is a plane that counts traffic, if [Settings.CountServices] asks for it.
type TrafficCounter interface {
	// Counts reports whether it does: it was asked to, and the kernel can.
	Counts() bool
	// Traffic calls f once with each counter that has counted something, since some time in the past. It may be called from any goroutine, by one at a
	// time, and holds up no write. An error says what could not be read; what was told is right, and a counter that was not told may be there still.
	Traffic(ctx context.Context, f func(Count)) error
}
