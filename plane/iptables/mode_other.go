//go:build !linux

package iptables

import "kube-proxy/mode"

// Mode returns the mode iptables. Other systems than Linux have only its facts.
func Mode() mode.Mode { return facts() }
