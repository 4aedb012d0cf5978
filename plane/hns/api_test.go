package hns

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
)

// Requests have the field names of schema version 2, as github.com/Microsoft/hnslib/hcn writes
// them; unset fields are absent.
func TestRequestsAreOfSchemaVersion2(t *testing.T) {
	for want, v := range map[string]any{
		`{"ID":"l","HostComputeEndpoints":["e"],"SourceVIP":"10.1.1.2","FrontendVIPs":["10.96.0.10"],` +
			`"PortMappings":[{"Protocol":6,"InternalPort":8080,"ExternalPort":80,"DistributionType":2,"Flags":3}],` +
			`"SchemaVersion":{"Major":2,"Minor":0},"Flags":3}`: LoadBalancer{
			ID: "l", HostComputeEndpoints: []string{"e"}, SourceVIP: "10.1.1.2", FrontendVIPs: []string{"10.96.0.10"},
			PortMappings: []PortMapping{{Protocol: 6, InternalPort: 8080, ExternalPort: 80, DistributionType: PerClient,
				Flags: MappingILB | MappingLocalRoutedVIP}},
			SchemaVersion: Version2, Flags: FlagDSR | FlagIPv6},
		`{"HostComputeNetwork":"n","Policies":[{"Type":"ProviderAddress",` +
			`"Settings":{"ProviderAddress":"172.18.0.3"}}],` +
			`"IpConfigurations":[{"IpAddress":"10.1.2.14","PrefixLength":16}],"MacAddress":"02-11-0A-01-02-0E",` +
			`"Flags":1,` +
			`"SchemaVersion":{"Major":2,"Minor":0}}`: Endpoint{
			HostComputeNetwork: "n",
			Policies: []Policy{
				{Type: PolicyProviderAddress, Settings: json.RawMessage(`{"ProviderAddress":"172.18.0.3"}`)}},
			IPConfigurations: []IPConfig{{IPAddress: "10.1.2.14", PrefixLength: 16}},
			MacAddress:       "02-11-0A-01-02-0E", Flags: RemoteEndpoint, SchemaVersion: Version2},
	} {
		got, err := json.Marshal(v)
		if err != nil || string(got) != want {
			t.Errorf("got  %s\nwant %s\nerror %v", got, want, err)
		}
	}
}

func TestKindOfCodes(t *testing.T) {
	for code, want := range map[uint32]error{
		CodeElementNotFound:              ErrNotFound,
		0x80070000 | CodeElementNotFound: ErrNotFound, // an HRESULT of it
		CodePortExists:                   ErrExists,
		CodeAlreadyExists:                ErrExists,
		CodeHasReferences:                ErrInUse,
		CodeInvalidPolicy:                ErrInvalid,
		CodeNotImplemented:               ErrUnsupported,
		0x80070005:                       ErrDenied,
		CodeServiceUnreachable:           ErrRPC,
		0x800706ba:                       ErrRPC,
		CodeTimeout:                      ErrTimeout,
		0x1f:                             ErrFailed, // ERROR_GEN_FAILURE
		0x8007ffff:                       ErrFailed,
		0x80004005:                       ErrFailed, // E_FAIL
		0:                                ErrFailed,
	} {
		if got := KindOf(code); got != want { // the exact value
			t.Errorf("KindOf(0x%x) = %v, want %v", code, got, want)
		}
	}
}

// The outcome is known if HNS answered with a reason, else unknown.
func TestUncertain(t *testing.T) {
	for kind, want := range map[error]bool{ErrNotFound: false, ErrExists: false, ErrInUse: false, ErrInvalid: false,
		ErrUnsupported: false,
		ErrDenied:      false, ErrRPC: true, ErrTimeout: true, ErrFailed: true} {
		err := fmt.Errorf("apply: %w", &Error{Call: "create load balancer", Object: "10.96.0.10:80/tcp", Kind: kind,
			Code: 0x1, Text: "text"})
		if !errors.Is(err, kind) || Uncertain(err) != want {
			t.Errorf("%v: uncertain %t, want %t", err, Uncertain(err), want)
		}
	}
	err := &Error{Call: "create load balancer", Object: "10.96.0.10:80/tcp", Kind: ErrExists, Code: CodePortExists,
		Text: "text"}
	if got, want := err.Error(),
		"create load balancer 10.96.0.10:80/tcp: already exists (0x803b0013): text"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
