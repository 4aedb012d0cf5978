package kube

import (
	"context"
	"log/slog"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// clientLog returns the logger for client-go, which writes all lines to log at level debug.
// [outage] reports what an operator should know.
func clientLog(log *slog.Logger) klog.Logger { return logr.FromSlogHandler(quiet{log.Handler()}) }

// quiet passes every line on at level debug.
type quiet struct{ to slog.Handler }

// maxVerbosity is klog's verbosity up to which lines are of interest.
const maxVerbosity = 4

func (q quiet) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= -maxVerbosity && q.to.Enabled(ctx, slog.LevelDebug)
}

// Handle also asks whether the record is wanted: errors come without that question.
func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	if !q.Enabled(ctx, r.Level) {
		return nil
	}
	demoted := slog.NewRecord(r.Time, slog.LevelDebug, "client-go: "+r.Message, 0)
	r.Attrs(func(a slog.Attr) bool { demoted.AddAttrs(a); return true })
	return q.to.Handle(ctx, demoted)
}

func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{q.to.WithAttrs(attrs)} }

func (q quiet) WithGroup(name string) slog.Handler { return quiet{q.to.WithGroup(name)} }
