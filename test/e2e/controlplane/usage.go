package controlplane

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// CPUTime is the processor time of the process since its start, user and system, to 10 ms: its own,
// and that of its children that have ended.
func (p *Process) CPUTime() (time.Duration, error) {
	tasks := fmt.Sprintf("/proc/%d/stat", p.Pid())
	content, err := os.ReadFile(tasks)
	if err != nil {
		return 0, fmt.Errorf("read processor time of %s: %w", p.name, err)
	}
	// The name of the program, in parentheses, may contain spaces; utime, stime, cutime and
	// cstime are fields 14 to 17.
	fields := strings.Fields(string(content[strings.LastIndexByte(string(content), ')')+1:]))
	var ticks int64
	for _, field := range fields[11:15] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read processor time of %s: %w", p.name, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / clockTicks), nil
}

// clockTicks is USER_HZ, which is 100 on every architecture that Linux still has but two.
const clockTicks = 100

// PeakMemory is the largest resident size of the process so far, in bytes.
func (p *Process) PeakMemory() (int64, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid()))
	if err != nil {
		return 0, fmt.Errorf("read memory of %s: %w", p.name, err)
	}
	for line := range strings.Lines(string(content)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("read memory of %s %d: no VmHWM", p.name, p.Pid())
}
