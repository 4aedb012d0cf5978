package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// resultsFile holds all figures that documents show, below the root of the module.
const resultsFile = "docs/performance.json"

// results are figures by mode, as -mode names it.
type results map[string]*part

// part is what runs at one commit on one machine measured of a mode.
type part struct {
	facts
	// Peer is the version of the other kube-proxy, "" without one.
	Peer string `json:"peer,omitempty"`
	// Runs are the commands, with the load of the machine.
	Runs    []outcome `json:"runs"`
	Figures figures   `json:"figures"`
}

// outcome is one run of a command.
type outcome struct {
	Command    string  `json:"command"`
	LoadBefore float64 `json:"loadBefore"` // load average of a minute
	LoadAfter  float64 `json:"loadAfter"`
	Seconds    float64 `json:"seconds"`
	// Error is why some or all of its figures are missing.
	Error string `json:"error,omitempty"`
}

// readResults reads the file below the root; an absent one is empty.
func readResults(root string) (results, error) {
	text, err := os.ReadFile(filepath.Join(root, resultsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return results{}, nil
	}
	if err != nil {
		return nil, err
	}
	r := results{}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return nil, fmt.Errorf("decode %s: %w", resultsFile, err)
	}
	return r, nil
}

func (r results) write(root string) error {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, resultsFile), append(text, '\n'), 0o644)
}

// add adds a run of a job. A part measured at another commit, kernel or machine is replaced; a
// repeated command replaces its figures.
func (r results) add(mode string, now facts, peer string, o outcome, f figures) {
	p := r[mode]
	if p == nil || p.Commit != now.Commit || p.Kernel != now.Kernel || p.CPU != now.CPU {
		p = &part{Figures: figures{}}
		r[mode] = p
	}
	p.facts = now
	if peer != "" {
		p.Peer = peer
	}
	p.Runs = append(slices.DeleteFunc(p.Runs, func(old outcome) bool { return old.Command == o.Command }), o)
	for k, v := range f {
		p.Figures[k] = v
	}
}

// judgement says how many limits were kept, how loaded the machine was, and what is missing.
func (p *part) judgement(rows []row) string {
	var b strings.Builder
	if len(rows) > 0 {
		missed := 0
		for _, r := range rows {
			if !r.ok {
				missed++
			}
		}
		fmt.Fprintf(&b, "%d of %d rows reach their goal; ", len(rows)-missed, len(rows))
	}
	least, most := p.Runs[0].LoadBefore, p.Runs[0].LoadBefore
	for _, o := range p.Runs {
		least, most = min(least, o.LoadBefore, o.LoadAfter), max(most, o.LoadBefore, o.LoadAfter)
	}
	fmt.Fprintf(&b, "load average %.1f to %.1f.", least, most)
	if p.Peer != "" {
		fmt.Fprintf(&b, " Upstream is %s.", p.Peer)
	}
	for _, o := range p.Runs {
		if o.Error != "" {
			fmt.Fprintf(&b, " Without result: `%s` (%s).", o.Command, o.Error)
		}
	}
	return b.String()
}

// markdown is the part of the page in docs.
func (p *part) markdown(mode string) string {
	var rows []row
	table := ""
	if mode == "compare" {
		table = comparison(p.Figures)
	} else {
		rows = rowsOf[mode](p.Figures)
		table = markdownRows(rows)
	}
	return fmt.Sprintf("\n%s\n\n%s\n\n%s\n", p.facts, p.judgement(rows), table)
}
