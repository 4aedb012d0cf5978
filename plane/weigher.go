package plane

import "kube-proxy/lb"

// Weigher is implemented by planes whose work for a frontend differs from [lb.Weight], because each
// frontend has its own copy of shared objects.
type Weigher interface {
	// Weigh returns the approximate number of operations to add or remove a frontend, at least 1.
	Weigh(f *lb.Frontend) int
}

// Weights returns a function for the weight that each frontend adds to an Apply of the plane, which
// [Plane.MaxBatchWeight] limits. A nil frontend is a removed one.
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
