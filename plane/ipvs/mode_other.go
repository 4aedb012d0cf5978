//go:build !linux

package ipvs

import "kube-proxy/mode"

// Mode returns the mode ipvs. Other systems than Linux have only its facts.
func Mode() mode.Mode { return facts() }
