// Package lb is the desired table: what a packet to a service address must meet, as plain data.
//
// A [Frontend] is one row: a [Key] (address, port, protocol) and at most three [Route]s. The first route
// whose From matches the packet's source decides; the last route matches anywhere. A route balances over a
// [BackendSet], rejects, or drops. Planes translate rows into kernel state and decide nothing; the package
// policy writes the rows. Rows of UDP and SCTP also say what serves though no route of theirs goes there, for
// those who must know which flows may go on ([Frontend.Serving]). A row of kind [HealthCheck] translates
// nothing: it says that this node itself answers on the port ([Accept]).
//
//	192.0.2.7:80/tcp shop/web:http loadbalancer
//	  pods     balance shop/web:http/tcp/cluster
//	  host     balance shop/web:http/tcp/cluster masquerade
//	  anywhere drop
//
// A [Table] holds the rows of all services, knows which service claims which key, and answers
// [Table.Replace] with the [Change]s that bring a plane up to date. Everything that a Table hands out is
// shared and must not be modified.
package lb
