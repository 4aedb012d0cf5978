package selftest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/plane/hns"
	"kube-proxy/test/hnsfake"
)

var sourceVIP = netip.MustParseAddr("10.1.1.2")

// on runs the steps on an HNS that behaves as a build does, after prepare.
func on(ctx context.Context, t *testing.T, facts hnsfake.Facts, typ hns.NetworkType,
	prepare func(f *hnsfake.Fake, network string, cfg *Config)) (lines []Line, ok bool, f *hnsfake.Fake) {
	t.Helper()
	f = hnsfake.With(facts)
	network := f.AddNetwork(hns.Network{Name: "cbr0", Type: typ, ManagementIP: "172.18.0.2",
		HostMAC: "00-15-5D-00-00-01",
		Ipams: []hns.Ipam{{Type: "Static", Subnets: []hns.Subnet{{IPAddressPrefix: "10.1.1.0/24"},
			{IPAddressPrefix: "fd00:10:1:1::/64"}}}}})
	cfg := Config{Mode: "kernelspace", Sizes: []int{2, 5}, Timeout: 100 * time.Millisecond, HNS: f, Elevated: true,
		Plane: hns.Config{Network: "cbr0"}, EchoVIP: vip, Restart: func(context.Context) error { return nil },
		Service: func(_ context.Context, check func(string, string, error) bool) {
			check("start", "it starts", nil)
		}}
	if typ == hns.Overlay {
		cfg.Plane.SourceVIP = sourceVIP
		f.AddPod(network, "source VIP", sourceVIP)
	}
	if prepare != nil {
		prepare(f, network, &cfg)
	}
	ok = Run(ctx, cfg, func(l Line) { lines = append(lines, l) })
	return lines, ok, f
}

func failed(lines []Line) (names []string) {
	for _, l := range lines {
		if l.Result == Failed {
			names = append(names, l.Name)
		}
	}
	return names
}

// factsOf are the facts that a transcript gives.
func factsOf(t *testing.T, lines []Line) hnsfake.Facts {
	t.Helper()
	var text bytes.Buffer
	for _, l := range lines {
		if err := json.NewEncoder(&text).Encode(l); err != nil {
			t.Fatal(err)
		}
	}
	read, err := hnsfake.Read(&text)
	if err != nil {
		t.Fatal(err)
	}
	facts, err := hnsfake.FactsOf(hnsfake.Facts{}, read)
	if err != nil {
		t.Fatal(err)
	}
	return facts
}

// The transcript of each build returns the facts of the build, and the test leaves nothing behind
// (WN-03).
func TestTranscriptGivesTheFacts(t *testing.T) {
	for _, build := range hnsfake.Builds {
		for _, typ := range []hns.NetworkType{hns.L2Bridge, hns.Overlay} {
			want := hnsfake.Assumed(build)
			lines, ok, f := on(t.Context(), t, want, typ, nil)
			if !ok {
				t.Errorf("%s %s: failed: %v", build, typ, failed(lines))
			}
			got := factsOf(t, lines)
			// Not measured here: facts that need a pod or a clock, and listeners of this machine.
			want.CallMillis, want.ObjectMillis, want.VIPEndpoint, want.HostReachesVIP, want.ListenerConflict = 0, 0,
				false, false, false
			want.SourceVIPEndpoint = want.SourceVIPEndpoint && typ == hns.Overlay
			if want.DeletesFail > 0 != (got.DeletesFail > 0) {
				t.Errorf("%s %s: one in %d deletes fails, want %d", build, typ, got.DeletesFail, want.DeletesFail)
			}
			got.CallMillis, got.ObjectMillis, got.DeletesFail, want.DeletesFail = 0, 0, 0, 0
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s %s:\n%+v, want\n%+v", build, typ, got, want)
			}
			if left := f.Own(); strings.Contains(left, "192.0.2.") || strings.Contains(left, "198.51.100.") {
				t.Errorf("%s %s: it leaves\n%s", build, typ, left)
			}
		}
	}
}

// forgiving is an HNS that accepts deletes of missing objects.
type forgiving struct{ *hnsfake.Fake }

func (f forgiving) DeleteEndpoint(ctx context.Context, id string) error {
	if err := f.Fake.DeleteEndpoint(ctx, id); !errors.Is(err, hns.ErrNotFound) {
		return err
	}
	return nil
}

// An interrupted test leaves nothing behind, whenever the interrupt comes (WN-03).
func TestInterrupted(t *testing.T) {
	for after := range 400 {
		ctx, interrupt := context.WithCancel(t.Context())
		lines, ok, f := on(ctx, t, hnsfake.Assumed("26100"), hns.Overlay, func(f *hnsfake.Fake, _ string, c *Config) {
			f.FailWith(func(call hnsfake.Call) *hnsfake.Fault {
				if call.N == after {
					interrupt()
				}
				return nil
			})
		})
		interrupt()
		if left := f.Own(); strings.Contains(left, "192.0.2.") || strings.Contains(left, "198.51.100.") {
			t.Fatalf("interrupted at call %d (passed %t, %d lines), it leaves\n%s", after, ok, len(lines), left)
		}
	}
}

// A test after one that was killed uses and deletes its endpoints (WN-03).
func TestAfterKilled(t *testing.T) {
	lines, ok, f := on(t.Context(), t, hnsfake.Assumed("26100"), hns.L2Bridge, func(f *hnsfake.Fake, network string,
		_ *Config) {
		left := hns.Endpoint{Name: "kube-proxy-selftest 192.0.2.1", HostComputeNetwork: network,
			Flags: hns.RemoteEndpoint, SchemaVersion: hns.Version2,
			MacAddress: "02-11-C0-00-02-01", IPConfigurations: []hns.IPConfig{{IPAddress: "192.0.2.1"}}}
		if _, err := f.CreateEndpoint(t.Context(), left); err != nil {
			t.Fatal(err)
		}
	})
	if left := f.Own(); !ok || strings.Contains(left, "192.0.2.") {
		t.Errorf("failed %v; it leaves\n%s", failed(lines), left)
	}
}

// doubling is an HNS that accepts two load balancers of one key.
type doubling struct {
	*hnsfake.Fake
	twice map[string]bool
}

func (d doubling) CreateLoadBalancer(ctx context.Context, l hns.LoadBalancer) (hns.LoadBalancer, error) {
	made, err := d.Fake.CreateLoadBalancer(ctx, l)
	if errors.Is(err, hns.ErrExists) {
		l.ID, err = fmt.Sprint("twice ", len(d.twice)), nil
		d.twice[l.ID] = true
		return l, err
	}
	return made, err
}

func (d doubling) DeleteLoadBalancer(ctx context.Context, id string) error {
	if d.twice[id] {
		delete(d.twice, id)
		return nil
	}
	return d.Fake.DeleteLoadBalancer(ctx, id)
}

// The second load balancer of a key is a failure, and is deleted (WN-03).
func TestSameKeyAccepted(t *testing.T) {
	left := map[string]bool{}
	lines, _, _ := on(t.Context(), t, hnsfake.Assumed("26100"), hns.L2Bridge,
		func(f *hnsfake.Fake, _ string, c *Config) {
			c.HNS = doubling{f, left}
		})
	if got := failed(lines); !slices.Contains(got, "refusal/same-key") || len(left) > 0 {
		t.Errorf("failed %v, left %v", got, left)
	}
}

// Each claim can fail (WN-03).
func TestHNSFails(t *testing.T) {
	call := func(name string, fault hnsfake.Fault) func(*hnsfake.Fake, string, *Config) {
		return func(f *hnsfake.Fake, _ string, _ *Config) {
			f.FailWith(func(c hnsfake.Call) *hnsfake.Fault {
				if c.Name == name {
					return &fault
				}
				return nil
			})
		}
	}
	refuse := hnsfake.Fault{Code: hns.CodeInvalidPolicy}
	network := func(change func(*hns.Network)) func(*hnsfake.Fake, string, *Config) {
		return func(f *hnsfake.Fake, id string, _ *Config) { f.SetNetwork(id, change) }
	}
	for name, c := range map[string]struct {
		prepare func(*hnsfake.Fake, string, *Config)
		failed  string
	}{
		"no HNS":           {call("Features", hnsfake.Fault{Code: hns.CodeServiceUnreachable}), "hns"},
		"no rights":        {func(_ *hnsfake.Fake, _ string, c *Config) { c.Elevated = false }, "elevated"},
		"an old one":       {func(f *hnsfake.Fake, _ string, _ *Config) { f.SetFeatures(hns.Features{}) }, "hns"},
		"no network":       {func(_ *hnsfake.Fake, _ string, c *Config) { c.Plane.Network = "other" }, "network"},
		"a network of NAT": {network(func(n *hns.Network) { n.Type = "NAT" }), "network"},
		"no ManagementIP":  {network(func(n *hns.Network) { n.ManagementIP = "" }), "network"},
		"no host MAC":      {network(func(n *hns.Network) { n.HostMAC = "" }), "network"},
		"no source VIP": {func(_ *hnsfake.Fake, _ string, c *Config) {
			c.Plane.SourceVIP = netip.MustParseAddr("10.1.1.3")
		}, "source-vip"},
		"endpoints refused": {call("CreateEndpoint", refuse), "create"},
		"half a list":       {call("Endpoints", hnsfake.Fault{Code: hns.CodeTimeout}), "list"},
		"no filters":        {call("EndpointsAt", refuse), "filtered"},
		"deletes refused":   {call("DeleteEndpoint", hnsfake.Fault{Code: hns.CodeHasReferences}), "delete"},
		"other codes": {func(f *hnsfake.Fake, _ string, c *Config) { c.HNS = forgiving{f} },
			"refusal/unknown-endpoint"},
		"balancers refused": {call("CreateLoadBalancer", refuse), "load-balancer"},
		"no lists":          {call("LoadBalancers", refuse), "list-time"},
		"no changes":        {call("ModifyLoadBalancer", refuse), "shape/"},
		"nothing goes":      {call("DeleteLoadBalancer", refuse), "load-balancer"},
		"no pod there": {func(_ *hnsfake.Fake, _ string, c *Config) {
			c.Echo = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.9:80")}
			c.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("unreachable") }
		}, "echo/192.0.2.9:80"},
		"HNS stays down": {func(_ *hnsfake.Fake, _ string, c *Config) {
			c.Restart = func(context.Context) error { return errors.New("stopped") }
		}, "restart"},
		"another network": {func(f *hnsfake.Fake, id string, c *Config) {
			c.Restart = func(context.Context) error { f.RemoveNetwork(id); return nil }
		}, "restart"},
		"balancers lost": {func(f *hnsfake.Fake, _ string, c *Config) {
			c.Restart = func(ctx context.Context) error {
				all, err := f.LoadBalancers(ctx)
				for _, l := range all {
					err = errors.Join(err, f.DeleteLoadBalancer(ctx, l.ID))
				}
				return err
			}
		}, "restart"},
		"no service": {func(_ *hnsfake.Fake, _ string, c *Config) {
			c.Service = func(_ context.Context, check func(string, string, error) bool) {
				check("start", "it starts", errors.New("no"))
			}
		}, "start"},
	} {
		t.Run(name, func(t *testing.T) {
			lines, ok, _ := on(t.Context(), t, hnsfake.Assumed("26100"), hns.Overlay, c.prepare)
			got := failed(lines)
			if ok || !slices.ContainsFunc(got, func(f string) bool {
				return f == c.failed || strings.HasSuffix(c.failed, "/") && strings.HasPrefix(f, c.failed)
			}) {
				t.Errorf("%s does not fail, but %v", c.failed, got)
			}
			for i := range Titles {
				if !slices.ContainsFunc(lines, func(l Line) bool { return l.Step == i+1 }) {
					t.Errorf("step %d has no line", i+1)
				}
			}
		})
	}
}
