package preflight

import (
	"cmp"
	"slices"
)

// Severity is the importance of a finding.
type Severity string

// The severities, from the least.
const (
	OK      Severity = "ok"      // as it should be
	Info    Severity = "info"    // worth knowing
	Unknown Severity = "unknown" // could not be found out
	Warning Severity = "warning" // the proxy runs, and something may go wrong
	Error   Severity = "error"   // the proxy does not run, or Services do not work
)

var severities = []Severity{OK, Info, Unknown, Warning, Error}

// worse orders severities.
func worse(a, b Severity) int {
	return cmp.Compare(slices.Index(severities, a), slices.Index(severities, b))
}

// Finding is one thing that was looked at.
type Finding struct {
	// ID is the kind of finding, of docs/check.md.
	ID       string   `json:"id"`
	Severity Severity `json:"severity"`
	// About is the subject of the finding, such as a mode or a sysctl; "" if there is only one.
	About string `json:"about,omitempty"`
	// Seen is the observation, or the reason why it is unknown.
	Seen string `json:"seen"`
	// Why is the reason why it matters, and Remedy the action; "" if no action is needed.
	Why    string `json:"why,omitempty"`
	Remedy string `json:"remedy,omitempty"`
}

// Exit codes of kube-proxy check. 1 is that of any command: the command line or the configuration
// is invalid.
const (
	ExitOK       = 0 // only ok and info
	ExitErrors   = 2 // an error, at least
	ExitWarnings = 3 // no error, but a warning, or something unknown
)

// Worst returns the worst severity; OK if there are no findings.
func Worst(all []Finding) Severity {
	worst := OK
	for _, f := range all {
		if worse(f.Severity, worst) > 0 {
			worst = f.Severity
		}
	}
	return worst
}

// Exit returns the exit code for the findings.
func Exit(all []Finding) int {
	switch Worst(all) {
	case Error:
		return ExitErrors
	case Warning, Unknown:
		return ExitWarnings
	}
	return ExitOK
}
