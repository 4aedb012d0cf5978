//go:build !linux

package ipvs

import "kube-proxy/mode"

// Mode returns the mode ipvs, of which other systems know the facts alone.
func Mode() mode.Mode { return facts() }
