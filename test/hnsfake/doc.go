// Package hnsfake is an in-memory Host Networking Service, for tests of plane/hns on any system. It
// refuses what HNS refuses and, where the documentation of HNS and github.com/Microsoft/hnslib is
// silent, what HNS might refuse (docs/adr/0043). It has never been compared with a Windows machine:
// tests with it prove the proxy against these assumptions only.
//
//	networks       "cbr0" ◀── endpoints, one for an address
//	endpoints      10.1.2.14 ◀── load balancers; a used endpoint cannot be deleted
//	load balancers 10.96.0.10:80/tcp, one for an address (or the node's own), port and protocol
//
// [Fake] implements and counts the calls. Tests act for other programs by [Fake.AddNetwork],
// [Fake.AddPod], [Fake.RemovePod], [Fake.RemoveNetwork] and [Fake.Foreign]. [Fake.FailWith] makes
// calls fail before or after they take effect. [State] is a snapshot; [State.Resolve] returns where
// HNS would send a packet.
package hnsfake
