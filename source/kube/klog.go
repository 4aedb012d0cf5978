package kube

import (
	"context"
	"log/slog"

	"k8s.io/klog/v2"
)

// directKlog sends all that client-go says to log at level debug. What an operator should know of it is told
// by [outage] in few words.
func directKlog(log *slog.Logger) {
	klog.SetSlogLogger(slog.New(quiet{log.Handler()}))
}

// quiet demotes every line to level debug.
type quiet struct{ slog.Handler }

// mostVerbose is klog's verbosity up to which lines are of interest.
const mostVerbose = 4

func (q quiet) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= -mostVerbose && q.Handler.Enabled(ctx, slog.LevelDebug)
}

func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	demoted := slog.NewRecord(r.Time, slog.LevelDebug, "client-go: "+r.Message, 0)
	r.Attrs(func(a slog.Attr) bool { demoted.AddAttrs(a); return true })
	return q.Handler.Handle(ctx, demoted)
}

func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(attrs)} }
func (q quiet) WithGroup(name string) slog.Handler       { return quiet{q.Handler.WithGroup(name)} }
