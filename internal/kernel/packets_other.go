//go:build !linux

package kernel

// AwaitPackets returns at once on other systems.
func AwaitPackets() {}
