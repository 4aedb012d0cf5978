// Package exectest replaces programs that a test does not want to run.
package exectest

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"sync"
)

// Fake runs no program. Its two methods are those that packages use to run programs.
type Fake struct {
	// Programs are the names that LookPath finds.
	Programs []string
	// Do answers a run; nil answers with nothing.
	Do func(stdin []byte, name string, args ...string) (string, error)

	mu   sync.Mutex
	runs []string
}

// LookPath finds the existing programs.
func (f *Fake) LookPath(name string) (string, error) {
	if !slices.Contains(f.Programs, name) {
		return "", &exec.Error{Name: name, Err: exec.ErrNotFound}
	}
	return "/sbin/" + name, nil
}

// Run notes the run and answers with Do. A context that is over is an error, as of a program that
// was killed.
func (f *Fake) Run(ctx context.Context, stdin []byte, name string, args ...string) ([]byte, error) {
	f.mu.Lock()
	f.runs = append(f.runs, strings.Join(append([]string{name}, args...), " "))
	f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if f.Do == nil {
		return nil, nil
	}
	out, err := f.Do(stdin, name, args...)
	return []byte(out), err
}

// Runs returns the runs so far, each as one line.
func (f *Fake) Runs() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.runs)
}
