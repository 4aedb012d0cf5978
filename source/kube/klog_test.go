package kube

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"k8s.io/klog/v2"
)

// What client-go says, errors included, is seen at level debug only.
func TestKlogIsQuiet(t *testing.T) {
	for _, level := range []slog.Level{slog.LevelInfo, slog.LevelDebug} {
		var out strings.Builder
		directKlog(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level})))
		klog.Background().Error(errors.New("refused"), "an error")
		klog.Background().WithName("reflector").Error(errors.New("refused"), "an error of a part")
		klog.Background().Info("news")
		klog.ErrorS(errors.New("refused"), "an old error")
		klog.Flush()
		want := 0
		if level == slog.LevelDebug {
			want = 4
		}
		if got := strings.Count(out.String(), "level=DEBUG msg=\"client-go: "); got != want || strings.Count(out.String(), "\n") != want {
			t.Errorf("at level %v: %d lines, want %d:\n%s", level, got, want, out.String())
		}
	}
	directKlog(slog.New(slog.DiscardHandler))
}
