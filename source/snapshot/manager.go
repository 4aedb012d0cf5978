package snapshot

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"kube-proxy/internal/pause"
)

const (
	// settle is the time from a change to the write that has it: most changes come with others.
	settle = 5 * time.Second
	// firstSettle is that time before the first write of a process. It is short, because a process
	// that starts again must not use the snapshot of an earlier boot, where rules of this one are
	// newer.
	firstSettle = 100 * time.Millisecond
	// minGap is the least time between two writes.
	minGap = 30 * time.Second
	// bytesPerSecond bounds what is written on average: a larger file is written less often.
	bytesPerSecond = 256 << 10
	// maxRefresh is the longest time after which facts that have not changed are written again, so
	// that their age counts from when they were last known to be true.
	maxRefresh = time.Hour
	// remind is the time between two log lines about the same trouble.
	remind = time.Hour
)

// Config says what a [Manager] works with. All must be set.
type Config struct {
	// Save writes a snapshot. It may take any time.
	Save func() (Saved, error)
	// Current reports whether the facts are complete, in force and still confirmed by their source.
	Current func() bool
	// MaxAge is the age at which a snapshot is rejected.
	MaxAge time.Duration
	Log    *slog.Logger
}

// Stats are what a [Manager] has done.
type Stats struct {
	LastWrite time.Time // zero before the first
	Failures  uint64
}

// Manager writes snapshots as facts change: within 5 s after a quiet time, and under steady changes
// every 30 s, or more rarely if the file has more than 7.5 MiB, so that it writes at most 256 KiB/s
// on average. Neither who changes facts nor how often matters to others:
// each file has the latest facts of all.
type Manager struct {
	cfg     Config
	changed chan struct{} // has a value if facts have changed since the last write began

	mu    sync.Mutex
	stats Stats

	failing  string    // the last error, "" after a success
	reported time.Time // when it was logged last
}

// NewManager returns a Manager that has written nothing.
func NewManager(cfg Config) *Manager {
	return &Manager{cfg: cfg, changed: make(chan struct{}, 1)}
}

// Changed says that facts have changed. It never waits.
func (k *Manager) Changed() {
	select {
	case k.changed <- struct{}{}:
	default: // a write is due anyway
	}
}

// Stats returns what has been done so far.
func (k *Manager) Stats() Stats {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stats
}

// Run writes snapshots until ctx ends, and then what has not been written yet.
func (k *Manager) Run(ctx context.Context) {
	refresh := min(maxRefresh, max(minGap, k.cfg.MaxAge/8))
	wait, next := firstSettle, time.Time{} // next is the earliest time of the next write
	for ended := false; !ended; {
		select {
		case <-k.changed:
			k.Changed() // it is due until a write begins
		case <-time.After(refresh):
		case <-ctx.Done():
		}
		ended = !pause.For(ctx, max(wait, time.Until(next)))
		if k.cfg.Current() && (len(k.changed) > 0 || !ended) {
			gap := k.save()
			wait, next = settle, time.Now().Add(gap)
		}
	}
}

// save writes a snapshot and returns the time to the next one.
func (k *Manager) save() time.Duration {
	select {
	case <-k.changed:
	default:
	}
	began := time.Now()
	saved, err := k.cfg.Save()
	k.mu.Lock()
	if err != nil {
		k.stats.Failures++
		k.Changed()
	} else {
		k.stats.LastWrite = began
	}
	k.mu.Unlock()
	k.report(saved.LeftOut, err)
	return max(minGap, time.Duration(saved.Size)*time.Second/bytesPerSecond)
}

// report logs the beginning and the end of trouble, and that it lasts.
func (k *Manager) report(leftOut []string, err error) {
	if err == nil && len(leftOut) > 0 {
		err = fmt.Errorf("facts exceed %d MiB: left out %d namespaces, those with the most facts, such as %s",
			MaxSize>>20, len(leftOut), leftOut[0])
	}
	switch {
	case err == nil && k.failing != "":
		k.cfg.Log.Info("Snapshot is complete again")
		k.failing = ""
	case err != nil && (err.Error() != k.failing || time.Since(k.reported) >= remind):
		k.failing, k.reported = err.Error(), time.Now()
		k.cfg.Log.Error("Snapshot is not complete, retrying; packets are served as usual", "err", err)
	}
}
