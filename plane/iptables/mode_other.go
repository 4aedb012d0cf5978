//go:build !linux

package iptables

import "kube-proxy/mode"

// Mode returns the mode iptables, of which other systems know the facts alone.
func Mode() mode.Mode { return facts() }
