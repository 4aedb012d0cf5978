// Package ebpf serves sockets by eBPF programs, and everything else by another plane, its packet
// path, which has the same rows.
//
// The programs (package bpf) run when a socket connects, sends, receives, binds or reads its
// peer. They replace the address of a frontend by that of a backend, and back. So packets need no
// translation and no entry in conntrack. Whatever the programs cannot judge they pass unchanged,
// and the packet path serves it:
//
//	socket ──connect()──▶ frontend ─▶ set of the client's class ─▶ slot ─▶ backend
//	                         │ none, rejects, drops, source ranges, SCTP
//	                         └──────▶ packet path (plane/nftables)
//
// state.go has what the tables shall hold and turns changes of rows into a batch; it is pure.
// kernel.go writes a batch in an order that serves in every state between, and has maps, programs
// and links, which are pinned and outlive the process. table.go is one growing map. adopt.go takes
// over what an earlier process left. identify.go recognizes the programs of any build by the BTF of
// their maps, and removal.go detaches them. heartbeat.go keeps the programs serving. See
// docs/adr/0080.
package ebpf
