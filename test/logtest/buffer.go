// Package logtest has a log that tests can read during writes.
package logtest

import (
	"bytes"
	"strings"
	"sync"
)

// Buffer keeps its input. The zero Buffer is empty and ready to use, from several goroutines.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write is io.Writer's. It never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String returns all that was written.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// Count returns how often a text was written.
func (b *Buffer) Count(text string) int { return strings.Count(b.String(), text) }

// Lines returns the lines that contain a text, without blanks around.
func (b *Buffer) Lines(part string) (out []string) {
	for line := range strings.Lines(b.String()) {
		if strings.Contains(line, part) {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}
