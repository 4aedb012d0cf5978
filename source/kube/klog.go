package kube

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"k8s.io/klog/v2"
)

// directKlog sends all that client-go says to log at level debug. What an operator should know of it is told
// by [outage] in few words. klog must not be redirected while it is in use, so that happens once in the
// process, and the last logger given here is the one that counts.
func directKlog(log *slog.Logger) {
	h := log.Handler()
	klogTo.Store(&h)
	directOnce.Do(func() { klog.SetSlogLogger(slog.New(quiet{})) })
}

var (
	klogTo     atomic.Pointer[slog.Handler]
	directOnce sync.Once
)

// quiet passes every line on at level debug.
type quiet struct {
	// with adds the attributes and groups of a derived logger.
	with func(slog.Handler) slog.Handler
}

// mostVerbose is klog's verbosity up to which lines are of interest.
const mostVerbose = 4

func (q quiet) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= -mostVerbose && (*klogTo.Load()).Enabled(ctx, slog.LevelDebug)
}

// Handle also asks whether the record is wanted: errors come without that question.
func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	if !q.Enabled(ctx, r.Level) {
		return nil
	}
	demoted := slog.NewRecord(r.Time, slog.LevelDebug, "client-go: "+r.Message, 0)
	r.Attrs(func(a slog.Attr) bool { demoted.AddAttrs(a); return true })
	h := *klogTo.Load()
	if q.with != nil {
		h = q.with(h)
	}
	return h.Handle(ctx, demoted)
}

func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler {
	return q.and(func(h slog.Handler) slog.Handler { return h.WithAttrs(attrs) })
}

func (q quiet) WithGroup(name string) slog.Handler {
	return q.and(func(h slog.Handler) slog.Handler { return h.WithGroup(name) })
}

func (q quiet) and(last func(slog.Handler) slog.Handler) quiet {
	if q.with == nil {
		return quiet{last}
	}
	return quiet{func(h slog.Handler) slog.Handler { return last(q.with(h)) }}
}
