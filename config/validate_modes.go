package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"kube-proxy/mode"
)

// tables fills what nftables, iptables and ebpf have each for itself. iptables' is checked in every mode,
// the others in their own (CF-20 to CF-24, CF-30).
func (o *Options) tables(c *Config) {
	i, n, e := &o.file.IPTables, &o.file.NFTables, &o.ebpf
	c.IPTables = Tables{int(*i.MasqueradeBit), i.MasqueradeAll, *i.LocalhostNodePorts, i.SyncPeriod.Duration, exact(i.MinSyncPeriod.Duration)}
	c.NFTables = Tables{int(*n.MasqueradeBit), n.MasqueradeAll, o.nftLocalhost, n.SyncPeriod.Duration, exact(n.MinSyncPeriod.Duration)}
	c.EBPF = Tables{int(e.masqueradeBit), e.masqueradeAll, e.localhostNodePorts, e.syncPeriod.Duration, e.minSyncPeriod.Duration}
	i.MinSyncPeriod.Duration = sayable(i.MinSyncPeriod.Duration)

	o.within("iptables.masqueradeBit", *i.MasqueradeBit, 0, 31)
	o.positive("iptables.syncPeriod", c.IPTables.SyncPeriod)
	o.notLonger("iptables.minSyncPeriod", c.IPTables.MinSyncPeriod, c.IPTables.SyncPeriod)
	o.onlyIn(c, "nftables", func() {
		o.within("nftables.masqueradeBit", *n.MasqueradeBit, 0, 31)
		if c.NFTables.SyncPeriod < 0 {
			o.wrong("nftables.syncPeriod", c.NFTables.SyncPeriod.String(), "want more than 0, or 0 for the default")
		}
		o.notLonger("nftables.minSyncPeriod", c.NFTables.MinSyncPeriod, c.NFTables.SyncPeriod)
	})
	o.onlyIn(c, "ebpf", func() {
		if c.EBPF.MasqueradeBit < 0 || c.EBPF.MasqueradeBit > 31 {
			o.problem("--ebpf-masquerade-bit", fmt.Sprint(c.EBPF.MasqueradeBit), "want 0 to 31")
		}
		if c.EBPF.SyncPeriod < 0 {
			o.problem("--ebpf-sync-period", c.EBPF.SyncPeriod.String(), "want more than 0, or 0 for the default")
		}
		if least := c.EBPF.MinSyncPeriod; least < 0 || c.EBPF.SyncPeriod > 0 && least > c.EBPF.SyncPeriod {
			o.problem("--ebpf-min-sync-period", least.String(), "want 0 or more, and at most the sync period")
		}
	})
}

// noPeriod is how a file says 0 where 0 means "not given" (FL-08): the shortest time that can be written.
const noPeriod = time.Nanosecond

func exact(d time.Duration) time.Duration {
	if d == noPeriod {
		return 0
	}
	return d
}

func sayable(d time.Duration) time.Duration {
	if d == 0 {
		return noPeriod
	}
	return d
}

// ipvs is CF-25 to CF-29: checked for mode ipvs only, as other modes do not read it.
func (o *Options) ipvs(c *Config) IPVS {
	f := &o.file.IPVS
	v := IPVS{
		SyncPeriod: f.SyncPeriod.Duration, MinSyncPeriod: f.MinSyncPeriod.Duration, Scheduler: f.Scheduler, StrictARP: f.StrictARP,
		TCPTimeout: f.TCPTimeout.Duration, TCPFinTimeout: f.TCPFinTimeout.Duration, UDPTimeout: f.UDPTimeout.Duration,
	}
	told := o.onlyIn(c, "ipvs", func() {
		v.ExcludeCIDRs = o.excluded(f.ExcludeCIDRs)
		o.positive("ipvs.syncPeriod", v.SyncPeriod)
		o.notLonger("ipvs.minSyncPeriod", v.MinSyncPeriod, v.SyncPeriod)
		o.ipvsTimeout("ipvs.tcpTimeout", v.TCPTimeout)
		o.ipvsTimeout("ipvs.tcpFinTimeout", v.TCPFinTimeout)
		o.ipvsTimeout("ipvs.udpTimeout", v.UDPTimeout)
		// Whether this machine's kernel has it shows when the mode starts (CF-26).
		if known := mode.Schedulers(); v.Scheduler != "" && !slices.Contains(known, v.Scheduler) {
			o.wrong("ipvs.scheduler", v.Scheduler, "want "+strings.Join(known, ", "))
		}
	})
	// Other modes read only what their clean-up is to leave alone. What that is must be known, and --cleanup fails
	// rather than to remove what is not ours.
	if !told && len(v.ExcludeCIDRs) < len(f.ExcludeCIDRs) {
		if o.Cleanup {
			o.excluded(f.ExcludeCIDRs)
		} else {
			o.warn("%s has a value that is not a CIDR: nothing that mode ipvs left is removed", o.where("ipvs.excludeCIDRs"))
			v.ExcludeCIDRs = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
		}
	}
	return v
}

// ipvsTimeoutMost is the longest timeout that IPVS takes on all kernels: 2^31-1 ticks, of which some make a thousand a second.
const ipvsTimeoutMost = (1<<31 - 1) / 1000 * time.Second

// ipvsTimeout is CF-29.
func (o *Options) ipvsTimeout(field string, d time.Duration) {
	o.notNegative(field, d)
	if d > ipvsTimeoutMost {
		o.wrong(field, d.String(), "want at most "+ipvsTimeoutMost.String()+", the longest that the kernel takes")
	}
}

// excluded is CF-27. It leaves out what is no CIDR.
func (o *Options) excluded(cidrs []string) []netip.Prefix {
	var out []netip.Prefix
	for i, s := range cidrs {
		p, err := parsePrefix(s)
		if err != nil {
			o.wrong(fmt.Sprintf("ipvs.excludeCIDRs[%d]", i), s, "want a CIDR such as 192.0.2.0/24")
			continue
		}
		out = append(out, p)
	}
	return out
}

// userspace is CF-44 and CF-45, and what is ours.
func (o *Options) userspace() Userspace {
	own := o.file.Userspace
	u := Userspace{UDPIdleTimeout: o.file.UDPIdleTimeout.Duration, TerminationGracePeriod: own.TerminationGracePeriod.Duration,
		DrainTimeout: own.DrainTimeout.Duration, NodeEndpoints: *own.NodeEndpoints, Fallback: *o.file.UserspaceFallback}
	o.positive("udpIdleTimeout", u.UDPIdleTimeout)
	o.notNegative("userspace.terminationGracePeriod", u.TerminationGracePeriod)
	o.positive("userspace.drainTimeout", u.DrainTimeout)
	first, last, ok := portRange(o.file.PortRange)
	if !ok {
		o.wrong("portRange", o.file.PortRange, "want first-last, first+more or one port, each 0 to 65535; nothing, 0 or 0-0 for any")
	}
	u.FirstPort, u.LastPort = first, last
	return u
}

// portRange reads "a-b", "a+more", "a" and "" (flag --proxy-port-range).
func portRange(s string) (first, last uint16, ok bool) {
	s = strings.TrimSpace(s)
	if s == "" {
		return 0, 0, true
	}
	at := strings.IndexAny(s, "-+")
	low := s
	if at >= 0 {
		low = s[:at]
	}
	a, err := strconv.ParseUint(low, 10, 16)
	if err != nil {
		return 0, 0, false
	}
	b := a
	if at >= 0 {
		if b, err = strconv.ParseUint(s[at+1:], 10, 16); err != nil {
			return 0, 0, false
		}
		if s[at] == '+' {
			b = min(a+b, 65535)
		}
	}
	return uint16(a), uint16(b), a <= b && (a > 0 || b == 0)
}

// windows is CF-31 and CF-32.
func (o *Options) windows() Windows {
	f := &o.file.Winkernel
	w := Windows{
		Service: o.file.WindowsRunAsService, NetworkName: f.NetworkName, EnableDSR: f.EnableDSR,
		RootHNSEndpointName: f.RootHnsEndpointName, ForwardHealthCheckVIP: f.ForwardHealthCheckVip,
		IgnoreSourceRanges: o.file.WindowsIgnoreSourceRanges,
	}
	if f.SourceVip != "" {
		a, err := parseAddr(f.SourceVip)
		if err != nil {
			o.wrong("winkernel.sourceVip", f.SourceVip, "want an IP address")
		}
		w.SourceVIP = a
	}
	return w
}

// conntrack is CF-39 to CF-42.
func (o *Options) conntrack() Conntrack {
	f := &o.file.Conntrack
	c := Conntrack{
		MaxPerCore: int(*f.MaxPerCore), Min: int(*f.Min), TCPBeLiberal: f.TCPBeLiberal,
		TCPEstablished: f.TCPEstablishedTimeout.Duration, TCPCloseWait: f.TCPCloseWaitTimeout.Duration,
		UDP: f.UDPTimeout.Duration, UDPStream: f.UDPStreamTimeout.Duration,
	}
	o.within("conntrack.maxPerCore", *f.MaxPerCore, 0, 1<<31-1)
	o.within("conntrack.min", *f.Min, 0, 1<<31-1)
	o.notNegative("conntrack.tcpEstablishedTimeout", c.TCPEstablished)
	o.notNegative("conntrack.tcpCloseWaitTimeout", c.TCPCloseWait)
	o.notNegative("conntrack.udpTimeout", c.UDP)
	o.notNegative("conntrack.udpStreamTimeout", c.UDPStream)
	return c
}

// servers is CF-14 to CF-18. A bare IP gets the server's usual port; nothing (FL-09) and none disable it.
func (o *Options) servers() Servers {
	f := &o.file
	s := Servers{HardFail: f.BindAddressHardFail, Profiling: f.EnableProfiling, ShowHiddenMetricsFor: f.ShowHiddenMetricsForVersion, AdminSocket: o.adminSocket()}
	s.ServiceMetrics = o.within("serviceMetrics", f.ServiceMetrics, 0, MostServiceMetrics)
	s.Healthz = o.server("healthzBindAddress", &f.HealthzBindAddress, healthzPort)
	s.Metrics = o.server("metricsBindAddress", &f.MetricsBindAddress, metricsPort)
	// One address for both is one server, as in v1.5.
	if h, m := s.Healthz, s.Metrics; h != m && h.IsValid() && m.IsValid() && h.Port() == m.Port() && (h.Addr().IsUnspecified() || m.Addr().IsUnspecified()) {
		o.warn("%s %s and %s %s overlap: only one of the two servers can listen; with the same address one server answers for both",
			o.where("healthzBindAddress"), h, o.where("metricsBindAddress"), m)
	}
	if v := s.ShowHiddenMetricsFor; v != "" && v != previousMinor {
		o.wrong("showHiddenMetricsForVersion", v, "want the version before this one, "+previousMinor+", or nothing")
	}
	return s
}

// MostServiceMetrics is how many Services may have metrics of their own at most: a series for each, IP family and node.
const MostServiceMetrics = 1000

// DefaultAdminSocket is the admin socket where nobody asks for another: where the commands look for it.
const DefaultAdminSocket = "/run/kube-proxy/admin.sock"

// adminPipe is what [DefaultAdminSocket] means on Windows, so that one file serves nodes of both systems. Only administrators may create
// a pipe below this prefix, so no other user can answer in the proxy's place.
const adminPipe = pipePrefix + `ProtectedPrefix\Administrators\kube-proxy-admin`

const pipePrefix = `\\.\pipe\`

// AdminSocketOn returns the path at which an admin socket is on an operating system, as runtime.GOOS names it.
func AdminSocketOn(system, path string) string {
	if system == "windows" && path == DefaultAdminSocket {
		return adminPipe
	}
	return path
}

// mostSocketPath is the length of the longest path of a unix socket on Linux, in bytes.
const mostSocketPath = 107

// mostPipePath is that of a named pipe of Windows.
const mostPipePath = 256

// adminSocket is the path of the socket for questions of people.
func (o *Options) adminSocket() string {
	path := AdminSocketOn(o.system, *o.file.AdminSocket)
	switch {
	case path == "":
	case o.system == "windows":
		if name, ok := strings.CutPrefix(path, pipePrefix); !ok || name == "" || len(path) > mostPipePath || strings.ContainsRune(name, 0) {
			o.wrong("adminSocket", path, "want a named pipe such as "+adminPipe+", or nothing for no pipe")
		}
	case !strings.HasPrefix(path, "/") || strings.HasSuffix(path, "/") || strings.ContainsRune(path, 0):
		o.wrong("adminSocket", path, "want an absolute path such as "+DefaultAdminSocket+", or nothing for no socket")
	case len(path) > mostSocketPath:
		o.wrong("adminSocket", path, fmt.Sprintf("it has %d bytes: want %d at most, as the kernel does", len(path), mostSocketPath))
	}
	return path
}

// noServer disables a server in a file, where nothing means the default (FL-08).
const noServer = "none"

func (o *Options) server(field string, at *string, port uint16) netip.AddrPort {
	const want = "want IP:port such as 0.0.0.0:10256 or [::]:10256 with a port of 1 to 65535, or an IP"
	if *at == "" || *at == noServer {
		if o.loaded {
			o.warn("%s is %q: no such server runs; other versions of kube-proxy do not know this word", o.where(field), noServer)
		}
		*at = noServer
		return netip.AddrPort{}
	}
	if a, err := parseAddr(strings.TrimSuffix(strings.TrimPrefix(*at, "["), "]")); err == nil {
		*at = netip.AddrPortFrom(a, port).String()
		return netip.AddrPortFrom(a, port)
	}
	i := strings.LastIndexByte(*at, ':')
	if i < 0 {
		o.wrong(field, *at, want)
		return netip.AddrPort{}
	}
	host := (*at)[:i]
	bare := strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	a, err := parseAddr(bare)
	n, bad := strconv.ParseUint((*at)[i+1:], 10, 16)
	if err != nil || bad != nil || n == 0 || a.Is6() && bare == host {
		o.wrong(field, *at, want)
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a, uint16(n))
}

func (o *Options) within(field string, n, low, high int32) int {
	if n < low || n > high {
		want := fmt.Sprintf("want %d to %d", low, high)
		if high == 1<<31-1 {
			want = fmt.Sprintf("want %d or more", low)
		}
		o.wrong(field, fmt.Sprint(n), want)
	}
	return int(n)
}

func (o *Options) positive(field string, d time.Duration) {
	if d <= 0 {
		o.wrong(field, d.String(), "want more than 0")
	}
}

func (o *Options) notNegative(field string, d time.Duration) {
	if d < 0 {
		o.wrong(field, d.String(), "want 0 or more")
	}
}

// notLonger checks a minimal period; a sync period of 0 is the engine's own and sets no bound.
func (o *Options) notLonger(field string, least, period time.Duration) {
	switch {
	case least < 0:
		o.wrong(field, least.String(), "want 0 or more")
	case least > period && period > 0:
		o.wrong(field, least.String(), "want at most the sync period, "+period.String())
	}
}
