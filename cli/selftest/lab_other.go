//go:build !linux

package selftest

import "context"

// lab is of Linux.
type lab struct{}

// inLab are the steps without HNS and without network namespaces: the first one fails, or there is nothing that they could show.
func (r *run) inLab() (steps []func(context.Context) bool, end func(context.Context)) {
	none := func(context.Context) bool {
		return r.skip("step", "there is no Host Networking Service here, and no network namespace")
	}
	return []func(context.Context) bool{r.node, none, none, none, none, none, none, none, r.service}, func(context.Context) {}
}
