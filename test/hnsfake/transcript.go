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

// Line is a line of a transcript of `kube-proxy selftest -o json`. Those with the name of a field
// of [Facts] describe HNS; others are ignored.
type Line struct {
	Step   int             `json:"step"`
	Name   string          `json:"name"`
	Value  json.RawMessage `json:"value"`
	Source string          `json:"source"` // "measured", or the source of an assumption
}

// Facts describe a build of Windows, each in a line of the same name.
type Facts struct {
	// Build is "10.0.17763.5329" (step 1).
	Build string `json:"build"`
	// Features are those of HNS (step 1).
	Features hns.Features `json:"features"`
	// PoliciesAdded are the types of policies that HNS adds to endpoints (step 3).
	PoliciesAdded []string `json:"policies-added"`
	// Filter is what a filter by address returns: "match", "everything" if HNS ignores the field,
	// or "nothing" (step 3).
	Filter string `json:"filter"`
	// DuplicateAddress: two endpoints may have one address (step 3).
	DuplicateAddress bool `json:"duplicate-address"`
	// ListenerConflict: HNS refuses a load balancer if a program listens on its port at any address
	// (0x803b0013, step 4).
	ListenerConflict bool `json:"listener-conflict"`
	// ReservedPorts are the first and last NodePort that HNS rejects, because they are in the
	// dynamic range; 0, 0 for none (step 4).
	ReservedPorts [2]uint16 `json:"reserved-ports"`
	// SourceVIPEndpoint: in an overlay network the SourceVIP must be the node's address or that of
	// a local endpoint (step 4).
	SourceVIPEndpoint bool `json:"source-vip-endpoint"`
	// MappingFlags are the flags of port mappings that HNS accepts (step 5).
	MappingFlags hns.PortMappingFlags `json:"mapping-flags"`
	// DeletesFail: one delete in this number fails without a reason; 0 for none (step 5).
	DeletesFail int `json:"deletes-fail"`
	// CallMillis is the duration of a call, and ObjectMillis the addition for each object in HNS
	// (step 6).
	CallMillis   float64 `json:"call-ms"`
	ObjectMillis float64 `json:"object-ms"`
	// VIPEndpoint: in an overlay network pods reach a cluster IP only if a remote endpoint has it
	// (step 7).
	VIPEndpoint bool `json:"vip-endpoint"`
	// HostReachesVIP: the node reaches load balancers without MappingLocalRoutedVIP (step 7).
	HostReachesVIP bool `json:"host-reaches-vip"`
}

// Read reads a transcript.
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

// FactsOf applies lines to f, in order.
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

// Builds are the assumed builds: Windows Server 2019, 2022 and 2025.
var Builds = []string{"17763", "20348", "26100"}

// Assumed returns the assumptions about a build of [Builds], until a transcript of a node replaces
// them.
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
		return nil, fmt.Errorf("no assumptions about build %q of Windows: want one of %s", build,
			strings.Join(Builds, ", "))
	}
	defer f.Close()
	return Read(f)
}
