package hnsfake

import (
	"bufio"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"kube-proxy/plane/hns"
)

// Line is a line of a transcript of `kube-proxy selftest -o json`: a question and its answer. Those whose Name is a field of [Facts]
// say how HNS behaves; Read takes them all.
type Line struct {
	Step   int             `json:"step"`
	Name   string          `json:"name"`
	Value  json.RawMessage `json:"value"`
	Source string          `json:"source"` // "measured", or where an assumption comes from
}

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

// Assumed returns what is assumed of a build of [Builds], in files that stand in until a node has been asked.
func Assumed(build string) Facts {
	lines, err := assumedLines(build)
	if err != nil {
		panic(err)
	}
	facts, err := FactsOf(Facts{}, lines)
	if err != nil {
		panic(err)
	}
	facts.Features.Build = facts.Build
	return facts
}

func assumedLines(build string) ([]Line, error) {
	f, err := assumed.Open("assumed-" + build + ".jsonl")
	if err != nil {
		return nil, fmt.Errorf("no assumptions about build %q of Windows: want one of %s", build, strings.Join(Builds, ", "))
	}
	defer f.Close()
	return Read(f)
}
