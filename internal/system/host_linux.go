package system

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"kube-proxy/internal/kernel"
)

// Host is where the settings are made. The zero value is this machine, in the network namespace of
// the calling thread; tests give folders.
type Host struct{ Tree kernel.Tree }

// Start makes all settings except those that the planes make themselves, when it is safe:
// route_localnet (DP-10). Call it before planes are made. An error is fatal: the process cannot
// work as configured.
func (h Host) Start(s Settings) (Report, error) {
	j := job{tree: h.Tree}
	j.oom(s.OOMScoreAdj)
	j.conntrack(s.Conntrack)
	j.mode(s, false)
	j.forwarding(s)
	return j.report, errors.Join(j.errs...)
}

// InitOnly makes the settings for which a later process may lack privileges (PR-09): those of
// connection tracking, and all of the mode. The caller then logs that and exits with 0, or with 1
// on an error.
func (h Host) InitOnly(s Settings) (Report, error) {
	j := job{tree: h.Tree}
	j.conntrack(s.Conntrack)
	j.mode(s, true)
	j.forwarding(s)
	return j.report, errors.Join(j.errs...)
}

// Reload makes the settings that differ between two configurations of one mode. Settings that are
// no longer configured stay, as after a restart of the process. An error is for the log: the
// previous settings hold.
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

// Plan returns the changes of Start and of the planes after it, without making them. The error
// names the settings that the host lacks or hides; the host may have some of them after a module is
// loaded, which Plan does not do.
func (h Host) Plan(s Settings) ([]Change, error) {
	j := job{tree: h.Tree, plans: true}
	j.conntrack(s.Conntrack)
	j.mode(s, true)
	return j.changes, errors.Join(j.errs...)
}

// job collects the results of settings.
type job struct {
	tree kernel.Tree
	// plans: changes are recorded, and not made.
	plans   bool
	changes []Change
	report  Report
	errs    []error
}

// sysctl is one to set.
type sysctl struct {
	name, value string
	// asks names the flag and the field that request it, and how to disable them.
	asks string
	// more: a greater number does as well.
	more bool
	// keepMore: a greater number stays.
	keepMore bool
	// optional: not every kernel has it, and the proxy works without.
	optional bool
}

func (j *job) set(s sysctl) {
	have, err := j.tree.Sysctl(s.name)
	if s.optional && errors.Is(err, fs.ErrNotExist) {
		j.report.Kept = append(j.report.Kept, "This kernel has no sysctl "+s.name)
		return
	}
	if s.keepMore && err == nil && atLeast(have, s.value) {
		return
	}
	if j.plans {
		j.plan(s.name, have, s.value, s.asks, err)
		return
	}
	wrote := false
	if err == nil {
		wrote, err = j.tree.SetSysctl(s.name, s.value)
	}
	switch {
	case err == nil && wrote:
		j.report.Wrote = append(j.report.Wrote, fmt.Sprintf("Set sysctl %s from %s to %s", s.name, have, s.value))
	case err == nil:
	case s.more && atLeast(have, s.value):
		j.report.Kept = append(j.report.Kept,
			fmt.Sprintf("Sysctl %s stays %s, which suffices for the requested %s: %v", s.name, have, s.value, err))
	default:
		j.errs = append(j.errs, fmt.Errorf("%w; requested by %s", err, s.asks))
	}
}

// plan notes a change that is not made.
func (j *job) plan(name, have, want, asks string, err error) {
	switch {
	case err != nil:
		j.errs = append(j.errs, err)
	case strings.Join(strings.Fields(have), " ") != want:
		j.changes = append(j.changes, Change{Name: name, Have: have, Want: want, Asks: asks})
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
		j.warn("", "Cannot apply --oom-score-adj (oomScoreAdj): %v", err)
	case wrote:
		j.report.Wrote = append(j.report.Wrote, fmt.Sprintf("Set oom_score_adj to %d", score))
	}
}
