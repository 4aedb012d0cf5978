package wiring

import (
	"log/slog"
	"net/netip"
	"time"

	"kube-proxy/config"
	"kube-proxy/engine"
	"kube-proxy/internal/system"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/policy"
	"kube-proxy/source/kube"
)

// WriterGroup is the number of the lock for writing rules: "kp" in ASCII, which no known program
// logs to.
const WriterGroup = 'k'<<8 | 'p'

// Config is a configuration, and what it says for one mode.
type Config struct {
	*config.Config
	Resolved config.Resolved
}

// Resolve returns the configuration for a mode. A problem of the file names it.
func Resolve(cfg *config.Config, m mode.Mode) (*Config, error) {
	resolved, err := cfg.For(m)
	if err != nil {
		return nil, InFile(cfg.File, err)
	}
	return &Config{cfg, resolved}, nil
}

// InFile has each problem of a field name the file that it is in.
func InFile(file string, err error) error {
	if ps, ok := err.(config.Problems); ok { // what else there is names it
		return ps.In(file, "")
	}
	return err
}

// Families are the families that this machine has (PR-02), the primary one first: that of
// --bind-address.
func Families(cfg *config.Config, log *slog.Logger) []lb.Family {
	if !hasIPv6() {
		log.Info("No IPv6 on this machine; serving IPv4 only")
		return []lb.Family{lb.IPv4}
	}
	if cfg.BindAddress.Is6() && !cfg.BindAddress.IsUnspecified() {
		return []lb.Family{lb.IPv6, lb.IPv4}
	}
	return []lb.Family{lb.IPv4, lb.IPv6}
}

// Probe are the settings by which a mode is tried in a family, before the configuration is resolved
// for it.
func Probe(cfg *config.Config, fam lb.Family) mode.Settings {
	return mode.Settings{Family: fam, HealthzPort: cfg.Servers.Healthz.Port(), Blocks: cfg.Blocks}
}

// Plane are the settings of the mode's plane in a family.
func (c *Config) Plane(fam lb.Family) mode.Settings {
	s, r := Probe(c.Config, fam), c.Resolved
	s.MasqueradeBit, s.LocalhostNodePorts = r.Tables.MasqueradeBit, r.Tables.LocalhostNodePorts
	s.NodePorts, s.LocalhostProxy = r.NodePorts.Prefixes, r.LocalhostProxy
	s.TCPIdle = func() time.Duration { return c.Conntrack.TCPEstablished }
	s.ExternalIPsBounded = func() bool { return len(c.ExternalIPCIDRs) > 0 }
	s.CountServices = c.Servers.ServiceMetrics > 0
	return s
}

// Policy are the settings that decide about frontends of a family.
func (c *Config) Policy(fam lb.Family) policy.Settings {
	r := c.Resolved
	return policy.Settings{
		Family:        fam,
		MasqueradeAll: r.Tables.MasqueradeAll,
		DetectLocal:   policy.LocalMode(c.DetectLocal.Mode),
		ClusterCIDRs:  c.ClusterCIDRs,
		PodInterface:  c.DetectLocal.Interface,
		NoExternalIPs: !c.Gates["AllowServiceExternalIPs"], ExternalIPCIDRs: c.ExternalIPCIDRs,
		MaxObjects: c.MaxNamespaceObjects,
		NodePortAddrs: policy.NodePortAddrs{
			Primary: r.NodePorts.Primary, Prefixes: r.NodePorts.Prefixes, NodeIP: c.BindAddress,
		},
		OwnPorts: c.ownPorts(),
	}
}

// ownPorts are the TCP ports of servers on every node (TN-98).
func (c *Config) ownPorts() []policy.OwnPort {
	own := []policy.OwnPort{{Port: policy.KubeletPort, Of: "the kubelet's"}}
	for _, s := range []struct {
		at netip.AddrPort
		of string
	}{{c.Servers.Healthz, "the proxy's health server's"}, {c.Servers.Metrics, "the proxy's metrics server's"}} {
		if s.at.Port() != 0 {
			own = append(own, policy.OwnPort{Port: s.at.Port(), Of: s.of})
		}
	}
	return own
}

// Budget is the budget of a mode's plane; now returns the settings, which may change.
func Budget(m mode.Mode, plane mode.Settings, now func() policy.Settings) *engine.Budget {
	if m.Weigh == nil {
		return engine.NewBudget(nil, now)
	}
	return engine.NewBudget(m.Weigh(plane), now)
}

// Host returns the settings of the host. The pods' networks show which families the cluster uses.
func (c *Config) Host() system.Settings {
	s := system.Settings{
		Mode: c.Resolved.Mode, Asked: c.Plane(lb.IPv4),
		Conntrack: system.Conntrack(c.Conntrack), OOMScoreAdj: c.OOMScoreAdj,
	}
	for _, pods := range c.ClusterCIDRs {
		s.IPv4, s.IPv6 = s.IPv4 || pods.Addr().Is4(), s.IPv6 || pods.Addr().Is6()
	}
	return s
}

// API says how to reach the API server.
func API(cfg *config.Config, log *slog.Logger) kube.Config {
	return kube.Config{
		Log:        log,
		Kubeconfig: cfg.API.Kubeconfig, Master: cfg.API.Master, NodeName: cfg.NodeName,
		QPS: cfg.API.QPS, Burst: cfg.API.Burst, UserAgent: "kube-proxy/" + cfg.Version,
		ContentType: cfg.API.ContentType, AcceptContentTypes: cfg.API.AcceptContentTypes,
	}
}
