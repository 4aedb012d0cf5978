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

// Traffic is what went to a row of the table.
type Traffic struct {
	// Connections are new connections, and flows of protocols without connections, that were led to an endpoint.
	Connections uint64
	// Bytes are those of the user's packets in both directions; 0 where the mode does not count them.
	Bytes uint64
}

// TrafficCounter is a plane that counts traffic by row, if [Settings.CountServices] asks for it.
type TrafficCounter interface {
	// Counts reports whether it does: it was asked to, and the kernel can.
	Counts() bool
	// Traffic calls f with each row that has been used, and what was counted for it since some time in the past. A counter may begin anew at 0, when its
	// row changes or was not used for minutes. It may be called from any goroutine, by one at a time, and holds up no write. An error says what could not
	// be read; rows that were told are right.
	Traffic(ctx context.Context, f func(lb.Key, Traffic)) error
}
