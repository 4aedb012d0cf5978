package ui

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// recorded has what the conformance suite showed, as docs/conformance.md has it: go test ./cli/ui -run TestConformance -update
//
//go:embed conformance.json
var recorded []byte

// run is what the suite showed of one mode on one kernel. A scenario counts once for each IP family.
type run struct {
	Mode, Kernel string
	Model        bool `json:",omitempty"` // no packets were sent: a model answered
	Pass, Fail   int
	Differ       int    // scenarios in which the mode does otherwise by intent
	Not          int    // not applicable there
	When         string // "2026-11-22 at b60fbbe48eed", the last complete run; "" if none was complete
}

// runsOf returns the runs of a mode, with those of its back ends.
func runsOf(mode string) []run {
	var all []run
	if err := json.Unmarshal(recorded, &all); err != nil {
		panic(fmt.Sprintf("ui: conformance.json: %v", err)) // it is part of the program
	}
	return slices.DeleteFunc(all, func(r run) bool {
		name, _, _ := strings.Cut(r.Mode, " ")
		return name != mode && !strings.HasPrefix(name, mode+"-")
	})
}
