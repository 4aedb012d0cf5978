package system

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"time"

	"kube-proxy/internal/kernel"
	"kube-proxy/mode"
)

// Settings is what the configuration asks of the host.
type Settings struct {
	// Mode is the data plane that runs, and Asked what is asked of it.
	Mode  mode.Mode
	Asked mode.Settings
	// Conntrack is asked for in every mode.
	Conntrack Conntrack
	// OOMScoreAdj is for this process, -1000 to 1000 (CF-38).
	OOMScoreAdj int

	// IPv4 and IPv6 say which families the cluster uses: where one is not forwarded, there is a warning.
	IPv4, IPv6 bool
}

// Conntrack holds settings of connection tracking (CF-39 to CF-42). It has the fields of config.Conntrack.
type Conntrack struct {
	// MaxPerCore times the number of CPUs is the most connections, but at least Min; MaxPerCore 0 leaves the
	// kernel's.
	MaxPerCore, Min int
	// Timeouts; 0 leaves the kernel's.
	TCPEstablished, TCPCloseWait, UDP, UDPStream time.Duration
	// TCPBeLiberal: packets out of the window are not INVALID. False leaves the kernel's setting.
	TCPBeLiberal bool
}

// ReadOnlySysFS is the reason of the event that a read-only /sys calls for (EV-04).
const ReadOnlySysFS = "readOnlySysFS"

// Report is what became of the settings, beside errors. It is for the log.
type Report struct {
	// Wrote has a sentence for each setting that was changed.
	Wrote []string
	// Kept has a sentence for each that could not be, and suffices as it is.
	Kept []string
	// Warnings are what is not as asked for, and does not keep the proxy from its work.
	Warnings []Warning
}

// Warning is one thing that somebody should mend.
type Warning struct {
	// Event is the reason of the event to send about the Node, ReadOnlySysFS; "" for the log alone.
	Event string
	// Text is one sentence.
	Text string
}

// Host is where the settings are made. The zero value is this machine, in the network namespace of the calling
// thread; tests give folders.
type Host struct{ Tree kernel.Tree }

// Start makes all settings but those that the planes make themselves, when it is safe: route_localnet (DP-10). Call it
// before planes are made. An error is fatal: the process cannot do what it is asked to.
func (h Host) Start(s Settings) (Report, error) {
	j := job{tree: h.Tree}
	j.oom(s.OOMScoreAdj)
	j.conntrack(s.Conntrack)
	j.mode(s, false)
	j.forwarding(s)
	return j.report, errors.Join(j.errs...)
}

// InitOnly makes the settings for which a later process may lack privileges (PR-09): those of connection tracking, and
// all of the mode. The caller then says so and exits with 0, or with 1 if there is an error.
func (h Host) InitOnly(s Settings) (Report, error) {
	j := job{tree: h.Tree}
	j.conntrack(s.Conntrack)
	j.mode(s, true)
	j.forwarding(s)
	return j.report, errors.Join(j.errs...)
}

// Reload makes the settings that differ between two configurations of one mode. What is not asked for any more stays
// as it is, as it would if the process were started anew. An error is for the log: what was set before holds.
func (h Host) Reload(old, now Settings) (Report, error) {
	j := job{tree: h.Tree}
	if old.OOMScoreAdj != now.OOMScoreAdj {
		j.oom(now.OOMScoreAdj)
	}
	j.conntrack(now.Conntrack.since(old.Conntrack))
	if !slices.Equal(old.sysctls(), now.sysctls()) {
		j.mode(now, false)
	}
	return j.report, errors.Join(j.errs...)
}

// job collects what becomes of settings.
type job struct {
	tree   kernel.Tree
	report Report
	errs   []error
}

// sysctl is one that is to be set.
type sysctl struct {
	name, value string
	// asks is the flag and the field that ask for it, and how to stop them.
	asks string
	// more: a greater number does as well.
	more bool
	// optional: not every kernel has it, and those that have not do without.
	optional bool
}

func (j *job) set(s sysctl) {
	have, err := j.tree.Sysctl(s.name)
	if s.optional && errors.Is(err, fs.ErrNotExist) {
		j.report.Kept = append(j.report.Kept, "this kernel has no sysctl "+s.name)
		return
	}
	wrote := false
	if err == nil {
		wrote, err = j.tree.SetSysctl(s.name, s.value)
	}
	switch {
	case err == nil && wrote:
		j.report.Wrote = append(j.report.Wrote, fmt.Sprintf("set sysctl %s from %s to %s", s.name, have, s.value))
	case err == nil:
	case s.more && atLeast(have, s.value):
		j.report.Kept = append(j.report.Kept, fmt.Sprintf("sysctl %s stays %s, which suffices where %s is asked for: %v", s.name, have, s.value, err))
	default:
		j.errs = append(j.errs, fmt.Errorf("%w; asked for by %s", err, s.asks))
	}
}

func atLeast(have, want string) bool {
	a, errA := strconv.Atoi(have)
	b, errB := strconv.Atoi(want)
	return errA == nil && errB == nil && a >= b
}

func (j *job) warn(event, format string, args ...any) {
	j.report.Warnings = append(j.report.Warnings, Warning{event, fmt.Sprintf(format, args...)})
}

// oom is not worth ending for: the process runs as well without.
func (j *job) oom(score int) {
	switch wrote, err := j.tree.SetOOMScoreAdj(score); {
	case err != nil:
		j.warn("", "--oom-score-adj (oomScoreAdj): %v", err)
	case wrote:
		j.report.Wrote = append(j.report.Wrote, fmt.Sprintf("set oom_score_adj to %d", score))
	}
}
