// Package transcript is the record of what one build of Windows answered when it was asked how its Host Networking Service (HNS)
// behaves. `kube-proxy selftest` writes one on a node; package hnsfake answers as one says.
//
// A transcript is JSON lines, each a [Line]: a question and its answer. Lines whose Name is a field of [Facts] together are what
// the fake knows. The files assumed-*.jsonl of this package stand in until a node has been asked: each line names its source.
package transcript

import (
	"bufio"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"kube-proxy/plane/hns"
)

// Line is a question and its answer.
type Line struct {
	// Step is the step of `kube-proxy selftest`, 1 to 9.
	Step int `json:"step"`
	// Name names the question, unique in a transcript: a field of Facts, or "shape/clusterip" and the like.
	Name string `json:"name"`
	// Value is the answer; null where there is none.
	Value json.RawMessage `json:"value,omitempty"`
	// Result is "" for an answer, "failed" where the node does not do what this proxy needs, "skipped" where it was not asked.
	Result string `json:"result,omitempty"`
	// Text explains the result to a person.
	Text string `json:"text,omitempty"`
	// Source is Measured, or where an assumption comes from.
	Source string `json:"source"`
}

// Measured is the Source of a line that a node answered.
const Measured = "measured"

// Facts are how one build of Windows behaves, each a line of the same name.
type Facts struct {
	// Build is that of Windows, "10.0.17763.5329" (step 1).
	Build string `json:"build"`
	// Features are those of HNS (step 1).
	Features hns.Features `json:"features"`
	// PoliciesAdded are the types of policies that HNS adds to an endpoint by itself (step 3).
	PoliciesAdded []string `json:"policies-added"`
	// Filter is what a list of endpoints filtered by an address returns: "match", "everything" where HNS ignores the field, or
	// "nothing" (step 3).
	Filter string `json:"filter"`
	// DuplicateAddress: a second endpoint may have an address that another one has (step 3).
	DuplicateAddress bool `json:"duplicate-address"`
	// ListenerConflict: HNS refuses a load balancer for a port on which a program of the node listens at any address
	// (0x803b0013), whatever the load balancer's address is (step 4).
	ListenerConflict bool `json:"listener-conflict"`
	// ReservedPorts are the first and last port that HNS refuses for NodePorts, as the dynamic range is taken; 0, 0 for none
	// (step 4).
	ReservedPorts [2]uint16 `json:"reserved-ports"`
	// SourceVIPEndpoint: an overlay network refuses a load balancer whose SourceVIP is neither of a local endpoint nor the
	// node's (step 4).
	SourceVIPEndpoint bool `json:"source-vip-endpoint"`
	// MappingFlags are the flags of port mappings that HNS takes (step 5).
	MappingFlags hns.PortMappingFlags `json:"mapping-flags"`
	// DeletesFail: one in so many deletes fails although nothing is wrong; 0 for none (step 5).
	DeletesFail int `json:"deletes-fail"`
	// CallMillis is the time of a call, and ObjectMillis what it takes longer for each object that HNS holds, in ms (step 6).
	CallMillis   float64 `json:"call-ms"`
	ObjectMillis float64 `json:"object-ms"`
	// VIPEndpoint: in an overlay network, pods reach a cluster IP only if a remote endpoint has it (step 7).
	VIPEndpoint bool `json:"vip-endpoint"`
	// HostReachesVIP: the node itself reaches a load balancer's address without MappingLocalRoutedVIP (step 7).
	HostReachesVIP bool `json:"host-reaches-vip"`
}

// Write writes lines.
func Write(w io.Writer, lines []Line) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	for _, l := range lines {
		if err := e.Encode(l); err != nil {
			return fmt.Errorf("writing line %q of a transcript: %w", l.Name, err)
		}
	}
	return nil
}

// Read reads lines.
func Read(r io.Reader) (lines []Line, err error) {
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<24) // a network with thousands of routes
	for s.Scan() {
		if strings.TrimSpace(s.Text()) == "" {
			continue
		}
		var l Line
		if err := json.Unmarshal(s.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("reading line %d of a transcript: %w", len(lines)+1, err)
		}
		lines = append(lines, l)
	}
	return lines, s.Err()
}

// FactsOf folds lines into f; of two of one name the later counts.
func FactsOf(f Facts, lines []Line) (Facts, error) {
	for _, l := range lines {
		if l.Value == nil {
			continue
		}
		name, err := json.Marshal(l.Name)
		if err == nil {
			err = json.Unmarshal(fmt.Appendf(nil, "{%s:%s}", name, l.Value), &f)
		}
		if err != nil {
			return f, fmt.Errorf("reading %q of a transcript: %w", l.Name, err)
		}
	}
	return f, nil
}

//go:embed assumed-*.jsonl
var assumed embed.FS

// Builds are the builds of Windows that there are assumptions of: Windows Server 2019, 2022 and 2025.
var Builds = []string{"17763", "20348", "26100"}

// Assumed returns the assumptions about a build of [Builds].
func Assumed(build string) ([]Line, error) {
	f, err := assumed.Open("assumed-" + build + ".jsonl")
	if err != nil {
		return nil, fmt.Errorf("no assumptions about build %q of Windows: want one of %s", build, strings.Join(Builds, ", "))
	}
	defer f.Close()
	return Read(f)
}
