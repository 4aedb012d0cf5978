//go:build linux

package snapshot

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/test/logtest"
)

// disk takes snapshots of a size, and notes when.
type disk struct {
	size  int64
	took  time.Duration
	facts atomic.Int64 // that stand in for those of the node

	mu     sync.Mutex
	err    error
	writes []written
}

type written struct {
	at    time.Time
	facts int64
}

func (d *disk) save() (Saved, error) {
	d.mu.Lock()
	d.writes = append(d.writes, written{time.Now(), d.facts.Load()})
	err := d.err
	d.mu.Unlock()
	time.Sleep(d.took)
	return Saved{Size: d.size}, err
}

// files returns the number of files so far.
func (d *disk) files() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.writes)
}

// repair ends the disk's trouble.
func (d *disk) repair() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = nil
}

// run runs a Manager on the disk while f does something, and then ends it.
func (d *disk) run(current func() bool, f func(*Manager)) string {
	var log logtest.Buffer
	k := NewManager(Config{Save: d.save, Current: current, MaxAge: 24 * time.Hour,
		Log: slog.New(slog.NewTextHandler(&log, nil))})
	ctx, end := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { k.Run(ctx); close(done) }()
	f(k)
	end()
	<-done
	return log.String()
}

func always() bool { return true }

// SN-05: a tenant who changes his Services 1,000 times a second has one file written every 30 s,
// and the file has what anybody else changed 35 s before at the latest.
func TestManyChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &disk{size: 1 << 20}
		start := time.Now()
		d.run(always, func(k *Manager) {
			for range 600_000 {
				d.facts.Store(int64(time.Since(start)))
				k.Changed()
				time.Sleep(time.Millisecond)
			}
		})
		if n := len(d.writes); n < 19 || n > 21 {
			t.Errorf("%d files in ten minutes", n)
		}
		for i, w := range d.writes {
			if i > 0 && i < len(d.writes)-1 && w.at.Sub(d.writes[i-1].at) > minGap+settle {
				t.Errorf("%v between two files", w.at.Sub(d.writes[i-1].at))
			}
			if stale := w.at.Sub(start) - time.Duration(w.facts); stale > time.Second {
				t.Errorf("a file at %v has the facts of %v before", w.at.Sub(start), stale)
			}
		}
	})
}

// SN-05: the first facts are written at once, so that a process that starts again does not take
// older ones. A later change after a quiet time is written after 5 s, and what comes within these
// goes into the same file.
func TestOneChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		start := time.Now()
		d.run(always, func(k *Manager) {
			k.Changed()
			time.Sleep(time.Minute)
			k.Changed()
			time.Sleep(time.Second)
			k.Changed()
			time.Sleep(time.Minute)
		})
		var at []time.Duration
		for _, w := range d.writes {
			at = append(at, w.at.Sub(start))
		}
		if !slices.Equal(at, []time.Duration{firstSettle, time.Minute + settle}) {
			t.Errorf("written after %v, want after %v, and %v after the second change", at, firstSettle, settle)
		}
	})
}

// SN-05: the average of what is written has a bound, also where each write fails, and where the
// disk is slow.
func TestBytesPerSecond(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		err  error
		took time.Duration
	}{{"fast", nil, 0}, {"full", errors.New("no space left on device"), 0}, {"slow", nil, 10 * time.Minute}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := &disk{size: MaxSize, err: c.err, took: c.took}
				const time8h = 8 * time.Hour
				log := d.run(always, func(k *Manager) {
					for range time8h / time.Second {
						k.Changed()
						time.Sleep(time.Second)
					}
				})
				// The first file needs no time before it, and the last is written at the end.
				written := float64(len(d.writes)-2) * MaxSize
				if rate := written / time8h.Seconds(); rate > bytesPerSecond || len(d.writes) < 10 {
					t.Errorf("%.0f bytes a second in %d files", rate, len(d.writes))
				}
				lines := strings.Count(log, "\n")
				if c.err == nil && lines > 0 || c.err != nil && (lines == 0 || lines > 9) {
					t.Errorf("%d lines in 8 hours:\n%s", lines, log)
				}
			})
		})
	}
}

// SN-05: facts that have not changed are written again every hour, so that their age is that of the
// last contact. While they are not confirmed nothing is written.
func TestRefresh(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		var current atomic.Bool
		d.run(current.Load, func(k *Manager) {
			k.Changed()
			time.Sleep(8 * time.Hour)
			if n := d.files(); n > 0 {
				t.Errorf("%d files without a source", n)
			}
			current.Store(true)
			time.Sleep(8 * time.Hour)
			if n := d.files(); n < 7 || n > 9 {
				t.Errorf("%d files in eight hours without a change", n)
			}
			current.Store(false)
			k.Changed()
		})
		if n := d.files(); n > 9 {
			t.Errorf("%d files: the end writes what the source does not confirm", n)
		}
	})
}

// SN-06: trouble is logged once, and its end.
func TestTrouble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &disk{err: errors.New("read-only file system")}
		log := d.run(always, func(k *Manager) {
			k.Changed()
			time.Sleep(10 * time.Minute)
			if s := k.Stats(); s.Failures < 15 || !s.LastWrite.IsZero() {
				t.Errorf("%+v", s)
			}
			d.repair()
			time.Sleep(time.Minute)
		})
		if strings.Count(log, "\n") != 2 || !strings.Contains(log, "read-only file system") ||
			!strings.Contains(log, "complete again") {
			t.Errorf("log:\n%s", log)
		}
	})
}

// What has changed last is written at the end, without a wait.
func TestEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		start := time.Now()
		d.run(always, func(k *Manager) {
			k.Changed()
			time.Sleep(6 * time.Second)
			d.facts.Store(7)
			k.Changed()
			synctest.Wait()
		})
		if n := len(d.writes); n != 2 || d.writes[1].facts != 7 || time.Since(start) != 6*time.Second {
			t.Errorf("written %v, ended after %v", d.writes, time.Since(start))
		}
	})
}
