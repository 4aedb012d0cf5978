package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/config/option"
	"kube-proxy/internal/netlab"
	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane"
	"kube-proxy/test/ipvsfake"
	"kube-proxy/test/kerneltest"
)

// inNamespace runs the rest of a test in a new network namespace.
func inNamespace(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	netlab.EnterForTest(t)
}

// of runs the rest of a test with another kind of device.
func of(t testing.TB, kind string) {
	t.Helper()
	was := DeviceType
	DeviceType = kind
	t.Cleanup(func() { DeviceType = was })
}

// G7: hasDevice probes for a kind of device without creating one.
func TestHasDevice(t *testing.T) {
	inNamespace(t)
	before := mustRun(t, "", "ip", "-o", "link")
	of(t, "bridge")
	if err := hasDevice(mode.Settings{}); err != nil {
		t.Errorf("a kind that all kernels have: %v", err)
	}
	of(t, "nonesuch")
	if err := hasDevice(mode.Settings{}); !errors.Is(err, plane.ErrUnsupported) ||
		!strings.Contains(err.Error(), "no devices of type nonesuch (the module nonesuch)") {
		t.Errorf("a kind that no kernel has: %v", err)
	}
	if after := mustRun(t, "", "ip", "-o", "link"); after != before {
		t.Errorf("asking changed the devices from\n%s\nto\n%s", before, after)
	}
	mustRun(t, "", "ip", "link", "add", Device, "type", "bridge")
	of(t, "veth")
	want := `there is a device kube-ipvs0 of type "bridge", and it must be of type veth: rename it, or delete it`
	if err := hasDevice(mode.Settings{}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("another's device: %v", err)
	}
	of(t, "bridge")
	if err := hasDevice(mode.Settings{}); err != nil {
		t.Errorf("one that is there: %v", err)
	}
}

// G7: hasSets probes for ipsets without creating one.
func TestHasSets(t *testing.T) {
	inNamespace(t)
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		if err := hasSets(mode.Settings{Family: f}); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
	if sets := mustRun(t, "", "ipset", "list", "-n"); sets != "" {
		t.Errorf("asking made the sets\n%s", sets)
	}
}

// Without CAP_NET_ADMIN each probe says so.
func TestAbleWithoutCapability(t *testing.T) {
	inNamespace(t)
	done := make(chan map[string]error)
	go func() { // the thread ends with it
		netlab.Isolated(0, func() error {
			got := map[string]error{}
			none := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			if err := unix.Capset(none, &make([]unix.CapUserData, 2)[0]); err != nil {
				t.Error(err)
			}
			got["devices"] = hasDevice(mode.Settings{})
			got["ipsets"] = hasSets(mode.Settings{Family: lb.IPv4})
			done <- got
			return nil
		})
	}()
	for of, err := range <-done {
		if err == nil || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
			t.Errorf("%s: %v", of, err)
		}
	}
}

// listed returns the virtual servers of the namespace.
func listed(t *testing.T, c *ipvs.Conn) (all []string) {
	t.Helper()
	err := c.Services(t.Context(), func(s ipvs.ServiceState) error {
		all = append(all, fmt.Sprintf("%s %s %#x", s.ServiceID, s.Scheduler, s.Flags))
		return nil
	})
	must(t, err)
	slices.Sort(all)
	return all
}

// needsIPVS skips a test on a kernel without IPVS; make test-kernels runs it in a VM that has it.
func needsIPVS(t *testing.T) *ipvs.Conn {
	t.Helper()
	inNamespace(t)
	c, err := ipvs.Open()
	if errors.Is(err, ipvs.ErrNoIPVS) {
		t.Skip(err)
	}
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// CF-26, DP-35: a probe of the kernel's schedulers uses a virtual server that is removed at once,
// and leaves others of the namespace alone. The leftover of a killed proxy does no harm.
func TestIPVSSchedulers(t *testing.T) {
	kerneltest.Every(t)
	c := needsIPVS(t)
	other := ipvs.Service{ServiceID: ipvs.ByAddr(netip.MustParseAddrPort("198.51.100.0:20001"), unix.IPPROTO_TCP),
		Scheduler: "rr", Netmask: ipvs.IPv4.WholeAddress()}
	must(t, c.Do(t.Context(), []ipvs.Op{{Verb: ipvs.NewService, Service: other}}, nil))
	before := listed(t, c)
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		for _, name := range schedulers() {
			t.Logf("trying %s for %s", name, f)
			// Debian has it since 6.12
			built := name != "twos" || exec.Command("modprobe", "-n", "-q", "ip_vs_twos").Run() == nil
			if there, err := hasScheduler(t.Context(), c, f, name); err != nil || there != built {
				t.Errorf("%s: scheduler %s is there: %t, %v", f, name, there, err)
			}
		}
		left := ipvs.Service{ServiceID: probeID(f), Scheduler: "rr"}
		left.Netmask = left.Family.WholeAddress()
		must(t, c.Do(t.Context(), []ipvs.Op{{Verb: ipvs.NewService, Service: left}}, nil))
		err := checkScheduler(t.Context(), c, f, "nonesuch")
		if !errors.Is(err, mode.ErrAsked) || !strings.Contains(err.Error(), `--ipvs-scheduler (ipvs.scheduler): `) ||
			!strings.Contains(err.Error(), `this kernel has no scheduler "nonesuch" for IPVS (the module `+
				`ip_vs_nonesuch); it has rr, wrr, lc, wlc, lblc,`) {
			t.Errorf("%s: a scheduler that no kernel has: %v", f, err)
		}
	}
	if after := listed(t, c); !slices.Equal(after, before) {
		t.Errorf("trying changed the virtual servers from %q to %q", before, after)
	}
}

// A scheduler whose module is not loaded is probed while namespaces are created and removed, as
// happens on every node. A program that leaves loading lblc to the kernel blocks both for ever.
func TestIPVSSchedulerBesideNamespaces(t *testing.T) {
	kerneltest.Every(t)
	c := needsIPVS(t)
	end := make(chan struct{})
	var others sync.WaitGroup
	for range 2 {
		others.Go(func() {
			for {
				select {
				case <-end:
					return
				default:
					_ = netlab.Isolated(0, func() error { return nil })
				}
			}
		})
	}
	answered := make(chan struct{})
	go func() {
		select {
		case <-answered:
		case <-time.After(time.Minute):
			panic("the kernel does not answer any more")
		}
	}()
	for range 2 {
		for _, name := range []string{"lblc", "lblcr"} {
			_ = exec.Command("rmmod", "ip_vs_"+name).Run() // a built-in module needs no test
			if there, err := hasScheduler(t.Context(), c, lb.IPv4, name); err != nil || !there {
				t.Errorf("%s: %t, %v", name, there, err)
			}
		}
	}
	close(answered)
	close(end)
	others.Wait()
}

// A missing scheduler is an error if the configuration names it, and otherwise a reason to use
// another mode.
func TestCheckScheduler(t *testing.T) {
	for _, c := range []struct {
		asked, has string
		asks, ok   bool
		says       string
	}{
		{"", "rr", false, true, ""},
		{"mh", "rr mh", false, true, ""},
		{"mh", "rr sh", true, false, `no scheduler "mh" for IPVS (the module ip_vs_mh); it has rr, sh`},
		{"", "wrr sh", false, false, `no scheduler "rr" for IPVS (the module ip_vs_rr); it has wrr, sh: ` +
			`choose one with --ipvs-scheduler`},
		{"rr", "wrr", true, false, `no scheduler "rr"`},
		{"mh", "", false, false, `no scheduler "mh" for IPVS (the module ip_vs_mh), and no other`},
	} {
		for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
			k := ipvsfake.New(ipvsfake.Config{Schedulers: strings.Fields(c.has)})
			conn, left := connect(t, k), ipvs.Service{ServiceID: probeID(f), Scheduler: "none"}
			left.Netmask = left.Family.WholeAddress()
			must(t, conn.Do(t.Context(), []ipvs.Op{{Verb: ipvs.NewService, Service: left}}, nil))
			err := checkScheduler(t.Context(), conn, f, c.asked)
			if (err == nil) != c.ok || errors.Is(err, mode.ErrAsked) != c.asks || err != nil &&
				!strings.Contains(err.Error(), c.says) {
				t.Errorf("%q of %q: %v", c.asked, c.has, err)
			}
			if all := k.State(); len(all) > 0 {
				t.Errorf("%q of %q: left %v", c.asked, c.has, all)
			}
		}
	}
	for errno, says := range map[unix.Errno]string{unix.EAFNOSUPPORT: "has no IPv6 (CONFIG_IP_VS_IPV6)",
		unix.EPERM: "not permitted"} {
		k := ipvsfake.New(ipvsfake.Config{})
		conn := connect(t, k)
		k.Before = func(ipvsfake.Request) error { return errno }
		if err := checkScheduler(t.Context(), conn, lb.IPv6, "rr"); err == nil ||
			errors.Is(err, mode.ErrAsked) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: %v", errno, err)
		}
	}
}

// idle returns options with timeouts.
func idle(tcp, tcpFin, udp time.Duration) *Options {
	o := &Options{}
	o.IPVS.TCPTimeout.Duration, o.IPVS.TCPFinTimeout.Duration, o.IPVS.UDPTimeout.Duration = tcp, tcpFin, udp
	return o
}

// CF-29: the kernel counts whole seconds, and 0 keeps the present value.
func TestTimeouts(t *testing.T) {
	got := timeouts(idle(time.Millisecond, 90*time.Second, 0))
	if want := (ipvs.Timeouts{TCP: time.Second, TCPFin: 90 * time.Second}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	conn := connect(t, ipvsfake.New(ipvsfake.Config{}))
	before, err := conn.Timeouts(t.Context())
	must(t, err)
	for _, c := range []struct {
		ask  *Options
		want ipvs.Timeouts
	}{
		{idle(0, 0, 0), before},
		{idle(0, 0, 1500*time.Millisecond), ipvs.Timeouts{TCP: before.TCP, TCPFin: before.TCPFin,
			UDP: 2 * time.Second}},
	} {
		if err := setTimeouts(t.Context(), conn, mode.Settings{Blocks: option.Blocks{c.ask}}); err != nil {
			t.Error(err)
		}
		if now, err := conn.Timeouts(t.Context()); now != c.want || err != nil {
			t.Errorf("%+v: %+v, %v; want %+v", c.ask, now, err, c.want)
		}
	}
}
