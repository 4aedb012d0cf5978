package plane

import "kube-proxy/lb"

// Weigher is a plane to which rows are another work than [lb.Weight] says, as each has its own copy of what rows share.
type Weigher interface {
	// Weigh is about how many operations a row is that comes or goes, at least 1.
	Weigh(f *lb.Frontend) int
}

// Weights returns what tells how much each row adds to the weight of one Apply of the plane, which [Plane.Pace] bounds. A nil row is one that goes.
func Weights(p Plane) func(*lb.Frontend) int {
	own, ok := p.(Weigher)
	if !ok {
		return new(lb.Weight).Of
	}
	return func(f *lb.Frontend) int {
		if f == nil {
			return 1
		}
		return own.Weigh(f)
	}
}
