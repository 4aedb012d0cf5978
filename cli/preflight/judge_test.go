package preflight

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/system"
	"kube-proxy/lb"
	"kube-proxy/mode"
)

// prefixes reads networks.
func prefixes(list ...string) (all []netip.Prefix) {
	for _, s := range list {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

// usual is a healthy node, and the setup for it.
func usual() (*Setup, *Facts) {
	unasked := mode.Selection{Unasked: runtime.GOOS}
	s := &Setup{
		Modes: mode.List{{Name: "first", Selection: unasked, Config: mode.Config{LocalhostNodePorts: true}},
			{Name: "second", Selection: unasked, Planes: mode.Planes{Terminates: true}},
			{Name: "gives-way", Selection: mode.Selection{FallsBackTo: "second"}}},
		Families: []lb.Family{lb.IPv4, lb.IPv6}, NodeName: "n1", Hostname: "n1", PodCIDRs: prefixes("10.244.0.0/16"),
		Healthz: netip.MustParseAddrPort("0.0.0.0:10256"), Metrics: netip.MustParseAddrPort("127.0.0.1:10249"),
	}
	f := &Facts{OS: "linux",
		Kernel: known("6.12.3", error(nil)),
		Links: known([]Link{{Name: "lo", Type: "loopback", Index: 1, MTU: 65536, Up: true,
			Addrs: prefixes("127.0.0.1/8")},
			{Name: "eth0", Type: "device", Index: 2, MTU: 1500, Up: true, Addrs: prefixes("192.0.2.1/24"),
				RPFilter: "2"}, {Name: "cali1", Type: "veth", Index: 3, MTU: 1450, Up: true, RPFilter: "1"}},
			error(nil)),
		Routes: known([]Route{{netip.MustParsePrefix("0.0.0.0/0"), 2}, {netip.MustParsePrefix("10.244.1.0/24"), 3}},
			error(nil)),
		Sysctls: known(map[string]string{ipForward: "1", ipv6Forwarding: "0", "net.ipv4.conf.all.rp_filter": "0",
			routeLocalnet: "1", conntrackMax: "131072", conntrackCount: "1000", conntrackBuckets: "32768",
			portRange: "32768\t60999"}, error(nil)),
		Memory: known(uint64(4<<30), error(nil)), Descriptors: known(uint64(1<<20), error(nil)),
		Cluster: &Cluster{Server: "https://api", Version: known("v1.37.0", error(nil)),
			Node:         known(Node{Found: true, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, error(nil)),
			ServiceCIDRs: known(prefixes("10.96.0.0/12"), error(nil))},
	}
	for _, m := range s.Modes {
		for _, fam := range s.Families {
			f.Abilities = append(f.Abilities, Ability{Mode: m.Name, Family: fam})
		}
	}
	return s, f
}

func line(f Finding) string { return fmt.Sprintf("%s %s %s: %s", f.ID, f.Severity, f.About, f.Seen) }

// A healthy node has only findings ok and info.
func TestNothingToSay(t *testing.T) {
	s, f := usual()
	all := Judge(s, f)
	for _, found := range all {
		if worse(found.Severity, Info) > 0 {
			t.Errorf("%+v", found)
		}
	}
	if Exit(all) != ExitOK || len(all) < 35 {
		t.Errorf("exit code %d of %d findings", Exit(all), len(all))
	}
}

// Each case changes that node, and has the resulting finding: the start of its line (EB-20).
func TestJudge(t *testing.T) {
	cannot := func(f *Facts, name string, why error) {
		for i := range f.Abilities {
			if f.Abilities[i].Mode == name {
				f.Abilities[i].Able = why
			}
		}
	}
	broken := errors.New("it is broken")
	for _, c := range []struct {
		name string
		edit func(*Setup, *Facts)
		want string
		exit int
	}{
		{"old kernel", func(_ *Setup, f *Facts) { f.Kernel.Value = "5.4.0" }, "kernel error : Linux 5.4.0", ExitErrors},
		{"a kernel that is no version", func(_ *Setup, f *Facts) { f.Kernel.Value = "x" }, "kernel unknown",
			ExitWarnings},
		{"no CAP_NET_ADMIN", func(_ *Setup, f *Facts) { f.Lacks.Value = []string{"NET_ADMIN"} },
			"privileges error : this process lacks CAP_NET_ADMIN", ExitErrors},
		{"no CAP_NET_RAW, in a mode of iptables", func(s *Setup, f *Facts) {
			s.Modes[0].RunsIPTables, f.Lacks.Value = true, []string{"NET_RAW"}
		}, "privileges warning : this process lacks CAP_NET_RAW", ExitWarnings},
		{"no CAP_NET_RAW, in mode ipvs", func(s *Setup, f *Facts) {
			s.Modes[0].Among, f.Lacks.Value = "iptables", []string{"NET_RAW"}
		}, "privileges error : this process lacks CAP_NET_RAW", ExitErrors},
		{"no CAP_NET_RAW", func(_ *Setup, f *Facts) { f.Lacks.Value = []string{"NET_RAW"} }, "privileges info", ExitOK},
		{"the first cannot run, and is not selected", func(_ *Setup, f *Facts) {
			cannot(f, "first", broken)
		}, "mode-configured info : the configuration selects no mode (the default): it is second, " +
			"after first (it is broken)", ExitOK},
		{"a mode does without a part", func(_ *Setup, f *Facts) { f.Abilities[0].Reduced = broken },
			"mode info first IPv4: can run, but not all of it: it is broken", ExitOK},
		{"no mode can run", func(_ *Setup, f *Facts) { cannot(f, "first", broken); cannot(f, "second", broken) },
			"mode-configured error : ", ExitErrors},
		{"a mode with a fallback is selected", func(s *Setup, f *Facts) {
			s.Configured = "gives-way"
			cannot(f, "gives-way", broken)
		}, "mode-configured warning : the configuration selects gives-way; mode gives-way cannot run on this host, " +
			"using second instead", ExitWarnings},
		{"the mode that would run has a caution", func(s *Setup, _ *Facts) {
			s.Modes = slices.Clone(s.Modes)
			s.Modes[0].Caution = "It bypasses"
		}, "mode-configured warning : mode first: It bypasses", ExitWarnings},
		{"the second family cannot be served", func(_ *Setup, f *Facts) {
			f.Abilities[1].Able = broken
		}, "mode-configured warning IPv6: mode first cannot serve IPv6: it is broken; IPv4 would be served alone",
			ExitWarnings},
		{"the mode waits for something of the node", func(s *Setup, f *Facts) {
			s.Modes = slices.Clone(s.Modes)
			s.Modes[0].Lacks = func(context.Context, mode.Settings) []error { return nil }
			f.Waits.Value = []error{broken}
		}, "mode-waits warning first: it is broken", ExitWarnings},
		{"rules cannot be listed", func(_ *Setup, f *Facts) { f.Chains.Err = errNeedsRoot },
			"drop-policy unknown : cannot check: needs root", ExitWarnings},
		{"no forwarding", func(_ *Setup, f *Facts) { f.Sysctls.Value[ipForward] = "0" },
			"ip-forward error net.ipv4.ip_forward: it is 0", ExitErrors},
		{"no forwarding of a family that the cluster has", func(s *Setup, _ *Facts) {
			s.PodCIDRs = prefixes("10.244.0.0/16", "fd00::/48")
		}, "ip-forward error net.ipv6.conf.all.forwarding", ExitErrors},
		{"no forwarding, and the mode sets it", func(_ *Setup, f *Facts) {
			f.Sysctls.Value[ipForward] = "0"
			f.Changes.Value = []system.Change{{Name: ipForward, Have: "0", Want: "1", Asks: "it"}}
		}, "ip-forward info net.ipv4.ip_forward: it is 0, and mode first will set it", ExitOK},
		{"a file sets what is needed otherwise", func(_ *Setup, f *Facts) {
			f.Elsewhere.Value = []Assignment{{ipForward, "0", "/etc/sysctl.d/1.conf:3"}}
		}, "sysctl-files warning net.ipv4.ip_forward: /etc/sysctl.d/1.conf:3 sets it to 0, but 1 is needed",
			ExitWarnings},
		{"read-only sysctls", func(_ *Setup, f *Facts) {
			f.ReadOnly.Value, f.Changes.Value = true, []system.Change{{Name: "a", Have: "0", Want: "1", Asks: "it"}}
		}, "sysctls-read-only warning", ExitWarnings},
		{"a bridge of pods without br_netfilter", func(_ *Setup, f *Facts) {
			f.Links.Value = append(f.Links.Value, Link{Name: "cni0", Type: "bridge"})
		},
			"bridge-netfilter warning net.bridge.bridge-nf-call-iptables: pods are on bridge cni0, and br_netfilter " +
				"is not loaded", ExitWarnings},
		{"a bridge of pods that is turned off", func(s *Setup, f *Facts) {
			s.PodInterface, f.Sysctls.Value[bridgeCalls] = "br7", "0"
			f.Links.Value = append(f.Links.Value, Link{Name: "br7", Type: "bridge"})
		}, "bridge-netfilter warning net.bridge.bridge-nf-call-iptables: pods are on bridge br7, and it is 0",
			ExitWarnings},
		{"one strict uplink", func(_ *Setup, f *Facts) { f.Links.Value[1].RPFilter = "1" },
			"rp-filter info : strict on eth0, the only uplink", ExitOK},
		{"one strict uplink that is a veth, with the default route", func(_ *Setup, f *Facts) {
			f.Links.Value[1].Type, f.Links.Value[1].RPFilter, f.Cluster = "veth", "1", nil
		}, "rp-filter info : strict on eth0, the only uplink", ExitOK},
		{"two uplinks, a veth with the node's address and a bridge of several default routes",
			func(_ *Setup, f *Facts) {
				f.Links.Value[1].Type, f.Links.Value[1].RPFilter, f.Routes.Value[0].Link = "veth", "1", 4
				f.Links.Value = append(f.Links.Value, Link{Name: "br-ex", Type: "bridge", Index: 4, MTU: 1500, Up: true,
					Addrs: prefixes("198.51.100.1/24")})
				f.Routes.Value = append(f.Routes.Value, f.Routes.Value[0])
			}, "rp-filter warning : strict on eth0, with several uplinks: eth0, br-ex", ExitWarnings},
		{"strict veths of pods beside an uplink that is one", func(_ *Setup, f *Facts) {
			f.Links.Value[1].Type, f.Links.Value[2].Addrs = "veth", prefixes("10.244.0.1/32")
		}, "rp-filter ok : no strict filter on an uplink", ExitOK},
		{"strict for all, loose at the interface",
			func(_ *Setup, f *Facts) { f.Sysctls.Value["net.ipv4.conf.all.rp_filter"] = "1" }, "rp-filter ok", ExitOK},
		{"too many connections for the memory", func(_ *Setup, f *Facts) { f.Memory.Value = 128 << 20 },
			"conntrack-size warning", ExitWarnings},
		{"more will be allowed", func(_ *Setup, f *Facts) {
			f.Changes.Value = []system.Change{{Name: conntrackMax, Have: "131072", Want: "1048576000", Asks: "it"}}
		}, "conntrack-size warning : at most 1048576000 connections (now 131072)", ExitWarnings},
		{"nearly full", func(_ *Setup, f *Facts) {
			f.Sysctls.Value[conntrackCount] = "110000"
		}, "conntrack-use warning : 110000 of 131072 connections, 83 %", ExitWarnings},
		{"nearly full once the proxy has lowered the limit", func(_ *Setup, f *Facts) {
			f.Sysctls.Value[conntrackCount], f.Sysctls.Value[conntrackMax] = "110000", "262144"
			f.Changes.Value = []system.Change{{Name: conntrackMax, Have: "262144", Want: "131072", Asks: "it"}}
		}, "conntrack-use warning : 110000 of 131072 connections (now 262144), 83 %", ExitWarnings},
		{"full until the proxy has raised the limit", func(_ *Setup, f *Facts) {
			f.Sysctls.Value[conntrackCount] = "131072"
			f.Changes.Value = []system.Change{{Name: conntrackMax, Have: "131072", Want: "262144", Asks: "it"}}
		}, "conntrack-use error : 131072 of 131072 connections, 100 %", ExitErrors},
		{"full", func(_ *Setup, f *Facts) { f.Sysctls.Value[conntrackCount] = "131072" }, "conntrack-use error",
			ExitErrors},
		{"the clock runs free", func(_ *Setup, f *Facts) { f.Unsynchronised.Value = true }, "clock warning kernel",
			ExitWarnings},
		{"the API server's clock", func(_ *Setup, f *Facts) {
			f.Cluster.Ahead.Value = -time.Hour
		}, "clock warning API server: its clock is 1h0m0s behind this machine's", ExitWarnings},
		{"few descriptors", func(s *Setup, f *Facts) {
			s.Configured, f.Descriptors.Value = "second", 20000
		}, "descriptors warning : at most 20000: mode second holds some 6666 connections", ExitWarnings},
		{"Cilium that is not known", func(_ *Setup, f *Facts) {
			f.BPF.Err = errNeedsRoot
			f.Links.Value = append(f.Links.Value, Link{Name: "cilium_host"})
		}, "cilium warning : Cilium runs here (cilium_host); cannot determine whether it replaces kube-proxy: needs " +
			"root", ExitWarnings},
		{"Cilium beside a proxy", func(_ *Setup, f *Facts) {
			f.Links.Value = append(f.Links.Value, Link{Name: "cilium_host"})
		}, "cilium info", ExitOK},
		{"networks of pods and Services overlap", func(s *Setup, _ *Facts) {
			s.PodCIDRs = prefixes("10.100.0.0/16")
		}, "address-conflict error 10.100.0.0/16: the pod network overlaps the service network 10.96.0.0/12",
			ExitErrors},
		{"the node is in the service network", func(_ *Setup, f *Facts) {
			f.Links.Value[1].Addrs = prefixes("10.96.3.4/24", "192.0.2.1/24")
		}, "address-conflict error 10.96.0.0/12: the service network contains the address 10.96.3.4 of interface eth0",
			ExitErrors},
		{"a route into the service network", func(_ *Setup, f *Facts) {
			f.Routes.Value = append(f.Routes.Value, Route{netip.MustParsePrefix("10.97.0.0/16"), 2})
		},
			"address-conflict warning 10.96.0.0/12: the service network overlaps " +
				"the route to 10.97.0.0/16 through eth0", ExitWarnings},
		{"an address that kube-ipvs0 has is no conflict", func(_ *Setup, f *Facts) {
			f.Links.Value = append(f.Links.Value, Link{Name: "kube-ipvs0", Index: 9, Addrs: prefixes("10.96.0.1/32")})
		}, "address-conflict ok", ExitOK},
		{"no right to watch", func(_ *Setup, f *Facts) { f.Cluster.Denied.Value = []string{"watch services"} },
			"rights error watch services: not allowed", ExitErrors},
		{"no right to create events", func(_ *Setup, f *Facts) { f.Cluster.Denied.Value = []string{"create events"} },
			"rights warning create events", ExitWarnings},
		{"no such Node", func(s *Setup, f *Facts) {
			f.Cluster.Node.Value.Found, s.Hostname = false, "n1.example"
		}, `node error : there is no Node "n1"; the host name is "n1.example"`, ExitErrors},
		{"the Node of another machine", func(_ *Setup, f *Facts) {
			f.Cluster.Node.Value.Addrs[0] = netip.MustParseAddr("192.0.2.2")
		}, `node warning : the Node "n1" has the address 192.0.2.2, which this machine lacks`, ExitWarnings},
		{"no API server", func(_ *Setup, f *Facts) { f.Cluster.Version.Err = broken },
			"api-server error : https://api does not answer: it is broken", ExitErrors},
		{"another has the port", func(_ *Setup, f *Facts) {
			f.Sockets.Value = []Socket{{netip.MustParseAddrPort("[::]:10256"), "tcp", ""}}
		},
			"ports warning healthz: 0.0.0.0:10256 is used by an invisible process", ExitWarnings},
		{"a neighbour's port is free", func(_ *Setup, f *Facts) {
			f.Sockets.Value = []Socket{{netip.MustParseAddrPort("192.0.2.1:10249"), "tcp", "x"},
				{netip.MustParseAddrPort("0.0.0.0:10256"), "udp", "x"}}
		}, "ports ok metrics", ExitOK},
		{"Windows", func(_ *Setup, f *Facts) { f.OS, f.Sockets.Err = "windows", nil }, "api-server ok", ExitOK},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, f := usual()
			c.edit(s, f)
			all := Judge(s, f)
			if !slices.ContainsFunc(all, func(f Finding) bool { return strings.HasPrefix(line(f), c.want) }) {
				for _, found := range all {
					if id, _, _ := strings.Cut(c.want, " "); found.ID == id {
						t.Logf("there is %s", line(found))
					}
				}
				t.Errorf("no finding %q", c.want)
			}
			if Exit(all) != c.exit {
				t.Errorf("exit code %d, want %d", Exit(all), c.exit)
				for _, found := range all {
					if worse(found.Severity, Info) > 0 {
						t.Log(line(found))
					}
				}
			}
			worst := map[string]Severity{}
			for _, k := range Kinds() {
				worst[k.ID] = k.Worst
			}
			for _, found := range all {
				if found.Severity != Unknown && worse(found.Severity, worst[found.ID]) > 0 {
					t.Errorf("docs/check.md says up to %s: %s", worst[found.ID], line(found))
				}
				if worse(found.Severity, Info) > 0 && (found.Why == "" || found.Remedy == "") {
					t.Errorf("no reason, or no remedy: %+v", found)
				}
			}
		})
	}
}

var errNeedsRoot = errors.New("needs root")

// All facts are unknown: every finding says so, and none is ok because a probe failed.
func TestNothingKnown(t *testing.T) {
	s, f := usual()
	dark := errors.New("it is dark")
	*f = Facts{OS: "linux", Kernel: known("", dark), Lacks: known([]string(nil), dark),
		OwnNamespace: known(false, dark), Chains: known([]Chain(nil), dark), Legacy: known([]Chain(nil), dark),
		Writer: known("", dark), VirtualServers: known(0, dark), BPF: known([]string(nil), dark),
		Links: known([]Link(nil), dark), Routes: known([]Route(nil), dark), Sockets: known([]Socket(nil), dark),
		Sysctls: known(map[string]string(nil), dark), Changes: known([]system.Change(nil), dark),
		Elsewhere: known([]Assignment(nil), dark), ReadOnly: known(false, dark), Memory: known(uint64(0), dark),
		Unsynchronised: known(false, dark), Descriptors: known(uint64(0), dark), InTheWay: known([]InTheWay(nil), dark)}
	for _, found := range Judge(s, f) {
		if found.Severity == OK && found.ID != "api-server" {
			t.Errorf("%+v", found)
		}
	}
}
