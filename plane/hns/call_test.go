package hns

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Features belong to ranges of versions, both ends included (hcn's VersionRange).
func TestBetween(t *testing.T) {
	for _, c := range []struct {
		major, minor int
		want         bool
	}{{9, 2, false}, {9, 3, true}, {9, 99, true}, {10, 0, true}, {10, 2, true}, {10, 3, false}, {11, 0, false},
		{8, 9, false}} {
		if got := between(c.major, c.minor, 9, 3, 10, 2); got != c.want {
			t.Errorf("%d.%d between 9.3 and 10.2: %t", c.major, c.minor, got)
		}
	}
}

// An endpoint has its addresses in whatever format HNS writes them.
func TestEndpointHas(t *testing.T) {
	e := Endpoint{IPConfigurations: []IPConfig{{IPAddress: "10.1.2.14"}, {IPAddress: "FD00:10:1:2:0:0:0:14"},
		{IPAddress: "none"}}}
	for address, want := range map[string]bool{"10.1.2.14": true, "fd00:10:1:2::14": true, "10.1.2.15": false,
		"none": false} {
		a, _ := netip.ParseAddr(address)
		if got := e.Has(a); got != want {
			t.Errorf("%s: %t", address, got)
		}
	}
}

// hcn lists ids and then reads each object: one that is deleted meanwhile fails the list, which is
// repeated (WN-28).
func TestListWhileObjectsGo(t *testing.T) {
	gone := errors.New("hcnOpenEndpoint failed in Win32: The specified endpoint was not found. (0x803b0002)")
	for _, c := range []struct {
		failures int
		err      error
		want     bool
	}{{0, gone, true}, {2, gone, true}, {3, gone, false}, {1, errors.New("(0x5)"), false}} {
		calls := 0
		all, err := listed(t.Context(), newLimit(1), "list endpoints", func() ([]int, error) {
			calls++
			if calls <= c.failures {
				return nil, c.err
			}
			return []int{1}, nil
		})
		if (err == nil && len(all) == 1) != c.want {
			t.Errorf("%d failures with %v: %v, %v", c.failures, c.err, all, err)
		}
	}
}

// Errors name a load balancer by its address and port; one with a foreign shape by its ID.
func TestAbout(t *testing.T) {
	l := LoadBalancer{ID: "A0", FrontendVIPs: []string{"10.96.0.10"},
		PortMappings: []PortMapping{{Protocol: 6, InternalPort: 8080, ExternalPort: 80}}}
	if got := l.about(); got != "10.96.0.10:80/tcp" {
		t.Errorf("got %q", got)
	}
	l.PortMappings = nil
	if l.about() != "A0" {
		t.Errorf("got %q", l.about())
	}
}

// The host's hardware address is that of the interface with the ManagementIP, as HNS writes it.
func TestHostMAC(t *testing.T) {
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range addrs {
			p := netip.MustParsePrefix(a.String())
			if p.Addr().IsLinkLocalUnicast() {
				continue // two interfaces may have one
			}
			got, err := hostMAC(p.Addr().String())
			seen++
			if want := strings.ToUpper(strings.ReplaceAll(i.HardwareAddr.String(), ":", "-")); err != nil ||
				got != want {
				t.Errorf("%s of %s: %q, %v, want %q", p.Addr(), i.Name, got, err, want)
			}
		}
	}
	if got, err := hostMAC(""); got != "" || err != nil || seen == 0 {
		t.Errorf("without a ManagementIP: %q, %v; %d addresses", got, err, seen)
	}
	if _, err := hostMAC("192.0.2.77"); err == nil || !strings.Contains(err.Error(), "192.0.2.77") {
		t.Errorf("an address that no interface has: %v", err)
	}
}

// A call without an answer times out after a minute or with its context. Few may hang at a time;
// others proceed when these end or are abandoned (WN-18).
func TestCallsThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, hang := newLimit(maxHanging), make(chan struct{})
		call := func(ctx context.Context) error {
			_, err := bounded(ctx, l, callTimeout, func() (int, error) { <-hang; return 1, nil })
			return err
		}
		answered := func() error {
			_, err := bounded(t.Context(), l, callTimeout, func() (int, error) { return 7, nil })
			return err
		}
		for range maxHanging {
			if err := call(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a call that hangs: %v", err)
			}
		}
		if err := answered(); err == nil {
			t.Error("one more beside those that hang is made")
		}
		time.Sleep(abandoned)
		if err := answered(); err != nil {
			t.Errorf("after abandoned calls lost their places: %v", err)
		}
		close(hang)
		synctest.Wait()
		if err := answered(); err != nil {
			t.Errorf("after all ended: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		hang = make(chan struct{})
		if err := call(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		close(hang)
		time.Sleep(48 * time.Hour) // abandoned calls are forgotten
	})
}

// An HNS that hangs for days holds one thread more for each doubling of the wait, not for each
// attempt (WN-18).
func TestThreadsThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, hang, made := newLimit(maxHanging), make(chan struct{}), 0
		for start := time.Now(); time.Since(start) < 10*24*time.Hour; {
			_, _ = bounded(t.Context(), l, callTimeout, func() (int, error) { made++; <-hang; return 1, nil })
		}
		if made < 2*maxHanging || made > 20*maxHanging {
			t.Errorf("%d threads hang after ten days", made)
		}
		close(hang)
		time.Sleep(48 * time.Hour)
	})
}

// The timeout of a list follows its objects, whatever a write may take; after a timeout it grows
// (WN-18).
func TestListsTakeTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimit(maxHanging)
		list := func(objects int, took time.Duration) error {
			_, err := listed(t.Context(), l, "list", func() ([]int, error) {
				time.Sleep(took)
				return make([]int, objects), nil
			})
			return err
		}
		for _, c := range []struct {
			objects int
			took    time.Duration
			want    error
		}{
			{7000, 22 * time.Minute, nil}, {7000, 110 * time.Minute, nil}, {10, time.Second, nil},
			{10, 2 * time.Minute, context.DeadlineExceeded}, {10, 2 * time.Minute, nil},
		} {
			if err := list(c.objects, c.took); !errors.Is(err, c.want) {
				t.Errorf("%d objects in %s: %v, want %v", c.objects, c.took, err, c.want)
			}
		}
		_, err := bounded(t.Context(), l, callTimeout, func() (int, error) {
			time.Sleep(2 * time.Minute)
			return 0, nil
		})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a write that takes two minutes: %v", err)
		}
		time.Sleep(48 * time.Hour)
	})
}
