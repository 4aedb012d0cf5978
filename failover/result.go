package failover

import (
	"net/netip"
	"time"
)

// Result is what a probe found.
type Result uint8

// The results. Waiting is no final one: a series has no answer after [QuietAfter].
const (
	Unknown Result = iota
	Waiting
	Answers    // the endpoint accepted a connection
	Refuses    // it answered with a reset or port unreachable: nothing listens there
	Prohibited // a firewall answered that it prohibits the connection
	Silent     // nothing answered
	NoRoute    // a router or the endpoint's node answered: host or network unreachable
)

var resultNames = [...]string{"unknown", "waiting", "answers", "refuses", "prohibited", "silent", "no route"}

// String returns the result in lower case.
func (r Result) String() string { return resultNames[r] }

// Reached reports whether the address answered, or a firewall in its place: what prohibits the
// node's probe may allow clients.
func (r Result) Reached() bool { return r == Answers || r == Refuses || r == Prohibited }

// A series is three tries to connect, at TryAfter from each other, and ends with the first answer
// or SeriesTimeout after its begin.
//
// Within a cluster an answer takes less than QuietAfter. Without one, inquiries about the node run
// beside the series, so that all end before the client repeats its packet again.
const (
	Tries         = 3
	TryAfter      = 200 * time.Millisecond
	SeriesTimeout = Tries * TryAfter
	QuietAfter    = 50 * time.Millisecond
)

// Probe asks for a series to an address and port, or for a single try.
type Probe struct {
	At    netip.AddrPort
	Tries int
	// Here: the address belongs to this node, so its kernel knows whether there is a route. Else an
	// error of this kernel, for lack of a route or of a neighbour, counts as silence.
	Here bool
}

// backoff returns the wait after n more attempts without success: 1, 2, 4 and then 8 s, plus or
// minus a fifth by random, from 0 to 1.
func backoff(n int, random float64) time.Duration {
	d := time.Second << max(0, min(n, 3))
	return d - d/5 + time.Duration(random*float64(2*d/5))
}
