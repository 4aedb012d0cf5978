package hns

// SetStep bounds how many new load balancers a Reset writes.
func (p *Plane) SetStep(n int) { p.step = n }

// Remove is --cleanup with the HNS that open finds.
var Remove = remove
