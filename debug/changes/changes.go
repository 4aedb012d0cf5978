// Package changes records the changes of the last minutes: the object, when it changed in the API,
// when this process received the change, and when it was in force. The engines of both families
// report to one [Ring]; "kube-proxy events" and the page read it.
//
// A report costs the engine the copy of one small struct under a lock and no allocation, however
// many readers there are. Memory is bounded: when the ring is full, it drops the oldest entry of
// the namespace with the most entries, so that a tenant who changes Services all the time loses
// only the history of that namespace. The text of an entry is made when it is read.
package changes

import (
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// Kind is the kind of an entry.
type Kind uint8

// The kinds.
const (
	// Service: changes of a Service, or of its EndpointSlices, are in force.
	Service Kind = iota + 1
	// Node: the facts of this machine or the configuration changed, and the change is in force.
	Node
	// Reset: the kernel received the whole table, with all changes until then: at the start, and
	// after it lost its state.
	Reset
	// Loaded: the frontends that a Reset postponed are written.
	Loaded
	// Repaired: other programs had changed our objects in the kernel; they are repaired.
	Repaired
	// Failed: the kernel refuses a frontend, or a whole write.
	Failed
)

// What is a set of events of API objects.
type What uint8

// The possible events.
const (
	ServiceCreated What = 1 << iota
	ServiceChanged
	ServiceDeleted
	SliceCreated
	SliceChanged
	SliceDeleted
)

// Entry is one event. Times are nanoseconds since 1970, 0 for none.
type Entry struct {
	// Seq numbers all entries of a Ring from 1 on, in the order of their arrival; the Ring sets it.
	Seq    uint64
	Kind   Kind
	Family lb.Family
	// What are the events of the API objects, of kind Service.
	What What
	// Elsewhere: the Service has and had no address of the family, so that nothing was to be
	// written. Lists of changes leave it out; views of Services need it.
	Elsewhere bool
	// Service is the Service that changed; the zero Name if it concerns no single one.
	Service cluster.Name
	// Services and Slices count the changes of API objects that came into force together.
	Services, Slices uint32
	// API is when the API had the oldest of them: the trigger's time of an EndpointSlice, or the
	// creation of a Service. Both are usually whole seconds. 0 if the API has no time: it has none
	// for a Service's change.
	API int64
	// Learned is when this process received the oldest of them; for a Reset, when it began; for
	// changes by other programs, when they were first noticed.
	Learned int64
	// Done is when it was in force, or failed.
	Done int64
	// Frontends are the frontends written for it; of kind Repaired the objects.
	Frontends uint32
	// Failures are the writes with it that failed before.
	Failures uint32
	// Times is how often the same entry occurred in sequence: Done is that of the last,
	// Frontends are those of all.
	Times uint32
	// Why is the reason of a Reset, the error, or who changed what was repaired, shortened to
	// [maxWhy] bytes; else "".
	Why string
	// Endpoints names added and removed endpoints, shortened to [maxWhy] bytes; "" for none.
	Endpoints string
	// Key is the key of the failed frontend, if one failed.
	Key lb.Key
}

// maxWhy bounds the memory of an entry.
const maxWhy = 400

// Latency returns the time from the API, and from the arrival in this process, to the kernel;
// negative if unknown. If the API's clock is ahead of this node's it is 0.
func (e Entry) Latency() (api, learned time.Duration) {
	return since(e.API, e.Done), since(e.Learned, e.Done)
}

func since(from, to int64) time.Duration {
	if from == 0 || to == 0 {
		return -1
	}
	return time.Duration(max(0, to-from))
}
