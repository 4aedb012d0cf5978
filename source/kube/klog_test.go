package kube

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// What client-go says, errors included, is seen at level debug only.
func TestClientLogIsQuiet(t *testing.T) {
	for level, want := range map[slog.Level]int{slog.LevelInfo: 0, slog.LevelDebug: 4} {
		var out strings.Builder
		log := clientLog(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level})))
		log.Error(errors.New("refused"), "an error")
		log.WithName("reflector").WithValues("key", 1).Error(errors.New("refused"), "an error of a part")
		log.Info("news")
		log.V(4).Info("details")
		log.V(5).Info("more than anybody wants")
		if got := strings.Count(out.String(), "level=DEBUG msg=\"client-go: "); got != want ||
			strings.Count(out.String(), "\n") != want {
			t.Errorf("at level %v: %d lines, want %d:\n%s", level, got, want, out.String())
		}
	}
}
