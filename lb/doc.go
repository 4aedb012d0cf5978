// Package lb defines the desired table: the treatment of packets to service addresses, as plain
// data.
//
// A [Frontend] has a [Key] (address, port, protocol) and at most three [Route]s. The first route
// whose From matches the packet's source decides; the last route matches anywhere. A route balances
// over a [BackendSet], rejects, or drops. Package policy computes the frontends; planes translate
// them into kernel state and make no decisions. Frontends of UDP and SCTP also have the endpoints
// that serve without a route to them, because their flows may continue ([Frontend.Serving]). A
// frontend of kind [HealthCheck] translates nothing: this node itself answers on its port
// ([Accept]).
//
//	192.0.2.7:80/tcp shop/web:http loadbalancer
//	  pods     balance shop/web:http/tcp/cluster
//	  host     balance shop/web:http/tcp/cluster masquerade
//	  anywhere drop
//
// A [Table] holds the frontends of all Services and their claims to keys. [Table.Replace] returns
// the [Change]s that bring a plane up to date. Everything that a Table returns is shared and must
// not be modified.
package lb
