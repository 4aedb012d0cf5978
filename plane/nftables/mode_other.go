//go:build !linux

package nftables

import "kube-proxy/mode"

// Mode returns the mode nftables. Other systems than Linux have only its facts.
func Mode() mode.Mode { return facts() }
