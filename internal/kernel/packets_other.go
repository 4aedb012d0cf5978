//go:build !linux

package kernel

// AwaitPackets returns at once: what there is to wait for is Linux'.
func AwaitPackets() {}
