package kube

import "sync/atomic"

// leader is the plural of the resource that is reconnected first. A LIST of the one Node is small,
// so it is listed again after each break, and its version shows how far the server is.
const leader = "nodes"

// progress is what a resource knows of the server's copy of the data. It detects a server that has
// an older one, such as a restored backup. Such a server may accept a watch from a version that it
// has not reached yet, and send nothing about all that differs.
type progress struct {
	// seen is the newest version that the resource has seen.
	seen atomic.Uint64
	// doubts has a value if the resource has seen more than the server may have.
	doubts chan struct{}
	// forget: the version that the Reflector remembers is of no use, or the server may not have
	// reached it. The next list is of the newest version: the server would refuse the other after
	// seconds, with an error that client-go repeats several times.
	forget atomic.Bool
	// broken: the last stream or attempt ended early, so the server may be another one now.
	broken atomic.Bool
	// opened and ended are the leader's newest readings when the last stream was opened and when it
	// ended.
	opened, ended atomic.Pointer[reading]
}

// at notes the version of an event or a list.
func (p *progress) at(version uint64) {
	if version != 0 {
		p.seen.Store(version)
	}
}

// doubt makes the next suspect true.
func (p *progress) doubt() {
	select {
	case p.doubts <- struct{}{}:
	default:
	}
}

// suspect reports, once, whether the resource must compare its version with the server's.
func (p *progress) suspect() bool {
	select {
	case <-p.doubts:
		return true
	default:
		return false
	}
}

// reading is one answer to the leader: the server's version.
type reading struct{ version uint64 }

// unproven reports whether a resource that opens a stream again at its version must compare that
// with the server's first, after the leader's newest reading. The leader compares after each break.
// Another resource decides by the leader's reading, and without a new one as the leader does.
func (l *listWatch) unproven(read *reading, ours uint64, broken bool) bool {
	r := l.resource
	switch {
	case l.leads():
		return broken
	case read != nil && read != r.opened.Load() && ours > read.version: // the leader may have met an older copy
		return true
	}
	return broken && read == r.ended.Load()
}

// seen returns what each resource has seen, to be taken before the leader sends a request.
func (s *Source) seen() []uint64 {
	out := make([]uint64, len(s.resources))
	for i, r := range s.resources {
		out[i] = r.seen.Load()
	}
	return out
}

// reached notes the server's version, as this resource has read it. That of the leader counts for
// the others: those that had seen a newer one before end their streams and compare, each its own
// version. An API server may keep resources in different places.
func (l *listWatch) reached(theirs uint64, before []uint64) {
	if !l.leads() || theirs == 0 {
		return
	}
	l.reading.Store(&reading{theirs})
	for i, r := range l.resources {
		if r != l.resource && before[i] > theirs {
			r.forget.Store(true)
			r.doubt()
		}
	}
}
