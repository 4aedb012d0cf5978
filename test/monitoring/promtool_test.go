package monitoring

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

var withPrometheus = flag.Bool("prometheus", false, "test with Debian's Prometheus and promtool, which have to be "+
	"installed")

func needPrometheus(t *testing.T) {
	t.Helper()
	if !*withPrometheus {
		t.Skip("no -prometheus: `make test-status` installs it, and runs this")
	}
	for _, name := range []string{"prometheus", "promtool"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Fatal(err)
		}
	}
}

// fault is made up: series of one sample a minute, as promtool writes them. At quiet the alert is
// silent still, or pending; at fires it fires, once for each of labels. An alert that never should
// has no fires.
type fault struct {
	alert        string
	series       []string
	quiet, fires string
	labels       []map[string]string
}

func node(n string, more ...string) map[string]string {
	l := map[string]string{"job": "kube-proxy", "instance": n}
	for i := 0; i < len(more); i += 2 {
		l[more[i]] = more[i+1]
	}
	return l
}

// series has a metric with labels, of job kube-proxy, on node n1 if labels have no instance.
func series(name, values string, labels ...string) string {
	at := []string{`job="kube-proxy"`}
	if !slices.Contains(labels, "instance") {
		labels = append([]string{"instance", "n1"}, labels...)
	}
	for i := 0; i < len(labels); i += 2 {
		at = append(at, fmt.Sprintf("%s=%q", labels[i], labels[i+1]))
	}
	return name + "{" + strings.Join(at, ",") + "} " + values
}

const (
	lastOf   = "kubeproxy_sync_proxy_rules_last_timestamp_seconds"
	queuedOf = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds"
	gib      = 1 << 30
)

// healthy is a normal hour of a node: changes are written, some fail and are retried, the API
// server is up.
func healthy() []string {
	return []string{
		series("up", "1x200"), series("process_start_time_seconds", "5x200"), series("process_start_time_seconds",
			"5x50 3005x150", "instance", "n2"),
		series(lastOf, "0+60x200", "ip_family", "IPv4"), series(queuedOf, "0+60x200", "ip_family", "IPv4"),
		series(lastOf, "7x200", "ip_family", "IPv6"), series(queuedOf, "6x200", "ip_family", "IPv6"), // no change
		series("kubeproxy_source_connected", "1x30 0x5 1x165"),
		series("kubeproxy_network_programming_duration_seconds_bucket", "0+60x200", "ip_family", "IPv4", "le", "1"),
		series("kubeproxy_network_programming_duration_seconds_bucket", "0+60x200", "ip_family", "IPv4", "le", "+Inf"),
		series("kubeproxy_rows_failing", "0x40 3x5 0x155", "ip_family", "IPv4"), series("kubeproxy_services_unresolved",
			"0x200", "ip_family", "IPv4"),
		series("kubeproxy_audit_mended_objects_total", "0x40 5x160", "ip_family", "IPv4"),
		series("kubeproxy_panics_total", "0x200", "ip_family", "IPv4"),
		series("kubeproxy_mode_info", "1x200", "mode", "nftables", "asked", "nftables"),
		series("kubeproxy_mode_info", "1x200", "mode", "iptables", "reason", "no nf_tables", "instance", "n2"),
		series("kubeproxy_contested_keys", "0x40 1x5 0x155", "ip_family", "IPv4"),
		series("kubeproxy_services_refused_addresses", "0x200", "ip_family", "IPv4"),
		series("kubeproxy_sync_proxy_rules_no_local_endpoints_total", "0x200", "ip_family", "IPv4", "traffic_policy",
			"internal"),
		series("kubeproxy_sync_proxy_rules_no_local_endpoints_total", "9x200", "ip_family", "IPv4", "traffic_policy",
			"external"),
		series("kubeproxy_conntrack_entries", "1000x200"), series("kubeproxy_conntrack_entries_limit", "262144x200"),
		series("kubeproxy_session_affinity_entries", "1000x200", "ip_family", "IPv4"),
		series("kubeproxy_session_affinity_entries_limit", "1048576x200", "ip_family", "IPv4"),
		series("kubeproxy_ebpf_programs_serving", "1x40 0x5 1x155", "ip_family", "IPv4"),
		series("kubeproxy_rules_overridden", "0x40 1x2 0x158"),
		series("kubeproxy_ebpf_sockets", "10x200", "ip_family", "IPv4"),
		series("kubeproxy_ebpf_sockets_limit", "1048576x200", "ip_family", "IPv4"),
		series("process_open_fds", "50x200"), series("process_max_fds", "1024x200"),
		series("process_resident_memory_bytes", fmt.Sprint(gib, "x200")), series("process_resident_memory_bytes",
			fmt.Sprint(gib, "x200"), "instance", "n2"),
		series("kubeproxy_userspace_refused_connections_total", "0+1x200", "ip_family", "IPv4", "protocol", "TCP"),
		series("kubeproxy_userspace_connections_total", "0+100x200", "ip_family", "IPv4", "protocol", "TCP"),
		series("kubeproxy_userspace_descriptor_shortages_total", "0x200", "ip_family", "IPv4", "protocol", "TCP"),
	}
}

func faultsOf() []fault {
	v4 := "IPv4"
	bucket := func(le, values string) string {
		return series("kubeproxy_network_programming_duration_seconds_bucket", values, "ip_family", v4, "le", le)
	}
	one := func(l map[string]string) []map[string]string { return []map[string]string{l} }
	return []fault{
		{"KubeProxyAllDown", []string{series("up", "1x5 0x60")}, "10m", "12m", one(map[string]string{})},
		{"KubeProxyAllDown", []string{`up{job="node"} 1x60`}, "4m", "6m", one(map[string]string{})},
		{"KubeProxyDown", []string{series("up", "1x5 0x60"), series("up", "1x60", "instance", "n2")}, "15m", "17m",
			one(node("n1"))},
		{"KubeProxyRestarts", []string{series("process_start_time_seconds", "0+60x60")}, "3m", "10m", one(node("n1"))},
		// The kernel refuses from the fifth minute on, while changes keep arriving; and a case
		// without changes after the refused one.
		{"KubeProxyRulesStale", []string{series(lastOf, "0+60x5 300x60", "ip_family", v4),
			series(queuedOf, "0+60x60", "ip_family", v4)}, "9m", "12m", one(node("n1", "ip_family", v4))},
		{"KubeProxyRulesStale", []string{series(lastOf, "0+60x5 300x60", "ip_family", v4),
			series(queuedOf, "0+60x5 301x60", "ip_family", v4)}, "9m", "12m", one(node("n1", "ip_family", v4))},
		{"KubeProxyRulesStale", []string{series(lastOf, "0x60", "ip_family", v4), series(queuedOf, "1x60", "ip_family",
			v4)}, "5m", "7m", one(node("n1", "ip_family", v4))},
		{"KubeProxySourceDisconnected", []string{series("kubeproxy_source_connected", "1x5 0x60")}, "15m", "17m",
			one(node("n1"))},
		{"KubeProxyNodeProblem", []string{series("kubeproxy_node_problems", "0x5 1x60", "reason", "ip-forward",
			"severity", "error")}, "15m", "17m", one(node("n1", "reason", "ip-forward", "severity", "error"))},
		{"KubeProxySlowProgramming", []string{bucket("1", "0x60"), bucket("30", "0+1x60"), bucket("60", "0+60x60"),
			bucket("+Inf", "0+60x60")}, "14m", "20m", one(node("n1", "ip_family", v4))},
		{"KubeProxyRowsRefused", []string{series("kubeproxy_rows_failing", "0x5 1x60", "ip_family", v4)}, "15m", "17m",
			one(node("n1", "ip_family", v4))},
		{"KubeProxyRowsRefused", []string{series("kubeproxy_services_unresolved", "0x5 1x60", "ip_family", v4)}, "15m",
			"17m", one(node("n1", "ip_family", v4))},
		{"KubeProxyDrift", []string{series("kubeproxy_audit_mended_objects_total", "0+1x120", "ip_family", v4)}, "55m",
			"65m", one(node("n1", "ip_family", v4))},
		{"KubeProxyPanics", []string{series("kubeproxy_panics_total", "0x5 1x60", "ip_family", v4)}, "5m", "7m",
			one(node("n1", "ip_family", v4))},
		{"KubeProxyModeFallback", []string{series("kubeproxy_mode_info", "1x60", "mode", "iptables", "asked",
			"nftables", "reason", "no nf_tables")}, "14m", "16m",
			one(node("n1", "mode", "iptables", "asked", "nftables", "reason", "no nf_tables"))},
		{"KubeProxyProgramsOff", []string{series("kubeproxy_ebpf_programs_serving", "1x5 0x60", "ip_family", v4)},
			"15m", "22m", one(node("n1", "ip_family", v4))},
		{"KubeProxyRulesOverridden", []string{series("kubeproxy_rules_overridden", "0x5 1x60")}, "9m", "12m",
			one(node("n1"))},
		{"KubeProxySocketsNearlyFull", []string{series("kubeproxy_ebpf_sockets", "95x60", "ip_family", v4),
			series("kubeproxy_ebpf_sockets_limit", "100x60", "ip_family", v4)}, "14m", "16m",
			one(node("n1", "ip_family", v4))},
		{"KubeProxyContestedKeys", []string{series("kubeproxy_contested_keys", "2x60", "ip_family", v4),
			series("kubeproxy_contested_keys", "2x60", "ip_family", v4, "instance", "n2")}, "14m", "16m",
			one(map[string]string{"job": "kube-proxy", "ip_family": v4})},
		{"KubeProxyAddressesRefused", []string{series("kubeproxy_services_refused_addresses", "2x60", "ip_family", v4)},
			"14m", "16m", one(map[string]string{"job": "kube-proxy", "ip_family": v4})},
		{"KubeProxyNoLocalEndpoints", []string{series("kubeproxy_sync_proxy_rules_no_local_endpoints_total", "1x60",
			"ip_family", v4, "traffic_policy", "internal")}, "14m", "16m",
			one(node("n1", "ip_family", v4, "traffic_policy", "internal"))},
		{"KubeProxyConntrackNearlyFull", []string{series("kubeproxy_conntrack_entries", "10x5 95x60"),
			series("kubeproxy_conntrack_entries_limit", "100x70")}, "10m", "12m", one(node("n1"))},
		{"KubeProxyAffinityNearlyFull", []string{series("kubeproxy_session_affinity_entries", "95x60", "ip_family", v4),
			series("kubeproxy_session_affinity_entries_limit", "100x60", "ip_family", v4)}, "14m", "16m",
			one(node("n1", "ip_family", v4))},
		{"KubeProxyDescriptorsNearlyGone", []string{series("process_open_fds", "90x60"),
			series("process_max_fds", "100x60")}, "9m", "11m", one(node("n1"))},
		{"KubeProxyMemory", []string{series("process_resident_memory_bytes", fmt.Sprint(gib, "x60")),
			series("process_resident_memory_bytes", fmt.Sprint(gib/8, "x60"), "instance", "n2"),
			series("process_resident_memory_bytes", fmt.Sprint(gib/8, "x60"), "instance", "n3")}, "29m", "31m",
			one(node("n1"))},
		{"KubeProxyMemory", []string{series("process_resident_memory_bytes", fmt.Sprint(5*gib, "x60"))}, "29m", "31m",
			one(node("n1"))},
		{"KubeProxyUserspaceRefuses", []string{series("kubeproxy_userspace_refused_connections_total", "0+10x60",
			"ip_family", v4, "protocol", "TCP"),
			series("kubeproxy_userspace_connections_total", "0+100x60", "ip_family", v4, "protocol", "TCP")}, "9m",
			"12m", one(node("n1"))},
		{"KubeProxyUserspaceShortage", []string{series("kubeproxy_userspace_descriptor_shortages_total", "0+1x60",
			"ip_family", v4, "protocol", "TCP")}, "4m", "8m", one(node("n1"))},
	}
}

// promtool checks the rules. Every alert fires in a simulated fault, not before its time, and none
// on a healthy node.
func TestAlertsFire(t *testing.T) {
	needPrometheus(t)
	file, alerts := readAlerts(t)
	if out, err := exec.Command("promtool", "check", "rules", alertsFile).CombinedOutput(); err != nil {
		t.Fatalf("promtool check rules: %v\n%s", err, out)
	}
	severity := map[string]string{}
	for _, a := range alerts {
		severity[a.Alert] = a.Labels["severity"]
	}
	// Annotations are for people; the test is about the time of alerts.
	for i := range file.Groups {
		for k := range file.Groups[i].Rules {
			file.Groups[i].Rules[k].Annotations = nil
		}
	}
	type expected struct {
		Labels map[string]string `json:"exp_labels"`
	}
	type check struct {
		Time   string     `json:"eval_time"`
		Alert  string     `json:"alertname"`
		Alerts []expected `json:"exp_alerts"`
	}
	type input struct {
		Series string `json:"series"`
		Values string `json:"values"`
	}
	type testCase struct {
		Name     string  `json:"name"`
		Interval string  `json:"interval"`
		Input    []input `json:"input_series"`
		Checks   []check `json:"alert_rule_test"`
	}
	inputs := func(all []string) (in []input) {
		for _, s := range all {
			at := strings.Index(s, "} ") + 1
			in = append(in, input{s[:at], strings.TrimSpace(s[at:])})
		}
		return in
	}
	var cases []testCase
	well := testCase{Name: "healthy", Interval: "1m", Input: inputs(healthy())}
	covered := map[string]bool{}
	for _, a := range alerts {
		for _, at := range []string{"0m", "5m", "33m", "44m", "70m", "100m", "180m"} {
			well.Checks = append(well.Checks, check{Time: at, Alert: a.Alert, Alerts: []expected{}})
		}
	}
	cases = append(cases, well)
	for _, f := range faultsOf() {
		covered[f.alert] = true
		c := testCase{Name: f.alert, Interval: "1m", Input: inputs(f.series)}
		fires := check{Time: f.fires, Alert: f.alert}
		for _, l := range f.labels {
			l["severity"] = severity[f.alert]
			fires.Alerts = append(fires.Alerts, expected{l})
		}
		c.Checks = []check{{Time: f.quiet, Alert: f.alert, Alerts: []expected{}}, fires}
		cases = append(cases, c)
	}
	for _, a := range alerts {
		if !covered[a.Alert] {
			t.Errorf("no fault has %s fire", a.Alert)
		}
	}
	run := func(cases []testCase) (string, error) {
		dir := t.TempDir()
		rules, err := yaml.Marshal(file)
		must(t, err)
		tests, err := yaml.Marshal(map[string]any{"rule_files": []string{"rules.yaml"}, "evaluation_interval": "1m",
			"tests": cases})
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, "rules.yaml"), rules, 0o644))
		must(t, os.WriteFile(filepath.Join(dir, "tests.yaml"), tests, 0o644))
		out, err := exec.Command("promtool", "test", "rules", filepath.Join(dir, "tests.yaml")).CombinedOutput()
		return string(out), err
	}
	if out, err := run(cases); err != nil {
		t.Errorf("promtool test rules: %v\n%s", err, out)
	}
	// A test must be able to fail: an alert that is expected a minute too early is not firing.
	early := cases[len(cases)-1]
	early.Checks = []check{early.Checks[1]}
	early.Checks[0].Time = "0m"
	if _, err := run([]testCase{early}); err == nil {
		t.Error("promtool finds an alert at once that takes minutes")
	}
}
