package userspace

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/plane/internal/relay"
)

// With NoNodeEndpoints an endpoint at an address of the node gets no connection, whatever its slice
// says: no backend here is labelled local (TN-52).
func TestNodeEndpointsTN52(t *testing.T) {
	netlab.EnterForTest(t)
	for _, args := range [][]string{{"link", "set", "lo", "up"}, {"addr", "add", "192.0.2.1/32", "dev", "lo"}} {
		if _, err := run("ip", args...); err != nil {
			t.Fatal(err)
		}
	}
	own, shut, err := openOwn()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := shut(); err != nil {
			t.Error(err)
		}
	}()
	pick := func(cfg Config, backends ...string) (string, error) {
		cfg.Family, cfg.Redirector = lb.IPv4, &fakeRedirector{machine: newMachine(), f: lb.IPv4}
		p, err := newPlane(cfg, &fakeRelay{}, own)
		if err != nil {
			return "", err
		}
		var all []lb.Backend
		for _, b := range backends {
			all = append(all, lb.Backend{Addr: netip.MustParseAddrPort(b)})
		}
		set := &lb.BackendSet{ID: lb.SetID{Service: "evil/x:p", Proto: lb.TCP, Scope: lb.Cluster},
			Backends: lb.BackendsOf(all...)}
		to := p.balance.Set(set, 0).Pick(relay.Client{Addr: netip.MustParseAddrPort("10.1.1.11:999")}, nil)
		if !to.IsValid() {
			return "", errRefused
		}
		return to.String(), nil
	}
	const node, other = "192.0.2.1:10250", "198.51.100.7:8080"
	for _, c := range []struct {
		cfg      Config
		backends []string
		want     string
		err      error
	}{
		{Config{}, []string{node}, node, nil},
		{Config{NoNodeEndpoints: true}, []string{node}, "", errRefused},
		{Config{NoNodeEndpoints: true}, []string{node, other}, other, nil},
		{Config{NoNodeEndpoints: true}, []string{"127.8.8.8:80"}, "", errRefused},
	} {
		for range 4 {
			if got, err := pick(c.cfg, c.backends...); got != c.want || !errors.Is(err, c.err) {
				t.Errorf("%s: %s, %v; want %s", fmt.Sprint(c.cfg.NoNodeEndpoints, c.backends), got, err, c.want)
			}
		}
	}
}
