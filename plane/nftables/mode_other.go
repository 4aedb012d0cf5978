//go:build !linux

package nftables

import "kube-proxy/mode"

// Mode returns the mode nftables, of which other systems know the facts alone.
func Mode() mode.Mode { return facts() }
