package event

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"kube-proxy/test/golden"
)

// docs/events.md is made from the catalogue.
func TestPage(t *testing.T) {
	golden.Equal(t, "../docs/events.md", Page())
}

// Each constructor with its expected result, and the check that every entry of the catalogue has
// one. EV-01…EV-07, HT-15, PN-60, PN-71, SV-24, SV-26, EXT.
func TestConstructors(t *testing.T) {
	err := errors.New("address already in use")
	node := Object{"Node", "", "n1", "n1"} // EV-01: the Node's UID is its name
	web := Object{"Service", "shop", "web", ""}
	slice := Object{"EndpointSlice", "shop", "web-x7", ""}
	seen := map[string]bool{}
	for _, c := range []struct {
		got                     Event
		typ                     Type
		reason, action, subject string
		regarding               Object
		note                    string // must be part of it
	}{
		{Starting("n1"), Normal, "Starting", "StartKubeProxy", "", node, "Starting kube-proxy on node n1"},
		{FailedToStartProxierHealthcheck("n1", "0.0.0.0:10256", err), Warning, "FailedToStartProxierHealthcheck",
			"StartKubeProxy", "", node, "on 0.0.0.0:10256: address already in use"},
		{FailedToStartMetricServer("n1", "127.0.0.1:10249", err), Warning, "FailedToStartMetricServer",
			"StartKubeProxy", "", node, "on 127.0.0.1:10249: address already in use"},
		{ReadOnlySysFS("n1", errors.New("read-only file system")), Warning, "readOnlySysFS", "StartKubeProxy", "", node,
			"read-only file system"},
		{FailedToStartServiceHealthcheck("shop/web", "n1", 31000, err), Warning, "FailedToStartServiceHealthcheck",
			"Listen", "31000", web, "node n1 cannot serve the Service's health check on port 31000: address already " +
				"in use"},
		{IncorrectIPVersion(slice, "endpoints[9].addresses[0]", "fd00::1", "is not an IPv4 address"), Warning,
			"KubeProxyIncorrectIPVersion", "GatherEndpoints", "endpoints[].addresses[] fd00::1", slice,
			"endpoints[9].addresses[0]: fd00::1 is not an IPv4 address"},
		{DefaultModeWillChange("n1", "iptables"), Warning, "KubeProxyDefaultMode", "StartKubeProxy", "", node,
			"uses iptables"},
		{IPVSDeprecated("n1"), Warning, "IPVSDeprecation", "StartKubeProxy", "", node, "deprecated"},
		{ModeFromAnnotation("n1", "userspace", "example/mode"), Normal, "KubeProxyModeFromAnnotation", "StartKubeProxy",
			"", node, "uses mode userspace from the Node's annotation example/mode"},
		{ModeFallback("n1", "ipvs", "iptables", errors.New("no ip_vs"), ""), Warning, "KubeProxyModeFallback",
			"StartKubeProxy", "ipvs", node, "uses mode iptables, because mode ipvs is unavailable: no ip_vs"},
		{ModeFallback("n1", "iptables", "userspace", errors.New("no nft"), "It bypasses"), Warning,
			"KubeProxyModeFallback", "StartKubeProxy", "iptables", node, "is unavailable: no nft. It bypasses"},
		{SourceRangesUnsupported("n1", "shop/web:http", "192.0.2.7:80/tcp", "not served"), Warning,
			"KubeProxySourceRangesUnsupported", "SyncRules", "192.0.2.7:80/tcp", node,
			"loadBalancerSourceRanges of shop/web:http at 192.0.2.7:80/tcp: not served"},
		{NodeNotFound("n1"), Warning, "KubeProxyNodeNotFound", "StartKubeProxy", "", node,
			"runs as node n1, but cannot find or read a Node of that name"},
		{RulesOverridden("n1", errors.New("11 eBPF programs remain")), Warning, "KubeProxyRulesOverridden", "SyncRules",
			"", node, "before the rules of kube-proxy on node n1: 11 eBPF programs remain"},
		{DriftRepaired("n1", "IPv6", 3), Warning, "KubeProxyDriftRepaired", "SyncRules", "IPv6", node,
			"changed or removed 3 of kube-proxy's IPv6 rules"},
		{ContestedKey("shop/web", "shop/old", "192.0.2.7:80/tcp", "is older", 0), Warning, "KubeProxyContestedKey",
			"SyncRules", "192.0.2.7:80/tcp shop/old", web, "192.0.2.7:80/tcp belongs to Service shop/old, which is " +
				"older; this Service gets no traffic there"},
		{ContestedKey("shop/web", "shop/old", "192.0.2.7:80/tcp", "is older", 9), Warning, "KubeProxyContestedKey",
			"SyncRules", "192.0.2.7:80/tcp shop/old", web, "traffic there, and 9 more of its addresses and ports " +
				"belong to others"},
		{AddressLent("shop/web", "10.96.0.7:80/tcp", "external IP", 0), Warning, "KubeProxyServiceNetworkAddress",
			"SyncRules", "10.96.0.7:80/tcp", web, "uses it as its external IP; it is served until"},
		{AddressLent("shop/web", "10.96.0.7:80/tcp", "external IP", 2), Warning, "KubeProxyServiceNetworkAddress",
			"SyncRules", "10.96.0.7:80/tcp", web, "external IP, as are 2 more; it is served"},
		{AddressRefused("shop/web", "spec.externalIPs 127.0.0.1 is a loopback address, and 3 others",
			"spec.externalIPs 127.0.0.1"), Warning, "KubeProxyAddressRefused", "SyncRules",
			"spec.externalIPs 127.0.0.1", web, "not served: spec.externalIPs 127.0.0.1 is a loopback address, and 3 " +
				"others"},
		{AffinityNearlyFull("n1", "IPv6", 81, []string{"shop/web:http", "shop/api"}), Warning,
			"KubeProxyAffinityNearlyFull", "SyncRules", "IPv6", node,
			"of IPv6 on node n1 is 81 % full; Services with the most clients: shop/web:http, shop/api"},
		{NodePortInUse("shop/web:http", "n1", 30080, "tcp", netip.MustParseAddrPort("0.0.0.0:30080"), false), Warning,
			"KubeProxyNodePortInUse", "Listen", "30080/tcp n1 0.0.0.0:30080", web,
			"NodePort 30080/tcp takes traffic from a program on node n1 that listens on 0.0.0.0:30080"},
		{NodePortInUse("shop/web:http", "n1", 30080, "tcp", netip.MustParseAddrPort("127.0.0.1:30080"), true), Warning,
			"KubeProxyNodePortInUse", "Listen", "30080/tcp n1 127.0.0.1:30080", web, "NodePort 30080/tcp is not " +
				"served at the address of a program on node n1 that listens on 127.0.0.1:30080"},
		{NodeAddressTaken("shop/web:http", "n1", "192.0.2.1:2379/tcp", netip.MustParseAddrPort("0.0.0.0:2379"), "", 0),
			Warning, "KubeProxyNodeAddressTaken", "Listen", "192.0.2.1:2379/tcp n1 a program that listens on " +
				"0.0.0.0:2379", web, "192.0.2.1:2379/tcp is at an address of node n1 itself and takes traffic from a " +
				"program that listens on 0.0.0.0:2379"},
		{NodeAddressTaken("shop/web:http", "n1", "192.0.2.1:30080/tcp", netip.AddrPort{}, "shop/old:http", 7), Warning,
			"KubeProxyNodeAddressTaken", "Listen", "192.0.2.1:30080/tcp n1 the NodePort of Service shop/old:http", web,
			"from the NodePort of Service shop/old:http; there are 7 more such ports of this Service"},
		// FO-14
		{NodeUnreachable("n1", "n2", 41), Warning, "KubeProxyNodeUnreachable", "SyncRules", "n2", node,
			"node n2 is unreachable from node n1; endpoints there: 41"},
		{ConfigReloaded("n1", "/etc/c.yaml", "logging.verbosity"), Normal, "KubeProxyConfigReloaded",
			"ReloadConfiguration", "logging.verbosity", node, "/etc/c.yaml: logging.verbosity"},
		{ConfigIgnored("n1", "/etc/c.yaml", errors.New("mode: bad")), Warning, "KubeProxyConfigInvalid",
			"ReloadConfiguration", "mode: bad", node, "mode: bad"},
		{ServingSnapshot("n1", time.Unix(1_800_000_000, 0), 7), Warning, "KubeProxyServingSnapshot", "StartKubeProxy",
			"", node,
			"started without the API server and served 7 Services from its snapshot of 2027-01-15T08:00:00Z"},
	} {
		e := c.got
		if e.Type != c.typ || e.Reason != c.reason || e.Action != c.action || e.Subject != c.subject ||
			e.Regarding != c.regarding {
			t.Errorf("%+v", e)
		}
		if !strings.Contains(e.Note, c.note) || strings.ContainsAny(e.Note, "{}") ||
			strings.Contains(e.Note, " 0 more") {
			t.Errorf("%s: note %q, want %q in it", e.Reason, e.Note, c.note)
		}
		seen[e.Reason] = true
	}
	for _, entry := range Catalogue() {
		if !seen[entry.Reason] {
			t.Errorf("no constructor of %s was tried", entry.Reason)
		}
		if entry.Meaning == "" || entry.Row == "" || entry.Regards == "" {
			t.Errorf("%s is incomplete: %+v", entry.Reason, entry)
		}
	}
	if len(seen) != len(Catalogue()) {
		t.Errorf("%d reasons, %d entries", len(seen), len(Catalogue()))
	}
}

// Braces in the text of an error are not replaced, and neither are those in the value of a word.
func TestNoteTakesValuesAsTheyAre(t *testing.T) {
	e := FailedToStartMetricServer("{err}", "a", errors.New("{node} {addr}"))
	if want := "kube-proxy on node {err} cannot serve metrics on a: {node} {addr}"; e.Note != want {
		t.Errorf("note %q, want %q", e.Note, want)
	}
}

// A new fault of a file must not be shown as a repetition of an earlier one.
func TestConfigSeries(t *testing.T) {
	one, two := errors.New("mode: bad"), errors.New("clusterCIDR: bad")
	if ConfigIgnored("n1", "f", one).Series() == ConfigIgnored("n1", "f", two).Series() {
		t.Error("two faults of a file are one series")
	}
	if ConfigReloaded("n1", "f", "mode").Series() == ConfigReloaded("n1", "f", "clusterCIDR").Series() {
		t.Error("two changes of a file are one series")
	}
	if again := errors.New("mode: bad"); ConfigIgnored("n1", "f", one).Series() != ConfigIgnored("n1", "f", again).
		Series() {
		t.Error("the same fault is two series")
	}
}

// An added or deleted pod moves the wrong address beside it to another place of the slice: that is
// the same fault, and a Service whose pods flap must not cause an event for each move.
func TestIncorrectIPVersionSeries(t *testing.T) {
	slice := Object{"EndpointSlice", "shop", "web-x7", ""}
	at := func(field, value string) Event {
		return IncorrectIPVersion(slice, field, value, "is not an IPv4 address").Series()
	}
	one := at("endpoints[0].addresses[0]", "fd00::1")
	if one != at("endpoints[17].addresses[0]", "fd00::1") {
		t.Error("the same address at another place is another series")
	}
	if one == at("endpoints[0].addresses[0]", "fd00::2") || one == at("spec.clusterIPs[0]", "fd00::1") {
		t.Error("two faults are one series")
	}
}
