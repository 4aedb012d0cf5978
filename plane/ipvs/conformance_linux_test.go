package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"testing"

	"kube-proxy/internal/kernel"
	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/internal/unanswered"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
	"kube-proxy/trace"
)

// whole is a plane with its connections to the kernel.
type whole struct {
	*Plane
	*unanswered.Watch
	opened closers
}

func (w *whole) Close() error { return w.opened.Close() }

// newWhole creates a plane in the network namespace of the calling thread, with the sysctls of the
// mode (DP-30).
func newWhole(b xtables.Backend, f lb.Family, exclude ...netip.Prefix) (_ *whole, err error) {
	for _, s := range sysctls(mode.Settings{}) {
		if s.Before != [2]int{} { // only for kernels older than the tests'
			continue
		}
		if _, err := kernel.SetSysctl(s.Name, s.Value); err != nil && !s.Optional {
			return nil, err
		}
	}
	w := &whole{Watch: unanswered.New(unanswered.Config{Family: f, LateTranslation: true})}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("a plane by %s: %w", b, err), w.Close())
		}
	}()
	servers, err := ipvs.Open()
	if err != nil {
		return nil, err
	}
	w.opened = append(w.opened, servers)
	cfg := Config{Family: f, Masquerade: 1 << 14, ExcludeCIDRs: exclude, IPVS: servers}
	held, err := cfg.open(b, &w.opened)
	if err != nil {
		return nil, err
	}
	cfg.View = func() (*View, error) { return openView(f, ipvs.Open, held) }
	w.Plane = New(cfg)
	w.opened = append(w.opened, w.Plane)
	return w, nil
}

// wholeForTest is newWhole; the plane closes at the end of the test.
func wholeForTest(t testing.TB, b xtables.Backend, f lb.Family, exclude ...netip.Prefix) *whole {
	t.Helper()
	w, err := newWhole(b, f, exclude...)
	must(t, err)
	t.Cleanup(func() { w.Close() })
	return w
}

// open opens the kernel's ipsets, addresses and rules.
func (cfg *Config) open(b xtables.Backend, opened *closers) (heldChains, error) {
	sets, err := ipset.Open()
	if err != nil {
		return nil, err
	}
	*opened = append(*opened, sets)
	device, err := openDevice(cfg.Family)
	if err != nil {
		return nil, err
	}
	*opened = append(*opened, device)
	chains, err := newChains(nodeFacts{family: cfg.Family, masq: cfg.Masquerade, excluded: cfg.ExcludeCIDRs}, b, nil)
	if err != nil {
		return nil, err
	}
	*opened = append(*opened, chains)
	cfg.Sets, cfg.Device, cfg.Chains = sets, device, chains
	return chains.Held, nil
}

var loadOnce = sync.OnceValue(kernel.LoadIPVS)

// inVM skips the test if the kernel has no IPVS.
func inVM(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	if err := loadOnce(); err != nil || !kernel.HasIPVS() {
		t.Skip("this kernel has no IPVS: proven in VMs, by test/vm/suites")
	}
}

// differs names the intended differences of this mode.
var differs = map[string]string{
	"SV-66": "a ping of a cluster IP is answered by the node, which has the address",
}

// differsIn names the scenarios that show them.
var differsIn = map[string]string{
	"session-affinity-timeout": "SV-18: the kernel keeps a client at its backend as long as it keeps one of its " +
		"connections, which is two minutes after the last one ended, then for the timeout",
}

// traced returns the mode's description for trace.
func traced(f lb.Family) trace.Mode { return Mode().Trace(mode.Settings{Family: f}) }

func conformance(b xtables.Backend) planetest.Config {
	return planetest.Config{Mode: "ipvs", Variant: b != xtables.NFT, Differs: differs, DiffersIn: differsIn,
		Holds: true, AffinityByAddress: true, Trace: traced, Core: core, Forget: forgetServers,
		New: func(f lb.Family) (planetest.Plane, error) {
			w, err := newWhole(b, f)
			switch {
			case err != nil:
				return nil, err
			case b == xtables.Legacy:
				return untraced{w}, nil
			}
			return w, nil
		}}
}

// forgetServers deletes all virtual servers, because those with connections from the scenario
// before would stay, with their addresses.
func forgetServers() error {
	conn, err := ipvs.Open()
	if err != nil {
		return err
	}
	defer conn.Close()
	return errors.Join(deleteServers(conn, lb.IPv4), deleteServers(conn, lb.IPv6))
}

// untraced is a plane that does not trace: with the legacy back end each packet would run
// iptables-save, half a second in emulation. TestLookAtKernel traces that.
type untraced struct{ *whole }

func (untraced) HidesTracer() {}

var backends = []xtables.Backend{xtables.NFT, xtables.Legacy}

// TestConformance sends the packets of every scenario through the kernel, with both variants of
// iptables.
func TestConformance(t *testing.T) {
	kerneltest.Every(t)
	inVM(t)
	for _, b := range backends {
		t.Run(string(b), func(t *testing.T) { planetest.Run(t, conformance(b)) })
	}
}
