package planetest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The results of a scenario in one family.
const (
	Passes = "passes"
	Fails  = "fails"
	// NotApplicable: the scenario has nothing for this family.
	NotApplicable = "n/a"
	// NeedsSCTP: all of its packets are SCTP, which the kernel of this run has not.
	NeedsSCTP = "needs SCTP"
)

// Seen is the date and the commit of a result; in files "2026-11-22 at 88a0576f7190".
type Seen struct{ Date, Commit string }

func (s Seen) String() string { return s.Date + " at " + s.Commit }

// MarshalText is String.
func (s Seen) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses the output of MarshalText.
func (s *Seen) UnmarshalText(text []byte) error {
	var ok bool
	s.Date, s.Commit, ok = strings.Cut(string(text), " at ")
	if !ok {
		return fmt.Errorf("%q is not DATE at COMMIT", text)
	}
	return nil
}

// Results are the results of one mode on one kernel: the last complete run, and later runs of some
// scenarios.
type Results struct {
	Mode   string            `json:"mode"`
	Kernel string            `json:"kernel"`             // "6.12", without patch level; a model's name
	Model  bool              `json:"model,omitempty"`    // no packets were sent: a model answered
	All    *Seen             `json:"complete,omitempty"` // the last complete run, nil without one
	Cases  map[string]Result `json:"cases"`              // by scenario
}

// Result is the result of one scenario.
type Result struct {
	// Families has Passes, Fails, NotApplicable or NeedsSCTP for "IPv4" and "IPv6".
	Families map[string]string `json:"families,omitempty"`
	// SCTP counts the lines that this kernel could not send.
	SCTP int `json:"sctp,omitempty"`
	// Differs is set if the mode differs by intent: the row, and the reason.
	Differs string `json:"differs,omitempty"`
	// Proxied has the proven differences that exist because connections end at the plane
	// (Config.Proxied).
	Proxied []Proxied `json:"proxied,omitempty"`
	// Modelled has the permitted differences of a model (Config.Model).
	Modelled []Modelled `json:"modelled,omitempty"`
	// Left is set if the scenario was left out, though the run was complete: why (Config.TooLarge).
	Left string `json:"left,omitempty"`
	// Seen is set if it was another run than the complete one that showed this.
	Seen *Seen `json:"seen,omitempty"`
}

// Release is the last time that all was proven: all scenarios in all modes and on all kernels, and
// all other tests.
type Release struct {
	Seen    Seen     `json:"seen"`
	Kernels []string `json:"kernels"`
}

// ReadRelease reads a file of [Release.Write]; nil without one.
func ReadRelease(file string) (*Release, error) {
	r, err := read[Release](file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return &r, err
}

// NewRelease returns the check of a commit that passed. It is an error if a complete run of a mode
// is missing on one of the kernels, or is of another commit.
func NewRelease(s Seen, kernels []string, results []Results) (*Release, error) {
	modes := map[string]bool{}
	complete := map[[2]string]string{} // by mode and kernel: the commit of the complete run
	for _, r := range results {
		if r.Model { // a test like others, which the check has run too
			continue
		}
		modes[r.Mode] = true
		if r.All != nil {
			complete[[2]string{r.Mode, r.Kernel}] = r.All.Commit
		}
	}
	for mode := range modes {
		for _, k := range kernels {
			if c := complete[[2]string{mode, k}]; c != s.Commit {
				return nil, fmt.Errorf("mode %s has no complete run of %s on kernel %s, the last is of %q", mode,
					s.Commit, k, c)
			}
		}
	}
	return &Release{Seen: s, Kernels: kernels}, nil
}

// Write writes the check to a file.
func (r *Release) Write(file string) error { return write(file, r) }

func read[T any](file string) (v T, err error) {
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &v)
	}
	if err != nil {
		return v, fmt.Errorf("read %s: %w", file, err)
	}
	return v, nil
}

func write(file string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return os.WriteFile(file, append(data, '\n'), 0o644)
}

// ReadResults reads all files of a folder, ordered by mode and kernel.
func ReadResults(dir string) ([]Results, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	var all []Results
	for _, file := range files {
		r, err := read[Results](file)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b Results) int {
		return cmp.Or(strings.Compare(a.Mode, b.Mode), compareVersions(a.Kernel, b.Kernel))
	})
	return all, nil
}

// merge adds earlier results to r, a run of now, for scenarios that it has not run. If all is not
// set, it is a run of some.
func (r *Results) merge(known []Results, now Seen, all bool) {
	var before Results
	for _, k := range known {
		if k.Mode == r.Mode && k.Kernel == r.Kernel {
			before = k
		}
	}
	if all {
		r.All = &now
	} else {
		r.All = before.All
		for name, c := range r.Cases {
			c.Seen = &now
			r.Cases[name] = c
		}
	}
	for name, c := range before.Cases {
		if mine, again := r.Cases[name]; (again && mine.Left == "") || (!again && all) {
			continue // run again, or a deleted scenario
		}
		if all && c.Seen == nil && c.Left == "" {
			c.Seen = before.All
		}
		r.Cases[name] = c
	}
}

// compareVersions orders "5.10" before "6.1" before "6.12".
func compareVersions(a, b string) int {
	var x, y [2]int
	_, errA := fmt.Sscanf(a, "%d.%d", &x[0], &x[1])
	_, errB := fmt.Sscanf(b, "%d.%d", &y[0], &y[1])
	if errA != nil || errB != nil {
		return strings.Compare(a, b)
	}
	return slices.Compare(x[:], y[:])
}

// column returns the head of the column that the results belong to.
func (r Results) column() string {
	if r.Model {
		return r.Mode + " (" + r.Kernel + ")"
	}
	return r.Mode
}

// oldest returns the date of the oldest result.
func (r Results) oldest() string {
	oldest := ""
	for _, c := range r.Cases {
		seen := c.Seen
		if seen == nil {
			seen = r.All
		}
		if seen != nil && (oldest == "" || seen.Date < oldest) {
			oldest = seen.Date
		}
	}
	return cmp.Or(oldest, "–")
}

// Write writes the results to their file in dir.
func (r Results) Write(dir string) error {
	return write(filepath.Join(dir, strings.ReplaceAll(r.Mode+"-"+r.Kernel, " ", "-")+".json"), r)
}
