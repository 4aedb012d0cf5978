package engine

import (
	"kube-proxy/lb"
	"kube-proxy/plane"
)

// Plane is what the engine writes through; package plane has the contract.
type Plane = plane.Plane

// Observer is told of every change after the plane has accepted it. It must not block: the next write
// waits for it.
type Observer interface {
	Applied(changes []lb.Change)
}

// NodeObserver is an observer that is also told of the node whenever the plane has taken it, before it is told of changes
// that came with it. It must not block either.
type NodeObserver interface {
	NodeApplied(n lb.Node)
}
