// Package probe asks an address and port whether they answer: it connects by TCP from this node,
// and distinguishes an answer, a reset, a firewall, silence and ICMP unreachable. It sends no data,
// and ends a connection at once.
package probe

import (
	"context"
	"time"

	"kube-proxy/failover"
)

// Run probes an address until the first answer, or until the series ends: a try each
// [failover.TryAfter]; all tries stay open until the end. It opens sockets in the network
// namespace of the calling thread. It calls quiet, if not nil, when nothing has answered after
// [failover.QuietAfter]. An end of ctx gives Unknown. The error is that no socket could be opened.
func Run(ctx context.Context, p failover.Probe, quiet func()) (failover.Result, error) {
	series, cancel := context.WithTimeout(ctx, failover.SeriesTimeout)
	defer cancel()
	results := make(chan failover.Result, p.Tries)
	tick := time.NewTicker(failover.TryAfter)
	defer tick.Stop()
	silence := time.NewTimer(failover.QuietAfter)
	defer silence.Stop()
	ended := 0
	for begun := 0; ; {
		if begun < p.Tries {
			begun++
			if err := begin(series, p, results); err != nil {
				return failover.Unknown, err
			}
		}
		for waits := true; waits; {
			select {
			case r := <-results:
				if r != failover.Silent && r != failover.Unknown {
					return r, nil
				}
				if ended++; ended == p.Tries {
					return failover.Silent, nil
				}
			case <-series.Done():
				if ctx.Err() != nil {
					return failover.Unknown, nil
				}
				return failover.Silent, nil
			case <-silence.C:
				if quiet != nil {
					quiet()
				}
			case <-tick.C:
				waits = false
			}
		}
	}
}
