package config

import (
	"fmt"
	"strings"
)

// Problem is one thing that is wrong with the configuration.
type Problem struct {
	// Where is the flag ("--cluster-cidr") or the field of the file
	// ("detectLocal.bridgeInterface"); or, if Want is "", the whole message.
	Where string
	// Value is the rejected value.
	Value string
	// Want describes the valid values, or why the value is not one.
	Want string
}

// Error returns the problem in one line.
func (p Problem) Error() string {
	if p.Want == "" {
		return p.Where
	}
	return fmt.Sprintf("%s: %q: %s", p.Where, p.Value, p.Want)
}

// Problems is the error of [Options.Complete]: all that is wrong with flags, arguments and
// fields; flags that do not parse first.
type Problems []Problem

// Error returns one line for each problem.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// In returns the problems with a prefix for their source: file for those of a field, commandLine
// for the others; "" means no prefix.
func (ps Problems) In(file, commandLine string) Problems {
	located := make(Problems, len(ps))
	for i, p := range ps {
		from := commandLine
		if strings.HasPrefix(p.Where, inFile) {
			from = file
		}
		if from != "" {
			p.Where = from + ": " + p.Where
		}
		located[i] = p
	}
	return located
}
