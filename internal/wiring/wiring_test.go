package wiring

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"kube-proxy/config"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/policy"
)

// configured has a value in each field that the settings are made of.
func configured() *Config {
	prefix := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	c := &Config{Config: &config.Config{ExternalIPCIDRs: prefix, ClusterCIDRs: []netip.Prefix{
		netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("10.2.0.0/16")}}}
	c.Conntrack.TCPEstablished = time.Hour
	c.Servers.ServiceMetrics = 100
	c.Servers.Healthz = netip.MustParseAddrPort("0.0.0.0:10256")
	c.Resolved.Tables = config.Tables{MasqueradeBit: 14, LocalhostNodePorts: true}
	c.Resolved.NodePorts.Prefixes = prefix
	c.Resolved.LocalhostProxy = true
	return c
}

func TestPlaneSettings(t *testing.T) {
	s := configured().Plane(lb.IPv6)
	if s.Family != lb.IPv6 || s.HealthzPort != 10256 || s.MasqueradeBit != 14 || !s.LocalhostNodePorts ||
		len(s.NodePorts) != 1 || !s.LocalhostProxy || s.TCPIdle() != time.Hour || !s.ExternalIPsBounded() ||
		!s.CountServices {
		t.Errorf("%+v", s)
	}
	c := configured()
	c.ExternalIPCIDRs, c.Servers.ServiceMetrics = nil, 0
	if s := c.Plane(lb.IPv4); s.ExternalIPsBounded() || s.CountServices {
		t.Errorf("external IPs are bounded: %t, Services counted: %t", s.ExternalIPsBounded(), s.CountServices)
	}
}

// The proxy's own servers take ports on every node, if they listen (TN-98).
func TestOwnPorts(t *testing.T) {
	ports := func(c *Config) (all []uint16) {
		for _, p := range c.Policy(lb.IPv4).OwnPorts {
			all = append(all, p.Port)
		}
		return all
	}
	c := configured()
	if got := ports(c); !slices.Equal(got, []uint16{policy.KubeletPort, 10256}) {
		t.Errorf("without a metrics server: %v", got)
	}
	c.Servers.Metrics, c.Servers.Healthz = netip.MustParseAddrPort("127.0.0.1:10249"), netip.AddrPort{}
	if got := ports(c); !slices.Equal(got, []uint16{policy.KubeletPort, 10249}) {
		t.Errorf("without a health server: %v", got)
	}
}

// The cluster uses the families of its pods' networks.
func TestHostFamilies(t *testing.T) {
	c := configured()
	if s := c.Host(); !s.IPv4 || s.IPv6 || s.Asked.MasqueradeBit != 14 {
		t.Errorf("IPv4 %t, IPv6 %t", s.IPv4, s.IPv6)
	}
	c.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("fd00::/48"), netip.MustParsePrefix("10.1.0.0/16"),
		netip.MustParsePrefix("10.2.0.0/16")}
	if s := c.Host(); !s.IPv4 || !s.IPv6 {
		t.Errorf("IPv4 %t, IPv6 %t", s.IPv4, s.IPv6)
	}
	c.ClusterCIDRs = c.ClusterCIDRs[:1]
	if s := c.Host(); s.IPv4 || !s.IPv6 {
		t.Errorf("IPv4 %t, IPv6 %t", s.IPv4, s.IPv6)
	}
}

// Objects are counted for modes that write some.
func TestBudget(t *testing.T) {
	now := func() policy.Settings { return policy.Settings{} }
	asked := false
	var m mode.Mode
	Budget(m, mode.Settings{}, now)
	m.Weigh = func(mode.Settings) func(lb.Size) int {
		asked = true
		return func(lb.Size) int { return 1 }
	}
	Budget(m, mode.Settings{}, now)
	if !asked {
		t.Error("the mode's weight is not used")
	}
}
