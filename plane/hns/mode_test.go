package hns

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"

	"kube-proxy/config/option"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane"
)

// version is an HNS with some features, or one that cannot be queried.
type version struct {
	HNS
	has Features
	err error
}

func (v version) Features(context.Context) (Features, error) { return v.has, v.err }

// A blank mode on Windows is kernelspace. If HNS is missing or too old, the error names mode
// userspace; no other mode runs without being configured (CF-19).
func TestBlankModeOnWindows(t *testing.T) {
	for name, c := range map[string]struct {
		open func() (HNS, error)
		fam  lb.Family
		says string // "" if the mode runs
	}{
		"there": {func() (HNS, error) { return version{has: Features{V2: true}}, nil }, lb.IPv4, ""},
		"old":   {func() (HNS, error) { return version{}, nil }, lb.IPv4, "Windows Server 2019"},
		"no IPv6": {func() (HNS, error) { return version{has: Features{V2: true}}, nil }, lb.IPv6,
			"Windows Server 2022"},
		"stopped": {func() (HNS, error) {
			return version{err: &Error{Call: "get version", Kind: ErrRPC}}, nil
		}, lb.IPv4, "HNS cannot be reached"},
		"absent": {func() (HNS, error) { return nil, errors.New("no computenetwork.dll") }, lb.IPv4,
			"no computenetwork.dll"},
	} {
		m := modeOn(c.open)
		m.OS = runtime.GOOS
		m.Unasked = runtime.GOOS
		list := mode.List{m, {Name: "userspace",
			Selection: mode.Selection{Able: func(mode.Settings) error { return nil }}, Planes: mode.Planes{New: m.New}}}
		for _, asked := range []string{"", "kernelspace"} {
			got, err := list.Choose(asked, "", mode.Settings{Family: c.fam})
			switch {
			case (err == nil) != (c.says == "") || (err == nil) != (got.Mode.Name == "kernelspace"):
				t.Errorf("%s, asked for %q: mode %q, error %v", name, asked, got.Mode.Name, err)
			case err != nil && (!strings.Contains(err.Error(), c.says) ||
				!strings.Contains(err.Error(), "--proxy-mode=userspace")):
				t.Errorf("%s, asked for %q: %v: want %q and a remedy in it", name, asked, err, c.says)
			}
		}
	}
}

// An HNS without the second family serves only the first.
func TestNoIPv6(t *testing.T) {
	m := modeOn(func() (HNS, error) { return version{has: Features{V2: true}}, nil })
	s := mode.Settings{Family: lb.IPv6, Blocks: asking("cbr0", "")}
	if _, err := m.New(s); !errors.Is(err, plane.ErrUnsupported) || !strings.Contains(err.Error(), "IPv6") {
		t.Errorf("IPv6: %v", err)
	}
	s.Family = lb.IPv4
	if _, err := m.New(s); err != nil {
		t.Errorf("IPv4: %v", err)
	}
}

// Systems other than Windows have no HNS, and nothing to remove.
func TestNotWindows(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("this is Windows; the calls of its HNS are in adapter_windows.go")
	}
	m := Mode()
	if err := m.Able(mode.Settings{Family: lb.IPv4}); !errors.Is(err, plane.ErrUnsupported) {
		t.Errorf("able: %v", err)
	}
	if _, err := m.New(mode.Settings{Family: lb.IPv4}); !errors.Is(err, plane.ErrUnsupported) {
		t.Errorf("new: %v", err)
	}
	r, err := m.Remove(t.Context(), mode.Removal{Families: []lb.Family{lb.IPv4, lb.IPv6}})
	if err != nil || len(r.Removed)+len(r.Left) > 0 {
		t.Errorf("remove: %+v, %v", r, err)
	}
}

// The text of hnslib's errors has the Windows code, from which the kind of error follows.
func TestRefusal(t *testing.T) {
	for text, kind := range map[string]error{
		"hcnCreateLoadBalancer failed in Win32: Cannot create a file " +
			"when that file already exists. (0xb7)": ErrExists,
		"hcnCreateLoadBalancer failed in Win32: The specified port already " +
			"exists. (0x803b0013) {\"Success\":false}": ErrExists,
		"hcnOpenNetwork failed in Win32: " +
			"Element not found. (0x490)": ErrNotFound,
		"hcnDeleteEndpoint failed in Win32: The RPC " +
			"server is unavailable. (0x6ba)": ErrRPC,
		"hcnCreateEndpoint failed in Win32: The provided policy configuration is invalid or missing parameters. " +
			"(0x803b000d)": ErrInvalid,
		"hnsCall failed in Win32: " +
			"Unspecified error (0x80004005)": ErrFailed,
		"HNS failed with " +
			"error : something": ErrFailed,
	} {
		err := refusal("create load balancer", "10.0.0.1:80/tcp", errors.New(text))
		if !errors.Is(err, kind) || !strings.Contains(err.Error(), text) ||
			!strings.HasPrefix(err.Error(), "create load balancer 10.0.0.1:80/tcp: ") {
			t.Errorf("%q: %v, want %v", text, err, kind)
		}
	}
	for _, err := range []error{context.DeadlineExceeded, context.Canceled} {
		if got := refusal("list", "", err); !errors.Is(got, ErrTimeout) {
			t.Errorf("%v: %v", err, got)
		}
	}
}

// check reports a missing network, ManagementIP, host MAC or source VIP (WN-05).
func TestMissingWN05(t *testing.T) {
	ours := []Network{{ID: "1", Name: "cbr0", Type: Overlay, ManagementIP: "172.18.0.2", HostMAC: "00-15-5D-00-00-01",
		Ipams: []Ipam{{Subnets: []Subnet{{IPAddressPrefix: "10.1.1.0/24"}}}}}}
	bare := []Network{{ID: "1", Name: "cbr0", Type: L2Bridge}}
	noMAC := slices.Clone(ours)
	noMAC[0].HostMAC = ""
	for name, c := range map[string]struct {
		has       []Network
		sourceVIP string
		says      string // "" if nothing is missing
	}{
		"all there":        {ours, "10.1.1.2", ""},
		"no network":       {nil, "10.1.1.2", "no HNS network"},
		"no source VIP":    {ours, "", "--source-vip"},
		"another's VIP":    {ours, "10.1.2.2", "is in no subnet"},
		"no ManagementIP":  {bare, "", "has no ManagementIP"},
		"no host MAC":      {noMAC, "10.1.1.2", "has no host MAC"},
		"a network of NAT": {[]Network{{ID: "1", Name: "cbr0", Type: "NAT"}}, "", "is of type NAT"},
		"two of that name": {append(slices.Clone(ours), ours...), "10.1.1.2", "have the name"},
	} {
		m := modeOn(func() (HNS, error) { return networked{all: c.has}, nil })
		err := errors.Join(m.Lacks(t.Context(), mode.Settings{Family: lb.IPv4, Blocks: asking("cbr0", c.sourceVIP)})...)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

// asking returns a configuration that names a network and an address in it.
func asking(network, sourceVIP string) option.Blocks {
	o := &Options{}
	o.Winkernel.NetworkName, o.Winkernel.SourceVip = network, sourceVIP
	return option.Blocks{o}
}

// networked is an HNS with networks.
type networked struct {
	HNS
	all []Network
}

func (n networked) Networks(context.Context, string) ([]Network, error) { return n.all, nil }
