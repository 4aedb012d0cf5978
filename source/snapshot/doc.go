// Package snapshot keeps the facts that a node acts on in a file, so that the node can serve after
// a reboot before its API server answers.
//
//	store ──Save──▶ DIR/facts.new ──fsync, rename, fsync──▶ DIR/facts ──Load──▶ events ──▶ store
//
// The file holds what a source gives to package cluster: Services, EndpointSlices, the Node, the
// service network. It holds no rules: restored facts take the way of any other facts, and the lists
// of the API server then change only what differs.
//
// DIR belongs to this user and admits no other (0700), the file too (0600). A file has a format
// number, its length and a SHA-256, and is replaced by rename: after a power loss at any moment DIR
// has the old file or the new one. The checksum finds damage; only the permissions keep out who
// means harm.
//
// [Manager] decides when to write. It runs beside everything else: a disk that is full, slow or
// gone delays only the next file.
package snapshot
