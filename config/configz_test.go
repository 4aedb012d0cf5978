package config

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kube-proxy/plane/all"
)

// HT-24: the object is of the published type, with kind and version; values are the interpreted
// ones, durations are readable, and a proxy accepts it as its file.
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
	object, err := c.Configz()
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"apiVersion":"kubeproxy.config.k8s.io/v1alpha1"`, `"kind":"KubeProxyConfiguration"`,
		`"mode":"iptables"`, `"hostnameOverride":"n1"`, `"nodePortAddresses":["10.0.0.0/8","primary"]`,
		`"masqueradeBit":7`, `"syncPeriod":"45s"`, `"healthzBindAddress":"0.0.0.0:10256"`, `"oomScoreAdj":-999`,
		`"conntrack":{`, `"maxPerCore":32768`, `"udpIdleTimeout":"250ms"`, `"userspaceFallback":true`,
		`"nodeEndpoints":true`, `"windowsIgnoreSourceRanges":false`, `"winkernel":{`, `"strictARP":false`,
		`"adminSocket":"/run/kube-proxy/admin.sock"`, `"serviceMetrics":0`, `"externalIPCIDRs":null`,
		`"maxNamespaceObjects":4194304`,
	} {
		if !strings.Contains(string(data), want) {
			t.Errorf("want %s in %s", want, data)
		}
	}
	var published v1alpha1.KubeProxyConfiguration
	if err := json.Unmarshal(data, &published); err != nil || published.Mode != "iptables" ||
		published.IPTables.SyncPeriod.Duration != 45*time.Second {
		t.Errorf("%v %+v", err, published)
	}
	again := NewOptions(all.Modes())
	again.ConfigFile = "configz"
	again.readConfig = func(string) ([]byte, error) { return data, nil }
	if c, err := again.Complete(nil); err != nil || c.NodeName != "n1" || len(again.Warnings()) > 0 {
		t.Errorf("as a file: %v, %q", err, again.Warnings())
	}
}

// A file for another system can be written (FL-06).
func TestWriteForAnotherSystem(t *testing.T) {
	c, err := complete(t, testCase{args: []string{"--proxy-mode=kernelspace", "--write-config-to=x"}})
	if err != nil {
		t.Fatal(err)
	}
	if data, err := c.YAML(); err != nil || !strings.Contains(string(data), "\nmode: kernelspace\n") {
		t.Errorf("%v\n%s", err, data)
	}
}
