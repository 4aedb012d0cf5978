package kube

import (
	"maps"
	"sync"
)

// leader is the plural of the resource that is reconnected first. A LIST of the one Node is small,
// so it is listed again after each break, and its version shows how far the server is.
const leader = "nodes"

// progress is the newest version that each resource has seen. It detects a server that has an older
// copy of the data, such as a restored backup. Such a server may accept a watch from a version that
// it has not reached yet, and send nothing about all that differs.
type progress struct {
	mu   sync.Mutex
	seen map[string]uint64
	// doubts has a value for each resource that has seen more than the server may have.
	doubts map[string]chan struct{}
}

func newProgress(resources []*resource) *progress {
	p := &progress{seen: map[string]uint64{}, doubts: map[string]chan struct{}{}}
	for _, r := range resources {
		p.doubts[r.plural] = make(chan struct{}, 1)
	}
	return p
}

// at notes the version of an event or a list.
func (p *progress) at(resource string, version uint64) {
	if version == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen[resource] = version
}

// all returns a copy of what the resources have seen, to be taken before the leader sends a
// request.
func (p *progress) all() map[string]uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.seen)
}

// reached notes the server's version, as a resource has read it. That of the leader counts for the
// others: those that had seen a newer one before end their streams and compare, each its own
// version. An API server may keep resources in different places.
func (p *progress) reached(resource string, theirs uint64, before map[string]uint64) {
	if resource != leader || theirs == 0 {
		return
	}
	for other, seen := range before {
		if other != leader && seen > theirs {
			p.doubt(other)
		}
	}
}

// doubt makes the next suspect of a resource true.
func (p *progress) doubt(resource string) {
	select {
	case p.doubts[resource] <- struct{}{}:
	default:
	}
}

// suspect reports, once, whether the resource must compare its version with the server's.
func (p *progress) suspect(resource string) bool {
	select {
	case <-p.doubts[resource]:
		return true
	default:
		return false
	}
}
