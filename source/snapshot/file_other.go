//go:build !linux

package snapshot

import (
	"errors"
	"time"

	"kube-proxy/cluster"
)

// Supported: this system has snapshots.
const Supported = false

var errLinux = errors.New("snapshot: works on Linux only")

// Load fails: the system's files have no such permissions.
func Load(string, string, time.Duration, time.Time) (*Snapshot, error) { return nil, errLinux }

// Save fails as Load does.
func Save(string, Origin, *cluster.Store) (Saved, error) { return Saved{}, errLinux }

// Boot returns id.
func Boot(id string) string { return id }
