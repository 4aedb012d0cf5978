// Package userspace is the data plane for --proxy-mode userspace: connections end at the proxy,
// which opens others to the endpoints. Only this mode can try another endpoint if one does not
// answer.
//
//	client ──▶ 10.96.0.10:80 ──redirect──▶ listener :37211 ──balance──▶ 10.1.2.14:8080
//	                            (rules)     (relay)          (turns)
//
// This package maps the table's frontends to listeners. Three independent packages do the work:
//
//   - redirect redirects packets for service addresses to a listener: by rules of nftables or
//     iptables, or on Windows by the addresses themselves, added to an interface of the machine.
//   - relay moves bytes between clients and backends.
//   - balance chooses the backends.
//
// # Listeners
//
// If rules redirect, a listener serves one backend set. All addresses of a service port redirect
// there, each kind of source to the listener of its route's set. The rules reject or drop what a
// route rejects or drops. So a service port has one listener, or two with a policy Local, however
// many addresses it has (docs/adr/0041).
//
// If listeners are at service addresses (Windows), each address of each frontend has one, which
// distinguishes sources itself (balance.Frontend). A NodePort has one at each of the node's
// addresses that answer NodePorts.
//
// # Cost of a change
//
// Endpoints are memory of this process: a change of them replaces one backend set, and Apply
// reports that nothing was written. Frontends are only written when they are added, deleted, or
// redirected elsewhere. A listener is open before the rules redirect to it, and closed after.
//
// # Open connections
//
// As in other modes, a connection outlives the membership of its endpoint in the Service, and the
// Service. Config.Relay.Grace limits how long. All end with the process, which waits for them
// ([Plane.Drain]).
//
// A session of UDP ends when its endpoint stops serving the service port (DP-50, TN-50), whatever
// Config.Relay.Grace is: the next datagram begins another.
//
// # Ports
//
// Listeners have ports of --proxy-port-range, or any free ones. A released port rests for
// [portRest], because the kernel may remember flows to it. A process reads the ports of the
// previous one from the kernel, and takes the same ones ([Plane.Reset]).
package userspace
