//go:build !linux

package ebpf

import "kube-proxy/mode"

// Mode returns the mode ebpf, without its plane: other systems cannot run it.
func Mode(packets mode.Mode) mode.Mode {
	m := facts(packets)
	m.Able, m.New, m.Remove = nil, nil, nil
	return m
}
