// Package userspace is the data plane for --proxy-mode userspace: connections end at the proxy, which opens others to the
// endpoints. It alone can try another endpoint where one does not answer.
//
//	client ──▶ 10.96.0.10:80 ──redirect──▶ listener :37211 ──balance──▶ 10.1.2.14:8080
//	                            (rules)     (relay)          (turns)
//
// Three packages do the work, and know nothing of each other. This one has the rows:
//
//   - relay moves bytes between clients and backends. It asks who is next.
//   - balance says who is next.
//   - redirect has packets to service addresses reach a listener: by rules of nftables or iptables, or on Windows by the
//     addresses themselves, put on an interface of the machine.
//
// # Listeners
//
// Where rules redirect, a listener serves one backend set: all addresses of a service port lead there, each kind of source to the
// listener of its route's set, and what a route rejects or drops the rules reject or drop. So a service port has one listener, or
// two with a policy Local, however many addresses it has ([0041]).
//
// Where packets come by addresses (Windows), each address of each row has its listener, which tells sources apart itself (balance.Row), and a
// NodePort one at each of the node's addresses that answer NodePorts.
//
// # What a change costs
//
// Endpoints are memory of this process: a change of them replaces one backend set, and the kernel is asked for nothing (Apply
// answers that nothing was written). Only rows that come, go, or lead elsewhere are written, and listeners are opened before packets are
// led to them, and closed after.
//
// # Who is connected
//
// A connection outlives all that led to it, as the kernel's do in other modes: that its endpoint leaves its Service, and that the Service
// goes. Config.Grace bounds how long. All end with the process, which waits for them ([Plane.Drain]).
//
// A session of UDP ends when its endpoint stops serving the service port (DP-50, TN-50), whatever Config.Grace is: the next
// datagram begins another.
//
// # Ports
//
// Of --proxy-port-range, or any that is free. A port that was given up is not used for [portRest]: the kernel may remember
// flows to it. A process finds in the kernel which ports the one before it had, and takes the same ones ([Plane.Reset]).
//
// [0041]: docs/adr/0041-how-packets-come-to-the-proxy.md
package userspace
