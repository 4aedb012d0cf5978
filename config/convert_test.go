package config

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"kube-proxy/plane/all"
)

// oldProxies reads the command lines and files of testdata/manifests.txt.
func oldProxies(t testing.TB) map[string]*oldProxy {
	t.Helper()
	data, err := os.ReadFile("testdata/manifests.txt")
	if err != nil {
		t.Fatal(err)
	}
	proxies := map[string]*oldProxy{}
	for paragraph := range strings.SplitSeq(strings.TrimSpace(string(data)), "\n\n") {
		p := &oldProxy{}
		for line := range strings.Lines(paragraph) {
			switch mark, text, _ := strings.Cut(strings.TrimRight(line, "\n"), " "); mark {
			case "#":
				proxies[text] = p
			case "$":
				p.args = append(p.args, strings.Fields(text)...)
			case "|":
				p.file = append(p.file, text+"\n"...)
			}
		}
	}
	return proxies
}

type oldProxy struct {
	args []string
	file []byte
}

// Every known old proxy is converted to a file for every mode, which loads strictly and has the
// same meaning: Convert fails otherwise. In its own mode nothing is lost: the whole configuration
// is the same.
func TestConvertOldProxies(t *testing.T) {
	for name, p := range oldProxies(t) {
		for _, to := range []string{"", "nftables", "ipvs"} {
			c, err := Convert(all.Modes(), p.args, p.file, to)
			if err != nil {
				t.Errorf("%s, to %q: %v", name, to, err)
				continue
			}
			if len(c.Unknown) > 0 {
				t.Errorf("%s: fields that some version had are not known: %+v", name, c.Unknown)
			}
			again, err := Convert(all.Modes(), nil, c.YAML, "")
			if err != nil || string(again.YAML) != string(c.YAML) || len(again.Dropped)+len(again.Carried) > 0 {
				t.Errorf("%s, to %q: what was written becomes (%v)\n%s\nwas\n%s", name, to, err, again.YAML, c.YAML)
			}
			if to != "" && again.From != to {
				t.Errorf("%s: asks for mode %q, want %q", name, again.From, to)
			}
		}
	}
}

func TestConvert(t *testing.T) {
	const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	for _, c := range []struct {
		name, args, file, to string
		yaml                 string // without the head, or
		err                  string
		says                 string // a part of the other messages
	}{
		{name: "nothing is said"},
		{name: "defaults say nothing", args: "--iptables-masquerade-bit=14 --conntrack-min=131072", file: ""},
		{name: "settings of iptables are carried to nftables", file: head + "mode: iptables\niptables: " +
			"{masqueradeAll: true, masqueradeBit: 13, minSyncPeriod: 5s, syncPeriod: 1m}", to: "nftables",
			yaml: "mode: nftables\nnftables:\n  masqueradeAll: true\n  masqueradeBit: 13\n  minSyncPeriod: 5s\n" +
				"  syncPeriod: 1m0s\nnodePortAddresses:\n- 0.0.0.0/0\n- ::/0\n- 127.0.0.0/8\n",
			says: "{iptables.masqueradeBit nftables.masqueradeBit 13}"},
		{name: "settings of ipvs are dropped", file: head + "mode: ipvs\nipvs: {scheduler: lc, strictARP: true, " +
			"minSyncPeriod: 5s}\niptables: {masqueradeAll: true}", to: "iptables",
			yaml: "iptables:\n  masqueradeAll: true\n  minSyncPeriod: 5s\nmode: iptables\n",
			says: "{ipvs.scheduler only in ipvs}"},
		{name: "what nftables did, iptables does", file: head + "mode: nftables", to: "iptables",
			yaml: "mode: iptables\nnodePortAddresses:\n- primary\n"},
		{name: "addresses that were asked for stay", file: head + "mode: iptables\nnodePortAddresses: [192.0.2.0/24]",
			to: "nftables", yaml: "mode: nftables\nnodePortAddresses:\n- 192.0.2.0/24\n"},
		{name: "another value of the mode's own wins", file: head + "mode: iptables\niptables: {minSyncPeriod: 5s}\n" +
			"nftables: {minSyncPeriod: 7s}", to: "nftables",
			yaml: "mode: nftables\nnftables:\n  minSyncPeriod: 7s\nnodePortAddresses:\n- 0.0.0.0/0\n- ::/0\n- " +
				"127.0.0.0/8\n"},
		{name: "a server that is off", args: "--metrics-port=0", yaml: "metricsBindAddress: none\n"},
		{name: "what a file takes for nothing", args: "--iptables-min-sync-period=0",
			yaml: "iptables:\n  minSyncPeriod: 1ns\n"},
		{name: "flags that no field stands for", args: "--master=http://a --log-dir=/l " +
			"--azure-container-registry-config=x", says: "flags [--master=http://a --log-dir=/l]"},
		{name: "gates of the past", args: "--feature-gates=NFTablesProxyMode=true,SupportIPVSProxyMode=true",
			says: "featureGates.SupportIPVSProxyMode"},
		{name: "near names", file: head + "clusterCidr: 10.0.0.0/8\nscheduler: rr\n" +
			"iptables: {masqerade: 1, minSyncPeriods: 1s}\nzzz: 1", says: "{clusterCidr clusterCIDR} " +
			"{iptables.masqerade } {iptables.minSyncPeriods iptables.minSyncPeriod} {scheduler ipvs.scheduler} {zzz }"},
		{name: "fields of three versions", file: "apiVersion: componentconfig/v1alpha1\nkind: " +
			"KubeProxyConfiguration\niptablesMasqueradeBit: 3\nudpTimeoutMilliseconds: 300\nconntrack: {max: 7}\n" +
			"nftables: {minSyncPeriod: 2s}",
			yaml: "conntrack:\n  maxPerCore: 1\n  min: 7\niptables:\n  masqueradeBit: 3\nudpIdleTimeout: 300ms\n",
			says: "iptablesMasqueradeBit is read as iptables.masqueradeBit"},
		{name: "udpIdleTimeout of mode userspace", file: head + "mode: userspace\nudpIdleTimeout: 2s\nuserspace: " +
			"{drainTimeout: 7s}", yaml: "mode: userspace\nudpIdleTimeout: 2s\nuserspace:\n  drainTimeout: 7s\n"},
		{name: "a wrong value", file: head + "clusterCIDR: x", err: "KubeProxyConfiguration.clusterCIDR: \"x\": want " +
			"a CIDR"},
		{name: "a wrong type", file: head + "iptables: {masqueradeBit: many}",
			err: "KubeProxyConfiguration.iptables.masqueradeBit"},
		{name: "no such flag", args: "--no-such-flag --cluster-cidr=x", err: "unknown flag: --no-such-flag"},
		{name: "no such mode", to: "magic", err: "mode"},
		{name: "a file that is not given", args: "--config=/var/lib/kube-proxy/config.conf",
			err: "its file is missing"},
		{name: "arguments too many", args: "serve", err: "does not take any arguments"},
		{name: "another kind", file: "apiVersion: v1\nkind: Pod", err: "its apiVersion is \"v1\" and its kind \"Pod\""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var file []byte
			if c.file != "" {
				file = []byte(c.file)
			}
			got, err := Convert(all.Modes(), strings.Fields(c.args), file, c.to)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("%v, want %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			yaml := strings.ReplaceAll(strings.ReplaceAll(string(got.YAML),
				"apiVersion: kubeproxy.config.k8s.io/v1alpha1\n", ""), "kind: KubeProxyConfiguration\n", "")
			if yaml != c.yaml && (c.yaml != "" || c.says == "") {
				t.Errorf("got\n%s\nwant\n%s", yaml, c.yaml)
			}
			if says := fmt.Sprint(got.Carried, got.Dropped, got.Unknown, " flags ", got.Flags,
				strings.Join(got.Warnings, "\n")); !strings.Contains(says, c.says) {
				t.Errorf("reported %s\nwant %s", says, c.says)
			}
		})
	}
}

// Every file and command line is converted, or rejected with a reason; written files are always
// valid.
func FuzzConvert(f *testing.F) {
	for _, p := range oldProxies(f) {
		f.Add(strings.Join(p.args, " "), string(p.file), "nftables")
	}
	f.Fuzz(func(t *testing.T, args, file, to string) {
		c, err := Convert(all.Modes(), strings.Fields(args), []byte(file), to)
		if err != nil {
			if strings.Contains(err.Error(), "does not load") {
				t.Errorf("%v", err)
			}
			return
		}
		if again, err := Convert(all.Modes(), nil, c.YAML, ""); err != nil || !slices.Equal(again.YAML, c.YAML) {
			t.Errorf("what was written becomes (%v)\n%+v\nwas\n%s", err, again, c.YAML)
		}
	})
}
