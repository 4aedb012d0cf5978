// Package hnsfake is the Host Networking Service of Windows in memory, for tests of plane/hns on any system. It is strict: it refuses
// what HNS refuses and, where the documents of HNS and of github.com/Microsoft/hnslib say nothing, what HNS might refuse
// (docs/adr/0043). Nobody here has compared it with a Windows machine: what is proven with it is proven of the fake.
//
//	networks       "cbr0" ◀── endpoints, an address once in a network
//	endpoints      10.1.2.14 ◀── load balancers count their uses: what is used cannot go
//	load balancers 10.96.0.10:80/tcp, one for each address (or none: the node's own), port, protocol
//
// [Fake] takes the calls and counts them, and the bytes of their JSON. Tests play the others on the node: [Fake.AddNetwork],
// [Fake.AddPod], [Fake.RemovePod], [Fake.RemoveNetwork], [Fake.Foreign]; [Fake.FailWith] makes calls fail, before or after they did
// what they were asked for. [State] is what is there at a moment; [State.Resolve] says what becomes of a connection, as HNS would
// carry it.
package hnsfake
