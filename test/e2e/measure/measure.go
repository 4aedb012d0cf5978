// Package measure measures times that need an API server: from a write there until a connection
// reaches the changed endpoint, until a new Service answers, and from the start of the process
// until the last Service answers, with the processor time and memory of the proxy. `make bench`
// runs its benchmarks.
package measure

import (
	"time"

	"kube-proxy/test/e2e/testbed"
)

// Config configures a measurement.
type Config struct {
	Mode      testbed.Mode  // nftables if zero
	Peer      string        // an upstream kube-proxy to measure instead of ours
	Services  int           // load services in the cluster
	Endpoints int           // of each load service
	Keep      bool          // keep the filled etcd in bin/ and use it the next time
	StandIn   bool          // use an API server that is quickly filled, in place of etcd and kube-apiserver
	Patience  time.Duration // how long a Service may take to answer; 20 min if zero
	Logf      func(format string, args ...any)
}
