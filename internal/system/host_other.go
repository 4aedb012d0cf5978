//go:build !linux

package system

// Host is this machine. Other systems than Linux have none of the settings; package config warns if
// they are configured.
type Host struct{}

// Start makes no settings.
func (h Host) Start(Settings) (Report, error) { return Report{}, nil }

// InitOnly makes no settings.
func (h Host) InitOnly(Settings) (Report, error) { return Report{}, nil }

// Reload makes no settings.
func (h Host) Reload(old, now Settings) (Report, error) { return Report{}, nil }

// Plan returns the changes of Start: none.
func (Host) Plan(Settings) ([]Change, error) { return nil, nil }
