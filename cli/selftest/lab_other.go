//go:build !linux

package selftest

import "context"

// lab is only on Linux.
type lab struct{}

// inLab skips all steps that need HNS or network namespaces.
func (r *run) inLab() (steps []func(context.Context) bool, end func(context.Context)) {
	none := func(context.Context) bool {
		return r.skip("step", "this system has neither HNS nor network namespaces")
	}
	return []func(context.Context) bool{r.node, none, none, none, none, none, none, none, r.service},
		func(context.Context) {}
}
