package planetest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// What became of a scenario in one family.
const (
	Passes = "passes"
	Fails  = "fails"
	// NotApplicable: the scenario says nothing for this family.
	NotApplicable = "n/a"
	// NeedsSCTP: all of its packets are SCTP, which the kernel of this run has not.
	NeedsSCTP = "needs SCTP"
)

// Results are what one run of one mode on one kernel showed.
type Results struct {
	Mode   string            `json:"mode"`
	Kernel string            `json:"kernel"` // "6.12": no patch level, so that a rerun is no change
	Cases  map[string]Result `json:"cases"`  // by scenario
}

// Result is what became of one scenario.
type Result struct {
	// Families has Passes, Fails, NotApplicable or NeedsSCTP for "IPv4" and "IPv6".
	Families map[string]string `json:"families,omitempty"`
	// SCTP counts the lines that this kernel could not send.
	SCTP int `json:"sctp,omitempty"`
	// Differs is set if the mode does otherwise by intent: which row, and why.
	Differs string `json:"differs,omitempty"`
}

// ReadResults reads all files of a folder, ordered by mode and kernel.
func ReadResults(dir string) ([]Results, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	var all []Results
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read results: %w", err)
		}
		var r Results
		if err := json.Unmarshal(data, &r); err != nil {
			return nil, fmt.Errorf("read results: %s: %w", file, err)
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b Results) int {
		if c := strings.Compare(a.Mode, b.Mode); c != 0 {
			return c
		}
		return compareVersions(a.Kernel, b.Kernel)
	})
	return all, nil
}

// complete adds what an earlier run of the same mode on the same kernel showed of scenarios that r has not.
func (r *Results) complete(known []Results) {
	for _, k := range known {
		if k.Mode != r.Mode || k.Kernel != r.Kernel {
			continue
		}
		for name, result := range k.Cases {
			if _, again := r.Cases[name]; !again {
				r.Cases[name] = result
			}
		}
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

// Write writes the results to their file in dir.
func (r Results) Write(dir string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	file := filepath.Join(dir, r.Mode+"-"+r.Kernel+".json")
	if err := os.WriteFile(file, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return nil
}
