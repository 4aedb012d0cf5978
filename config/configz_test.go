package config

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"kube-proxy/plane/all"
)

// HT-24: fields have the names of the Go types, values are the interpreted ones, durations are
// readable.
func TestConfigz(t *testing.T) {
	o := NewOptions(all.Modes())
	set := pflag.NewFlagSet("kube-proxy", pflag.ContinueOnError)
	o.AddFlags(set)
	if err := set.Parse([]string{"--proxy-mode=iptables", "--iptables-sync-period=45s",
		"--nodeport-addresses=10.0.0.0/8,primary", "--hostname-override=n1",
		"--iptables-masquerade-bit=7"}); err != nil {
		t.Fatal(err)
	}
	c, err := o.Complete(nil)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(c.Configz())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"Mode":"iptables"`, `"HostnameOverride":"n1"`, `"NodePortAddresses":["10.0.0.0/8","primary"]`,
		`"MasqueradeBit":7`,
		`"SyncPeriod":"45s"`, `"HealthzBindAddress":"0.0.0.0:10256"`, `"OOMScoreAdj":-999`, `"Conntrack":{`,
		`"MaxPerCore":32768`,
		`"UDPIdleTimeout":"250ms"`, `"UserspaceFallback":true`, `"NodeEndpoints":true`,
		`"WindowsIgnoreSourceRanges":false`, `"Winkernel":{`,
		`"StrictARP":false`, `"AdminSocket":"/run/kube-proxy/admin.sock"`, `"ServiceMetrics":0`, `"ExternalIPCIDRs":[]`,
		`"MaxNamespaceObjects":4194304`,
	} {
		if !strings.Contains(string(data), want) {
			t.Errorf("want %s in %s", want, data)
		}
	}
	if strings.Contains(string(data), "TypeMeta") || strings.Contains(string(data), "apiVersion") {
		t.Errorf("the type's own name is no setting: %s", data)
	}
}
