package logging

import (
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// newJSON returns the handler of the JSON format.
func newJSON(w io.Writer) slog.Handler {
	return slog.NewJSONHandler(w, &slog.HandlerOptions{AddSource: true, Level: slog.Level(-1 << 30),
		ReplaceAttr: kubernetesNames})
}

// kubernetesNames gives the fields of a line the names that JSON logs of Kubernetes have.
func kubernetesNames(_ []string, a slog.Attr) slog.Attr {
	switch v := a.Value.Any().(type) {
	case slog.Level:
		switch {
		case v >= slog.LevelError:
			return slog.String("level", "error")
		case v >= slog.LevelWarn:
			return slog.String("level", "warning")
		}
		return slog.Int("v", max(0, int(-v)))
	case *slog.Source:
		dir, file := filepath.Split(v.File)
		return slog.String("caller", filepath.Base(dir)+"/"+file+":"+strconv.Itoa(v.Line))
	case time.Time:
		if a.Key == slog.TimeKey {
			return slog.Float64("ts", float64(v.UnixMicro())/1000)
		}
	case error:
		return slog.String(a.Key, v.Error())
	case fmt.Stringer: // a duration too
		return slog.String(a.Key, v.String())
	}
	return a
}

// buffer collects lines and writes size bytes of them at once, or fewer when the oldest is as old
// as every.
type buffer struct {
	to    io.Writer
	size  int
	every time.Duration

	mu    sync.Mutex
	lines []byte
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.lines) == 0 {
		time.AfterFunc(b.every, func() { _ = b.Flush() })
	}
	b.lines = append(b.lines, p...)
	if len(b.lines) < b.size {
		return len(p), nil
	}
	return len(p), b.flush()
}

// Flush writes the lines. Lines that cannot be written are lost.
func (b *buffer) Flush() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.flush()
}

func (b *buffer) flush() error {
	_, err := b.to.Write(b.lines)
	b.lines = b.lines[:0]
	return err
}
