//go:build !linux

package engine

import "time"

var processStart = time.Now()

// processTime is the clock where the processor time is not at hand.
func processTime() time.Duration { return time.Since(processStart) }
