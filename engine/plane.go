package engine

import (
	"kube-proxy/lb"
	"kube-proxy/plane"
)

// Plane is the data plane that the engine writes; package plane has the contract.
type Plane = plane.Plane

// Observer receives every change after the plane has accepted it. It must not block: the next write
// waits for it.
type Observer interface {
	Applied(changes []lb.Change)
}

// NodeObserver is an observer that also receives the node whenever the plane has accepted it,
// before the changes that came with it. It must not block either.
type NodeObserver interface {
	NodeApplied(n lb.Node)
}
