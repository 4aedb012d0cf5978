package hns

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/Microsoft/hnslib"
	"github.com/Microsoft/hnslib/hcn"
	"golang.org/x/sys/windows"

	"kube-proxy/plane"
)

// Open returns the HNS of this machine, if its library is installed.
func Open() (HNS, error) {
	if err := windows.NewLazySystemDLL("vmcompute.dll").Load(); err != nil {
		return nil, fmt.Errorf("hns: this machine has no Host Networking Service, a part of the Windows feature "+
			"Containers: %w: %w", err, plane.ErrUnsupported)
	}
	return &adapter{calls: newLimit(maxHanging)}, nil
}

// adapter is the HNS of Windows. It makes no decisions, since only Windows can test it.
type adapter struct{ calls *limit }

// Features implements HNS, as do all methods. hcn would cache the answer forever, and errors too.
func (a *adapter) Features(ctx context.Context) (Features, error) {
	return ask(ctx, a, "get version", "", func() (f Features, err error) {
		g, err := hcn.GetGlobals()
		if err != nil {
			return f, err
		}
		has := func(ranges hcn.VersionRanges) bool {
			return slices.ContainsFunc(ranges, func(r hcn.VersionRange) bool {
				return between(g.Version.Major, g.Version.Minor, r.MinVersion.Major, r.MinVersion.Minor,
					r.MaxVersion.Major, r.MaxVersion.Minor)
			})
		}
		return Features{
			DSR: has(hcn.DSRVersion), SessionAffinity: has(hcn.SessionAffinityVersion),
			IPv6DualStack:      has(hcn.IPv6DualStackVersion),
			ModifyLoadbalancer: has(hcn.ModifyLoadbalancerVersion), RemoteSubnet: has(hcn.RemoteSubnetVersion),
			V2:    has(hcn.V2ApiSupport),
			Build: build(), Version: fmt.Sprintf("%d.%d", g.Version.Major, g.Version.Minor),
		}, nil
	})
}

// Networks adds fields from schema version 1 that version 2 lacks.
func (a *adapter) Networks(ctx context.Context, name string) ([]Network, error) {
	return ask(ctx, a, "list networks", name, func() ([]Network, error) {
		found, err := hcn.ListNetworksQuery(query(map[string]string{"Name": name}))
		if err != nil {
			return nil, err
		}
		found = slices.DeleteFunc(found, func(n hcn.HostComputeNetwork) bool { return n.Name != name })
		all, err := convert[[]Network](found)
		if err != nil || len(all) == 0 {
			return all, err
		}
		v1, err := hnslib.HNSListNetworkRequest("GET", "", "")
		if err != nil {
			return nil, err
		}
		for i := range all {
			j := slices.IndexFunc(v1, func(n hnslib.HNSNetwork) bool { return strings.EqualFold(n.Id, all[i].ID) })
			if j < 0 {
				continue
			}
			all[i].ManagementIP = v1[j].ManagementIP
			all[i].HostMAC, err = hostMAC(v1[j].ManagementIP)
			if err != nil {
				return nil, err
			}
		}
		return all, nil
	})
}

func (a *adapter) Endpoints(ctx context.Context, network string) ([]Endpoint, error) {
	return listOf[Endpoint](ctx, a, "list endpoints of network", network, func() ([]hcn.HostComputeEndpoint, error) {
		return hcn.ListEndpointsOfNetwork(network)
	})
}

// EndpointsAt filters by the field names of schema version 1, as hcn does.
func (a *adapter) EndpointsAt(ctx context.Context, network, address string) ([]Endpoint, error) {
	return listOf[Endpoint](ctx, a, "find endpoint", address, func() ([]hcn.HostComputeEndpoint, error) {
		field := "IPAddress"
		if addr, err := netip.ParseAddr(address); err == nil && addr.Is6() {
			field = "IPv6Address"
		}
		return hcn.ListEndpointsQuery(query(map[string]string{"VirtualNetwork": network, field: address}))
	})
}

func (a *adapter) CreateEndpoint(ctx context.Context, e Endpoint) (Endpoint, error) {
	return made(ctx, a, "create endpoint", e.Name, e, (*hcn.HostComputeEndpoint).Create)
}

func (a *adapter) DeleteEndpoint(ctx context.Context, id string) error {
	_, err := ask(ctx, a, "delete endpoint", id, func() (struct{}, error) {
		return struct{}{}, (&hcn.HostComputeEndpoint{Id: id}).Delete()
	})
	return err
}

func (a *adapter) LoadBalancers(ctx context.Context) ([]LoadBalancer, error) {
	return listOf[LoadBalancer](ctx, a, "list load balancers", "", hcn.ListLoadBalancers)
}

func (a *adapter) CreateLoadBalancer(ctx context.Context, l LoadBalancer) (LoadBalancer, error) {
	return made(ctx, a, "create load balancer", l.about(), l, (*hcn.HostComputeLoadBalancer).Create)
}

func (a *adapter) ModifyLoadBalancer(ctx context.Context, l LoadBalancer) (LoadBalancer, error) {
	return made(ctx, a, "modify load balancer", l.ID, l,
		func(request *hcn.HostComputeLoadBalancer) (*hcn.HostComputeLoadBalancer, error) {
			return request.Update(l.ID)
		})
}

func (a *adapter) DeleteLoadBalancer(ctx context.Context, id string) error {
	_, err := ask(ctx, a, "delete load balancer", id, func() (struct{}, error) {
		return struct{}{}, (&hcn.HostComputeLoadBalancer{Id: id}).Delete()
	})
	return err
}

// ask makes one call and classifies its error.
func ask[T any](ctx context.Context, a *adapter, call, object string, f func() (T, error)) (T, error) {
	t, err := bounded(ctx, a.calls, callTimeout, f)
	return t, became(call, object, err)
}

// made makes a call with a request of hcn's type H, and returns the created object.
func made[T, H any](ctx context.Context, a *adapter, call, object string, request T, f func(*H) (*H, error)) (T,
	error) {
	return ask(ctx, a, call, object, func() (T, error) {
		asked, err := convert[H](request)
		if err != nil {
			return request, err
		}
		got, err := f(&asked)
		if err != nil {
			return request, err
		}
		return convert[T](got)
	})
}

// listOf lists objects of hcn's type H.
func listOf[T, H any](ctx context.Context, a *adapter, call, object string, f func() ([]H, error)) ([]T, error) {
	all, err := listed(ctx, a.calls, call, func() ([]T, error) {
		found, err := f()
		if err != nil {
			return nil, err
		}
		return convert[[]T](found)
	})
	return all, became(call, object, err)
}

// became classifies an error; nil for none.
func became(call, object string, err error) error {
	var missing *windows.DLLError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &missing):
		return &Error{Call: call, Object: object, Kind: ErrUnsupported, Text: err.Error()}
	case hcn.IsNotFoundError(err):
		return &Error{Call: call, Object: object, Kind: ErrNotFound, Text: err.Error()}
	}
	return refusal(call, object, err)
}

// build returns the build of Windows, "10.0.20348".
func build() string {
	v := windows.RtlGetVersion()
	return fmt.Sprintf("%d.%d.%d", v.MajorVersion, v.MinorVersion, v.BuildNumber)
}

func query(filter map[string]string) hcn.HostComputeQuery {
	text, err := json.Marshal(filter)
	if err != nil {
		panic(err) // strings
	}
	return hcn.HostComputeQuery{SchemaVersion: hcn.SchemaVersion{Major: 2}, Filter: string(text)}
}

// convert converts by JSON: hcn's types have the same field names.
func convert[T any](from any) (to T, err error) {
	text, err := json.Marshal(from)
	if err == nil {
		err = json.Unmarshal(text, &to)
	}
	if err != nil {
		return to, fmt.Errorf("converting types of hcn: %w", err)
	}
	return to, nil
}
