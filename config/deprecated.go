package config

import (
	"fmt"

	"kube-proxy/config/option"
)

// deprecatedFlags are names that newer proxies do not have.
type deprecatedFlags struct {
	cleanupIPTables, cleanupIPVS                 bool
	oldHealthzPort, oldMetricsPort, conntrackMax int32
}

// deprecatedSection has deprecated flags. Those that still make sense work; the others are
// accepted, so that an old manifest starts (G1), with a warning about the replacement.
func (o *Options) deprecatedSection() option.Section {
	o.cleanupIPVS, o.oldHealthzPort, o.oldMetricsPort = true, healthzPort, metricsPort
	all := []option.Field{
		{At: &o.oldHealthzPort, Flag: "healthz-port",
			Help: "`port` of the health server if --healthz-bind-address has none; 0 disables it"},
		{At: &o.oldMetricsPort, Flag: "metrics-port",
			Help: "`port` of the metrics server if --metrics-bind-address has none; 0 disables it"},
		{At: &o.conntrackMax, Flag: "conntrack-max",
			Help: "limit of tracked connections: sets --conntrack-min to the `number` and --conntrack-max-per-core " +
				"to 1; 0 means unset"},
		{At: &o.cleanupIPTables, Flag: "cleanup-iptables", Help: "remove only the rules of mode iptables, and exit"},
		{At: &o.cleanupIPVS, Flag: "cleanup-ipvs", Help: "with --cleanup, false keeps IPVS virtual servers"},
		old("azure-container-registry-config", "string", "", "a proxy pulls no images"),
		old("google-json-key", "string", "", "a proxy pulls no images"),
		old("resource-container", "string", "/kube-proxy", "the container runtime puts the process into a cgroup"),
		old("cleanup-iptables-and-exit", "bool", "false", "use --cleanup"),
	}
	for _, s := range strays {
		all = append(all, old(s.name, s.typ, s.def, "it belongs to cAdvisor; old proxies had it by accident"))
	}
	return option.Section{Title: "Deprecated", Order: 100, Fields: all}
}

func old(name, typ, def, why string) option.Field {
	return option.Field{Flag: name, At: &taken{typ, def}, Effect: option.Effect{Gone: why}, Help: "without effect: " +
		why}
}

// oldConntrackMax is the flag of the first versions for the number of connections. It overrides the
// later ones, as it did there (CF-39).
func (o *Options) oldConntrackMax() {
	switch n := o.conntrackMax; {
	case n < 0:
		o.problem("--conntrack-max", fmt.Sprint(n), "want 0 or more")
	case n > 0:
		one := int32(1)
		o.file.Conntrack.MaxPerCore, o.file.Conntrack.Min = &one, &n
		o.warn("--conntrack-max is deprecated: use --conntrack-min=%d --conntrack-max-per-core=1", n)
	}
}

// strays are flags of cAdvisor that appeared in the proxy's help of 1.1 and in man pages of 1.20 to
// 1.22.
var strays = []struct{ name, typ, def string }{
	{"allow-dynamic-housekeeping", "bool", "true"},
	{"application-metrics-count-limit", "int32", "100"},
	{"container-hints", "string", "/etc/cadvisor/container_hints.json"},
	{"containerd", "string", "/run/containerd/containerd.sock"},
	{"containerd-namespace", "string", "k8s.io"},
	{"disable-root-cgroup-stats", "bool", "false"},
	{"docker", "string", "unix:///var/run/docker.sock"},
	{"docker-env-metadata-whitelist", "string", ""},
	{"docker-only", "bool", "false"},
	{"docker-root", "string", "/var/lib/docker"},
	{"docker-run", "string", "/var/run/docker"},
	{"docker-tls", "bool", "false"},
	{"docker-tls-ca", "string", "ca.pem"},
	{"docker-tls-cert", "string", "cert.pem"},
	{"docker-tls-key", "string", "key.pem"},
	{"enable-load-reader", "bool", "false"},
	{"event-storage-age-limit", "string", "default=0"},
	{"event-storage-event-limit", "string", "default=0"},
	{"global-housekeeping-interval", "duration", "1m0s"},
	{"housekeeping-interval", "duration", "10s"},
	{"log-cadvisor-usage", "bool", "false"},
	{"storage-driver-buffer-duration", "duration", "1m0s"},
	{"storage-driver-db", "string", "cadvisor"},
	{"storage-driver-host", "string", "localhost:8086"},
	{"storage-driver-password", "string", "root"},
	{"storage-driver-secure", "bool", "false"},
	{"storage-driver-table", "string", "stats"},
	{"storage-driver-user", "string", "root"},
	{"update-machine-info-interval", "duration", "5m0s"},
}
