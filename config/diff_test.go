package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"kube-proxy/plane/all"
)

// Every changed field is reported, and in the right list; the table of fields has the expectation.
func TestDiff(t *testing.T) {
	base, err := complete(t, testCase{args: []string{"--proxy-mode=iptables", "--nodeport-addresses=primary"}})
	must(t, err)
	if live, restart := Diff("iptables", base, base); len(live)+len(restart) > 0 {
		t.Errorf("no change is reported as %q and %q", live, restart)
	}
	values := map[string]string{
		"mode": "nftables", "bindAddress": "192.0.2.1", "healthzBindAddress": "192.0.2.1:80",
		"metricsBindAddress":          "none",
		"showHiddenMetricsForVersion": `"` + previousMinor + `"`, "logging.format": "json",
		"detectLocalMode": "NodeCIDR", "clusterCIDR": "10.0.0.0/8",
		"nodePortAddresses": "[10.0.0.0/8]", "externalIPCIDRs": "[10.0.0.0/8]", "ipvs.excludeCIDRs": "[10.0.0.0/8]",
		"portRange": "1-2", "winkernel.sourceVip": "192.0.2.1", "ebpf.exempt": "[/run/x]",
		"featureGates": "{AllAlpha: true}", "logging.vmodule": "[{filePattern: a, verbosity: 1}]",
		"iptables.localhostNodePorts": "false", "userspaceFallback": "false", "userspace.nodeEndpoints": "false",
		"adminSocket": "/run/other.sock",
		"snapshot":    "/var/lib/kube-proxy", "snapshotMaxAge": "1h", "snapshotReady": "true",
		"failover": "avoid", "failoverReset": "true",
	}
	bools := []string{"bindAddressHardFail", "enableProfiling", "masqueradeAll", "strictARP", "enableDSR",
		"forwardHealthCheckVip", "tcpBeLiberal", "windowsRunAsService", "windowsIgnoreSourceRanges", "splitStream",
		"protectNodePorts"}
	o := NewOptions(all.Modes())
	for _, row := range rows(t, "testdata/fields.tsv") {
		path := row["field"]
		name := path[strings.LastIndex(path, ".")+1:]
		value := values[path]
		typ := kindOf(o.file.at(path).Type()).name
		switch {
		case value != "":
		case slices.Contains(bools, name):
			value = "true"
		case typ == "duration":
			value = "700ms"
		case typ == "quantity", typ == "string":
			value = `"7"`
		default:
			value = "7"
		}
		file := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
		if path != "mode" {
			file += "mode: iptables\n"
		}
		if path != "nodePortAddresses" {
			file += "nodePortAddresses: [primary]\n"
		}
		if strings.Contains(path, "logging.options") {
			file += "featureGates: {LoggingAlphaOptions: true}\n"
		}
		for i, part := range strings.Split(path, ".") {
			file += fmt.Sprintf("%s%s: ", strings.Repeat("  ", i), part)
			if i < strings.Count(path, ".") {
				file += "\n"
			}
		}
		after, err := complete(t, testCase{file: file + value + "\n"})
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		live, restart := Diff("iptables", base, after)
		restart = slices.DeleteFunc(restart, func(p string) bool { return p == "featureGates" && path != p })
		// A sync period below the default least time lowers that too, an address without one its
		// servers'.
		live = slices.DeleteFunc(live, func(p string) bool {
			return p == "iptables.minSyncPeriod" && path == "iptables.syncPeriod"
		})
		got := map[string][]string{"live": live, "restart": restart}
		others := append(slices.Clone(modes), "windows")
		effect := strings.Split(row["effect"], ",")
		if slices.Contains(others, effect[0]) && !slices.Contains(effect, "iptables") {
			row["reload"] = "live" // only iptables runs, and on Linux
		}
		if (after.WhyRestart(path) == "") != (row["reload"] == "live") && !slices.Contains(others, effect[0]) {
			t.Errorf("%s: a new process is needed because %q", path, after.WhyRestart(path))
		}
		if !slices.Equal(got[row["reload"]], []string{path}) || len(live)+len(restart) != 1 {
			t.Errorf("a change of %s to %s is live %q, restart %q, want it in %s", path, value, live, restart,
				row["reload"])
		}
	}
}

// A change of a field that only another mode reads needs no new process, even if a blank mode could
// have selected that mode.
func TestDiffBlankMode(t *testing.T) {
	const file = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	before, err := complete(t, testCase{file: file})
	must(t, err)
	after, err := complete(t, testCase{file: file + "nftables: {masqueradeBit: 5}\nportRange: 1-2\n"})
	must(t, err)
	if live, restart := Diff("iptables", before, after); len(live) != 2 || len(restart) != 0 {
		t.Errorf("where iptables runs: live %q, restart %q", live, restart)
	}
	if live, restart := Diff("nftables", before, after); len(live) != 1 ||
		!slices.Equal(restart, []string{"nftables.masqueradeBit"}) {
		t.Errorf("where nftables runs: live %q, restart %q", live, restart)
	}
}
