//go:build !linux

package cputest

import "time"

var processStart = time.Now()

// Time is the clock where the processor time is not at hand.
func Time() time.Duration { return time.Since(processStart) }
