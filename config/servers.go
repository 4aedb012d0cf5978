package config

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"kube-proxy/config/option"
)

// Servers configures where health and metrics are served.
type Servers struct {
	// Healthz and Metrics are not valid where there shall be no server.
	Healthz, Metrics netip.AddrPort
	// HardFail ends the process when one of them cannot listen.
	HardFail  bool
	Profiling bool
	// AdminSocket is the path of the socket for queries by operators; "" for none.
	AdminSocket string
	// ServiceMetrics is the number of Services with traffic metrics, 0 to MaxServiceMetrics; 0
	// disables counting.
	ServiceMetrics int
	// ShowHiddenMetricsFor is "1.36", or "" for none.
	ShowHiddenMetricsFor string
}

// serversBlock has the fields that the published type lacks.
type serversBlock struct {
	AdminSocket    *string `json:"adminSocket"`
	ServiceMetrics int32   `json:"serviceMetrics"`
}

const (
	healthzPort = 10256
	metricsPort = 10249
)

func (o *Options) serversSection() option.Section {
	f := o.file
	f.HealthzBindAddress, f.MetricsBindAddress = fmt.Sprintf("0.0.0.0:%d", healthzPort),
		fmt.Sprintf("127.0.0.1:%d", metricsPort)
	o.servers.AdminSocket = new(DefaultAdminSocket)
	return option.Section{Title: "Health and metrics", Order: 25, Values: o.servers, Fields: []option.Field{
		{Path: "healthzBindAddress", Flag: "healthz-bind-address", Row: "CF-14",
			Help: "`IP[:port]` of the health server; an empty flag, or the value none in a file, disables it"},
		{Path: "metricsBindAddress", Flag: "metrics-bind-address", Row: "CF-15",
			Help: "`IP[:port]` of the metrics server; an empty flag, or the value none in a file, disables it"},
		{Path: "bindAddressHardFail", Flag: "bind-address-hard-fail", Row: "CF-16",
			Restart: "it affects the start of the servers",
			Help:    "exit if the health or metrics server cannot listen, instead of retrying"},
		{Path: "enableProfiling", Flag: "profiling", Row: "CF-17",
			Help: "serve profiles on the metrics server, below /debug"},
		{Path: "adminSocket", Flag: "admin-socket", Row: "EXT",
			Help: "`path` of the unix socket that answers kube-proxy trace, why, diff, ui and other queries, for " +
				"root only; empty disables it. On Windows a named pipe for administrators, by default `" +
				adminPipe + "`"},
		{Path: "serviceMetrics", Flag: "service-metrics", Row: "EXT", Restart: option.AtStart,
			Help: "number of Services that have their own connection metrics, 0 to 1000: the busiest ones; the " +
				"others share one series. 0 disables counting"},
		{Path: "showHiddenMetricsForVersion", Flag: "show-hidden-metrics-for-version", Row: "CF-18",
			Restart: "metrics are registered once",
			Help: "show metrics that are hidden since the `version`; only the previous one is allowed: " +
				previousMinor},
	}}
}

// checkServers is CF-14 to CF-18. A bare IP gets the server's usual port; an empty value (FL-09) or
// "none" disables it.
func (o *Options) checkServers(r *option.Report) Servers {
	f := o.file
	s := Servers{HardFail: f.BindAddressHardFail, Profiling: f.EnableProfiling,
		ShowHiddenMetricsFor: f.ShowHiddenMetricsForVersion, AdminSocket: o.adminSocket()}
	s.ServiceMetrics = r.Within("serviceMetrics", o.servers.ServiceMetrics, 0, MaxServiceMetrics)
	s.Healthz = o.server("healthzBindAddress", &f.HealthzBindAddress, healthzPort)
	s.Metrics = o.server("metricsBindAddress", &f.MetricsBindAddress, metricsPort)
	// One address for both is one server, as in v1.5.
	if h, m := s.Healthz, s.Metrics; h != m && h.IsValid() && m.IsValid() && h.Port() == m.Port() &&
		(h.Addr().IsUnspecified() || m.Addr().IsUnspecified()) {
		o.warn("%s %s and %s %s overlap: only one server can listen; with equal addresses one server serves both",
			o.where("healthzBindAddress"), h, o.where("metricsBindAddress"), m)
	}
	if v := s.ShowHiddenMetricsFor; v != "" && v != previousMinor {
		o.wrong("showHiddenMetricsForVersion", v, "want the version before this one, "+previousMinor+", or nothing")
	}
	return s
}

// MaxServiceMetrics is the largest number of Services with their own metrics: a series for each,
// IP family and node.
const MaxServiceMetrics = 1000

// DefaultAdminSocket is the admin socket unless another is configured; the commands use this path.
const DefaultAdminSocket = "/run/kube-proxy/admin.sock"

// adminPipe replaces [DefaultAdminSocket] on Windows, so that one file serves nodes of both
// systems. Only administrators may create a pipe below this prefix, so no other user can answer in
// the proxy's place.
const adminPipe = pipePrefix + `ProtectedPrefix\Administrators\kube-proxy-admin`

const pipePrefix = `\\.\pipe\`

// AdminSocketOn returns the path of an admin socket on an operating system, as runtime.GOOS names
// it.
func AdminSocketOn(system, path string) string {
	if system == "windows" && path == DefaultAdminSocket {
		return adminPipe
	}
	return path
}

// maxSocketPath is the length of the longest path of a unix socket on Linux, in bytes.
const maxSocketPath = 107

// maxPipePath is the longest path of a named pipe of Windows.
const maxPipePath = 256

// adminSocket is the path of the socket for questions of people.
func (o *Options) adminSocket() string {
	path := AdminSocketOn(o.system, *o.servers.AdminSocket)
	switch {
	case path == "":
	case o.system == "windows":
		if name, ok := strings.CutPrefix(path, pipePrefix); !ok || name == "" || len(path) > maxPipePath ||
			strings.ContainsRune(name, 0) {
			o.wrong("adminSocket", path, "want a named pipe such as "+adminPipe+", or nothing for no pipe")
		}
	case !strings.HasPrefix(path, "/") || strings.HasSuffix(path, "/") || strings.ContainsRune(path, 0):
		o.wrong("adminSocket", path, "want an absolute path such as "+DefaultAdminSocket+", or nothing for no socket")
	case len(path) > maxSocketPath:
		o.wrong("adminSocket", path, fmt.Sprintf("it has %d bytes: the kernel allows %d", len(path), maxSocketPath))
	}
	return path
}

// noServer disables a server in a file, where an empty value means the default (FL-08).
const noServer = "none"

func (o *Options) server(field string, at *string, port uint16) netip.AddrPort {
	const want = "want IP:port such as 0.0.0.0:10256 or [::]:10256 with a port of 1 to 65535, or an IP"
	if *at == "" || *at == noServer {
		if o.loaded {
			o.warn("%s is %q: the server is disabled; other versions of kube-proxy do not know this value",
				o.where(field), noServer)
		}
		*at = noServer
		return netip.AddrPort{}
	}
	if a, err := option.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(*at, "["), "]")); err == nil {
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
	a, err := option.ParseAddr(bare)
	n, bad := strconv.ParseUint((*at)[i+1:], 10, 16)
	if err != nil || bad != nil || n == 0 || a.Is6() && bare == host {
		o.wrong(field, *at, want)
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a, uint16(n))
}

// port implements --healthz-port and --metrics-port: 0 disables the server, else the port is for an
// address without one. The default address counts as one without (FL-04).
func (o *Options) port(name string, port int32, at *string) {
	if !o.changed(name + "-port") {
		return
	}
	old, flag := "--"+name+"-port", "--"+name+"-bind-address"
	bare := *at
	if inside, bracketed := strings.CutPrefix(bare, "["); bracketed && strings.HasSuffix(inside, "]") {
		bare = inside[:len(inside)-1]
	}
	a, err := option.ParseAddr(bare)
	switch {
	case port < 0 || port > 65535:
		o.problem(old, fmt.Sprint(port), "want 0 to 65535")
	case port == 0:
		if o.changed(flag[2:]) && *at != "" {
			o.warn("%s 0 disables the server and overrides %s", old, flag)
			o.reportedFlags = append(o.reportedFlags, old[2:])
		}
		*at = ""
	case err == nil: // a bare IP
		*at = netip.AddrPortFrom(a, uint16(port)).String()
	case !o.changed(flag[2:]):
		host, _, _ := strings.Cut(*at, ":")
		*at = fmt.Sprintf("%s:%d", host, port)
	default:
		o.warn("%s is ignored: %s %s overrides it", old, flag, *at)
		o.reportedFlags = append(o.reportedFlags, old[2:])
	}
}
