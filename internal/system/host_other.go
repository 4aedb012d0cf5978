//go:build !linux

package system

// Host is this machine. Where it is no Linux, it has none of the settings: what asks for them is told of by package config.
type Host struct{}

// Start makes no settings.
func (h Host) Start(Settings) (Report, error) { return Report{}, nil }

// InitOnly makes no settings.
func (h Host) InitOnly(Settings) (Report, error) { return Report{}, nil }

// Reload makes no settings.
func (h Host) Reload(old, now Settings) (Report, error) { return Report{}, nil }

// Plan returns what Start would change: nothing.
func (Host) Plan(Settings) ([]Change, error) { return nil, nil }
