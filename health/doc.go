// Package health serves the health checks of load balancers and kubelets over HTTP.
//
// [Server] is the proxy's own health server, by default on port 10256 (CF-14), without
// authentication:
//
//	path      200                                               503                                rows
//	/healthz  every family healthy, node eligible, no draining  else                               HT-01
//	/livez    every family healthy                              else                               HT-02
//	/readyz   every family has had its first full sync, not     else; "missing" names the          PN-70
//	          from a snapshot ([Config.NotReady]), and the      families without one
//	          process is not about to end
//	others    never; they are 404                                                                  HT-03
//
// A family is unhealthy if a change is older than twice the sync period and the kernel has accepted
// no write since (HT-04). One Service that the kernel refuses does not make a family unhealthy: all
// nodes have that Service, and would leave the load balancers together. If nothing else is pending,
// the engine makes a write that changes nothing; if the kernel refuses that too, the node has
// failed. While another process keeps this one from writing ([Config].Waiting) all three report it;
// after twice the sync period /healthz is 503, but /livez is not: a restart would not help. All
// methods are accepted. Bodies are JSON in one line, times as RFC 3339 in UTC.
//
// Clients: cloud load balancers query /healthz to decide whether a node gets traffic of Services
// with the policy Cluster, so it fails while the node is about to be deleted
// ([Config].NodeEligible, HT-06), and once the process is about to end ([Server.Drain], PR-07), so
// that they stop using the node before the server closes. A kubelet queries /livez to decide
// whether to restart the process: neither a node that is deleted nor a process that ends is a
// reason. Only this proxy has /readyz: it succeeds when the rules of all Services are in the
// kernel.
//
// [Services] answers on the healthCheckNodePort of each Service that has one, whatever path and
// method:
//
//	200  the node has ready endpoints of the Service, and the proxy is healthy          HT-10
//	503  else, also on a connection that is still open when the Service has gone        HT-14
//
// Neither the node's eligibility nor draining matters there: packets that arrive are served as long
// as the rules are in the kernel, and those outlive the process.
//
//	engine IPv4 ──Applied──▶ Observer ─┐  by port: counts at once             request
//	                                   ├─▶ Services ──────────────────────▶ handler: 200 or 503
//	engine IPv6 ──Applied──▶ Observer ─┘  ring ─▶ Run: opens and closes listeners
//
// Observers receive frontends of kind [lb.HealthCheck] after the kernel has them, and added
// endpoints after the kernel has the frontends for external traffic of the Service, so the answer
// is not "ready" before the rules exist (HT-16). A Service has one listener for both families. A
// pod of a dual-stack cluster has an address in each family, so the answer has the larger of the
// families' counts, not their sum.
package health
