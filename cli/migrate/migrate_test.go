package migrate

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kube-proxy/config"
	"kube-proxy/mode"
	"kube-proxy/plane/all"
)

const kubeadm = "../../test/testdata/kubeadm/"

func file(t testing.TB, name string) Input {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return Input{Name: filepath.Base(name), Data: data}
}

func convert(to string, inputs ...Input) (*Result, error) {
	p, err := Read(all.Modes(), inputs)
	if err != nil {
		return nil, err
	}
	return Convert(all.Modes(), p, to)
}

// convertText converts one text, for the mode to.
func convertText(to, text string) (*Result, error) {
	return convert(to, Input{Name: "in", Data: []byte(text)})
}

// says reports whether a statement begins with "severity about: part of the difference".
func (r *Result) says(want string) bool {
	return slices.ContainsFunc(r.Statements, func(s Statement) bool {
		return strings.Contains(fmt.Sprintf("%s %s: %s", s.Severity, s.About, s.Differs), want)
	})
}

// kubeadm's own files, in one input or several, as written and as kubectl prints them in a List.
func TestKubeadm(t *testing.T) {
	cm, ds, rbac := file(t, kubeadm+"configmap.yaml"), file(t, kubeadm+"daemonset.yaml"), file(t, kubeadm+"rbac.yaml")
	one := Input{Name: "all", Data: slices.Concat(rbac.Data, []byte("\n"), cm.Data, []byte("\n"), ds.Data,
		[]byte("\n---\n# the end\n"))}
	const usual = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nclientConnection:\n" +
		"  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf\nclusterCIDR: 10.244.0.0/16\n" +
		"kind: KubeProxyConfiguration\nmode: iptables\n"
	for name, inputs := range map[string][]Input{"three files": {rbac, cm, ds}, "the other way round": {ds, cm, rbac},
		"one file": {one}} {
		r, err := convert("", inputs...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if string(r.Config) != usual || !slices.Equal(r.Flags, []string{"--hostname-override=$(NODE_NAME)"}) {
			t.Errorf("%s: flags %q\n%s", name, r.Flags, r.Config)
		}
		for _, want := range []string{"change DaemonSet kube-system/kube-proxy, container kube-proxy: image: it is " +
			"registry.example/kube-proxy:v1.37.2",
			"info DaemonSet kube-system/kube-proxy, container kube-proxy: securityContext: the container needs fewer " +
				"privileges", "info RoleBinding kube-system/kube-proxy: it was ignored", "info chains KUBE-…"} {
			if !r.says(want) {
				t.Errorf("%s: it does not say %q: %+v", name, want, r.Statements)
			}
		}
		for _, s := range r.Statements {
			if s.Severity == Missing || s.About == "" || s.Differs == "" || !strings.HasSuffix(s.Why, ".") ||
				!strings.HasSuffix(s.Do, ".") {
				t.Errorf("%s: %+v", name, s)
			}
		}
	}
	if r, err := convert("", cm); err != nil || string(r.Config) != usual || len(r.Flags) > 0 {
		t.Errorf("the ConfigMap alone: %v\n%+v", err, r)
	}
	cm.Data = bytes.Replace(cm.Data, []byte("mode: iptables"), []byte(`mode: ""`), 1)
	if r, err := convert("", cm); err != nil || !r.says("info mode: no mode is configured") {
		t.Errorf("the ConfigMap of kubeadm 1.36: %v\n%+v", err, r)
	}
}

// Every mode to every other: a configuration, and statements about the known differences.
func TestModes(t *testing.T) {
	for _, c := range []struct{ given, to, want string }{
		{"--proxy-mode=iptables --masquerade-all", "nftables", "info nftables.masqueradeAll: the new configuration " +
			"sets true, the value of iptables.masqueradeAll"},
		{"--proxy-mode=iptables", "nftables", "change nodePortAddresses: the new configuration sets 0.0.0.0/0,::/0"},
		{"--proxy-mode=iptables", "nftables", "change NodePorts on 127.0.0.1"},
		{"--proxy-mode=iptables", "nftables", "change host firewalls"},
		{"--proxy-mode=nftables", "nftables", "info nftables.minSyncPeriod: the default is 0"},
		{"--proxy-mode=nftables", "iptables", "change nodePortAddresses: the new configuration sets primary"},
		{"--proxy-mode=ipvs --ipvs-scheduler=lc --ipvs-strict-arp --ipvs-tcp-timeout=1h", "nftables",
			"change ipvs.scheduler: endpoints get equal shares"},
		{"--proxy-mode=ipvs --ipvs-scheduler=lc --ipvs-strict-arp --ipvs-tcp-timeout=1h", "nftables",
			"change ipvs.strictARP"},
		{"--proxy-mode=ipvs --ipvs-scheduler=lc --ipvs-strict-arp --ipvs-tcp-timeout=1h", "iptables",
			"change ipvs.tcpTimeout"},
		{"--proxy-mode=ipvs --ipvs-scheduler=lc", "iptables", "info ipvs.scheduler: the new configuration omits it"},
		{"--proxy-mode=ipvs", "", "info mode: if mode ipvs cannot run, iptables runs instead"},
		{"--proxy-mode=iptables", "ipvs", "change kube-ipvs0: service addresses become addresses of the node"},
		{"--proxy-mode=iptables", "userspace", "missing client addresses"},
		{"--proxy-mode=userspace", "iptables", "change unreachable endpoints"},
		{"--proxy-mode=iptables --resource-container=/x", "", "info --resource-container: it has no effect"},
		{"--proxy-mode=iptables --ipvs-scheduler=rr", "", "--ipvs-scheduler: without effect in mode iptables"},
		{"--proxy-mode=iptables --feature-gates=SupportIPVSProxyMode=true", "",
			"featureGates.SupportIPVSProxyMode: the new configuration omits it"},
		{"--proxy-mode=iptables --healthz-port=0", "", "info rolling update"},
		{"--master=https://a --v=2", "", "info --master=https://a: it stays on the command line"},
	} {
		r, err := convert(c.to, Input{Name: "flags", Flags: strings.Fields(c.given)})
		if err != nil {
			t.Errorf("%s to %q: %v", c.given, c.to, err)
		} else if !r.says(c.want) {
			t.Errorf("%s to %q: it does not say %q", c.given, c.to, c.want)
			for _, s := range r.Statements {
				t.Logf("%s %s: %s", s.Severity, s.About, s.Differs)
			}
		}
	}
	// No statement is about other modes.
	r, err := convert("", Input{Name: "flags", Flags: []string{"--proxy-mode=iptables"}})
	if err != nil || r.says("ipvs") || r.says("nftables") || r.says("127.0.0.1") {
		t.Errorf("%v: %+v", err, r)
	}
}

func TestCilium(t *testing.T) {
	const head = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cilium-config, namespace: kube-system}\ndata:\n"
	r, err := convertText("", head+`
  kube-proxy-replacement: "true"
  kube-proxy-replacement-healthz-bind-address: 0.0.0.0:10256
  cluster-pool-ipv4-cidr: 10.0.0.0/8
  nodeport-addresses: "192.0.2.0/24 198.51.100.0/24"
  bpf-lb-mode: dsr
  bpf-lb-algorithm: maglev
  enable-host-port: "true"
  enable-l2-announcements: "false"
  debug: "false"
`)
	if err != nil {
		t.Fatal(err)
	}
	// 0.0.0.0:10256 is the default, and is left out.
	if want := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nclusterCIDR: 10.0.0.0/8\n" +
		"kind: KubeProxyConfiguration\nmode: nftables\nnodePortAddresses:\n- 192.0.2.0/24\n- 198.51.100.0/24\n"; string(
		r.Config) != want {
		t.Errorf("got\n%s\nwant\n%s", r.Config, want)
	}
	for _, want := range []string{"change kube-proxy-replacement: it is true: it must become false",
		"missing bpf-lb-mode: it is dsr", "change bpf-lb-algorithm: it is maglev", "missing enable-host-port",
		"change order: the proxy must serve before"} {
		if !r.says(want) {
			t.Errorf("it does not say %q: %+v", want, r.Statements)
		}
	}
	if r.says("l2-announcements") || r.says("debug") {
		t.Errorf("it says what does not matter: %+v", r.Statements)
	}
	if _, err := convertText("", head+"  kube-proxy-replacement: \"false\"\n"); err == nil ||
		!strings.Contains(err.Error(), "kube-proxy-replacement is \"false\"") {
		t.Errorf("without the replacement: %v", err)
	}
	_, err = convertText("", head+"  kube-proxy-replacement: \"true\"\n  nodeport-addresses: 192.0.2.0/99\n")
	if err == nil || !strings.HasPrefix(err.Error(),
		"Cilium's ConfigMap: KubeProxyConfiguration.nodePortAddresses: \"192.0.2.0/99\"") {
		t.Errorf("an address that is none: %v", err)
	}
	if r, err := convertText("iptables", head+"  kube-proxy-replacement: strict\n"); err != nil ||
		!strings.Contains(string(r.Config), "mode: iptables") || !strings.Contains(string(r.Config),
		"detectLocalMode: NodeCIDR") {
		t.Errorf("to iptables: %v\n%+v", err, r)
	}
}

// Command lines in many text forms.
func TestCommandLines(t *testing.T) {
	const want = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nclusterCIDR: 10.0.0.0/8\n" +
		"kind: KubeProxyConfiguration\nmode: ipvs\n"
	for name, text := range map[string]string{
		"flags": "--proxy-mode=ipvs --cluster-cidr=10.0.0.0/8",
		"lines of a shell": "# how it runs\n/usr/local/bin/kube-proxy \\\n  --proxy-mode ipvs \\\n " +
			" --cluster-cidr=\"10.0.0.0/8\" 2>&1 | tee /var/log/kube-proxy.log\n",
		"hyperkube": "hyperkube proxy --proxy-mode=ipvs --cluster-cidr=10.0.0.0/8",
		"an environment file": "# kubernetes proxy config\nKUBE_PROXY_ARGS=\"--proxy-mode=ipvs \\\n " +
			" --cluster-cidr=10.0.0.0/8\"\n",
		"a unit of systemd": "[Unit]\nDescription=x\n[Service]\nExecStart=/opt/kube-proxy --proxy-mode=ipvs " +
			"\\\n  --cluster-cidr=10.0.0.0/8 \\\n  --hostname-override=%H\nRestart=always\n",
		"a shell in a Pod": "kind: Pod\nmetadata: {name: kube-proxy-n1}\nspec:\n  hostNetwork: true\n" +
			"  containers:\n  - name: kube-proxy\n    securityContext: {privileged: true}\n" +
			"    command: [/bin/sh, -c, 'exec kube-proxy --proxy-mode=ipvs --cluster-cidr=10.0.0.0/8 " +
			"1>>/var/log/kube-proxy.log 2>&1']\n",
		"a shell with other letters": "kind: Pod\nmetadata: {name: kube-proxy-n1}\nspec:\n  containers:\n" +
			"  - name: kube-proxy\n    command: [bash, -ec]\n" +
			"    args: ['ulimit -n 9; exec kube-proxy --proxy-mode=ipvs --cluster-cidr=10.0.0.0/8; sleep 3']\n",
		"that of Windows before that of Linux": "kind: DaemonSet\nmetadata: {name: kube-proxy-windows}\n" +
			"spec: {template: {spec: {nodeSelector: {kubernetes.io/os: windows}, containers: [{name: kube-proxy, " +
			"command: [powershell, -Command, kube-proxy.exe --proxy-mode=kernelspace]}]}}}\n" +
			"---\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: kube-proxy, command: [kube-proxy, " +
			"--proxy-mode=ipvs, '--cluster-cidr=10.0.0.0/8']}]}\n",
		"a Pod in a List": "kind: List\nitems:\n- kind: Service\n  metadata: {name: x}\n- kind: Pod\n" +
			"  metadata: {name: p}\n  spec: {containers: [{name: other, command: [sleep]}, {name: proxy, command: " +
			"[/usr/local/bin/kube-proxy], args: [--proxy-mode=ipvs, '--cluster-cidr=10.0.0.0/8', " +
			"'--hostname-override=$(NODE_NAME)']}]}\n",
	} {
		r, err := convert("", Input{Name: name, Data: []byte(text)})
		if err != nil || string(r.Config) != want {
			t.Errorf("%s: %v\n%+v", name, err, r)
		}
	}
	r, err := convert("nftables", Input{Name: "p", Data: []byte("kind: Pod\nmetadata: {name: kube-proxy-n1}\nspec:\n" +
		"  containers:\n  - {name: kube-proxy, image: x, command: [kube-proxy]}\n")})
	if err != nil || !r.says("missing p: ") && !r.says("hostNetwork") ||
		!r.says("the container lacks the capability NET_ADMIN") {
		t.Errorf("a pod that cannot: %v %+v", err, r)
	}
}

// TestProgramsThatOurImageLacks: a shell (GKE) and go-runner (kops) are missing, with the command
// in their place; the program itself is not.
func TestProgramsThatOurImageLacks(t *testing.T) {
	for command, want := range map[string]string{
		`[/bin/sh, -c, 'exec kube-proxy --v=2 --proxy-mode=ipvs ` +
			`1>>/var/log/kube-proxy.log 2>&1']`: "missing p: command: it runs /bin/sh",
		`[/go-runner, --log-file=/var/log/kube-proxy.log, ` +
			`/usr/local/bin/kube-proxy, --v=2]`: "missing p: command: it runs /go-runner",
		`[/hyperkube, kube-proxy, --v=2]`:    "missing p: command: it runs /hyperkube",
		`[/usr/local/bin/kube-proxy, --v=2]`: "",
		`[kube-proxy, --v=2]`:                "",
		`[]`:                                 "",
	} {
		r, err := convert("", Input{Name: "p", Data: []byte("kind: Pod\nmetadata: {name: kube-proxy-n1}\nspec:\n" +
			"  containers:\n  - {name: kube-proxy, command: " + command + "}\n")})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(r.Statements, func(s Statement) bool { return strings.HasSuffix(s.About, ": command") })
		switch {
		case i < 0 && want == "":
		case i < 0 || want == "":
			t.Errorf("%s: %+v, want %q", command, r.Statements, want)
		default:
			s := r.Statements[i]
			said := string(s.Severity) + " p: command: " + s.Differs
			if !strings.HasPrefix(said, want) ||
				!strings.Contains(s.Do, `["/usr/local/bin/kube-proxy","--config=/var/lib/kube-proxy/config.conf"`) ||
				strings.Contains(s.Do, "sh") {
				t.Errorf("%s: %s; %s", command, said, s.Do)
			}
		}
	}
}

// Values that Kubernetes or a shell fills in stay on the command line, unless they would have no
// effect beside the file: a statement reports that, and the user has to write them (FL-03).
func TestFilledIn(t *testing.T) {
	const args = "kube-proxy --hostname-override $(NODE_NAME) --cluster-cidr $(CIDR) --proxy_mode=${MODE} " +
		"--healthz-port=$PORT --kubeconfig=$(KC) --v=2"
	const stays = "[--hostname-override=$(NODE_NAME)]"
	r, err := convertText("", args)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(r.Flags); got != stays {
		t.Errorf("%s stay on the command line, want %s", got, stays)
	}
	for _, want := range []string{"info --hostname-override=$(NODE_NAME): it stays",
		"missing --cluster-cidr=$(CIDR): the new configuration lacks its value",
		"missing --proxy_mode=${MODE}: the new configuration lacks",
		"missing --healthz-port=$PORT: the new configuration lacks",
		"missing --kubeconfig=$(KC): the new configuration lacks"} {
		if !r.says(want) {
			t.Errorf("it does not say %q: %+v", want, r.Statements)
		}
	}
	// Beside a file it had no effect before.
	r, err = convert("", Input{Name: "line", Flags: []string{"--config=x", "--cluster-cidr=$(CIDR)",
		"--hostname-override=$(NODE_NAME)"}},
		Input{Name: "x", Data: []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n")})
	if err != nil || fmt.Sprint(r.Flags) != stays ||
		!r.says("info --cluster-cidr=$(CIDR): ignored, because --config is given") {
		t.Errorf("beside a file: %v %+v", err, r)
	}
}

// The programs of iptables need NET_RAW for rules that name ipsets: in mode ipvs always, in mode
// iptables if other programs have such rules.
func TestCapabilities(t *testing.T) {
	for _, c := range []struct{ add, to, want string }{
		{"NET_ADMIN", "ipvs", "missing kube-proxy-n1: the container lacks the capability NET_RAW"},
		{"NET_ADMIN", "iptables", "change kube-proxy-n1: the container lacks the capability NET_RAW"},
		{"NET_ADMIN", "nftables", ""},
		{"NET_ADMIN, CAP_NET_RAW", "ipvs", ""},
		{"ALL", "iptables", ""},
		{"NET_RAW", "nftables", "missing kube-proxy-n1: the container lacks the capability NET_ADMIN"},
	} {
		r, err := convertText(c.to, "kind: Pod\nmetadata: {name: kube-proxy-n1}\n"+
			"spec: {hostNetwork: true, containers: [{name: kube-proxy, command: [kube-proxy], securityContext: "+
			"{capabilities: {add: ["+c.add+"]}}}]}\n")
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, s := range r.Statements {
			if strings.Contains(s.Differs, "lacks the capability") {
				got += fmt.Sprintf("%s %s: %s", s.Severity, "kube-proxy-n1", s.Differs)
			}
		}
		if got != c.want {
			t.Errorf("%s to %s: %q, want %q", c.add, c.to, got, c.want)
		}
	}
}

// Bad input has a clear answer with the file and its fault.
func TestBadInput(t *testing.T) {
	configMap := func(data string) string {
		return "kind: ConfigMap\nmetadata: {name: kube-proxy, namespace: kube-system}\ndata:\n" + data
	}
	const head = "  config.conf: |\n    apiVersion: kubeproxy.config.k8s.io/v1alpha1\n" +
		"    kind: KubeProxyConfiguration\n"
	bomb := "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'k'; c++ {
		bomb += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c,", c-1), 10),
			","))
	}
	daemonSet, cm := string(file(t, kubeadm+"daemonset.yaml").Data), string(file(t, kubeadm+"configmap.yaml").Data)
	for _, c := range []struct{ name, text, want string }{
		{"an empty file", " \n", "in: it is empty: want a ConfigMap"},
		{"only comments", "# nothing\n---\n", "empty input"},
		{"a Deployment", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: kube-proxy}\n",
			"in: it is a Deployment: a kube-proxy runs on every node"},
		{"garbage", "{[%", "in: it is neither YAML nor a command line"},
		{"text", "hello world", "in: it is not a mapping of fields to values"},
		{"a list", "- a\n- b\n", "in: it is not a mapping of fields to values"},
		{"no kind", "mode: ipvs\n", "in: it has no kind"},
		{"binary", "\x7fELF\x00\x01", "in: it is not text"},
		{"not UTF-8", "a: \xff\xfe", "in: it is not text"},
		{"10 MB", strings.Repeat("a: b # and so on\n", 600000), "in: it is larger than 4 MiB"},
		{"a bomb", bomb, "in: it is neither YAML nor a command line: "},
		{"deeper than anything", strings.Repeat("[", 100000), "in: it is neither YAML nor a command line: "},
		{"a ConfigMap without config.conf", configMap("  other: x\n  kubeconfig.conf: y\n"),
			"ConfigMap kube-system/kube-proxy has no config.conf, and no other key with a KubeProxyConfiguration: it " +
				"has kubeconfig.conf, other"},
		{"a ConfigMap without keys", configMap("  {}\n"), "has no config.conf, and no other key with a " +
			"KubeProxyConfiguration: it has no keys"},
		{"a field of the wrong type", configMap(head + "    iptables: {masqueradeBit: many}\n"),
			"ConfigMap kube-system/kube-proxy, key config.conf: KubeProxyConfiguration.iptables.masqueradeBit: " +
				"\"many\": failed to decode: want a whole number"},
		{"a wrong value", configMap(head + "    clusterCIDR: 10.0.0.0/99\n"),
			"ConfigMap kube-system/kube-proxy, key config.conf: KubeProxyConfiguration.clusterCIDR: \"10.0.0.0/99\""},
		{"another version", configMap("  config.conf: |\n    apiVersion: kubeproxy.config.k8s.io/v9\n" +
			"    kind: KubeProxyConfiguration\n"), "its apiVersion is \"kubeproxy.config.k8s.io/v9\""},
		{"a ConfigMap whose data is a list", "kind: ConfigMap\ndata: [a]\n", "in: it is not a valid object"},
		{"a DaemonSet without its ConfigMap", daemonSet, "DaemonSet kube-system/kube-proxy, container kube-proxy: " +
			"--config=/var/lib/kube-proxy/config.conf: this file is not in the input, it is in the ConfigMap " +
			"kube-proxy: give that too"},
		{"two DaemonSets", cm + "\n" + daemonSet + "\n" + daemonSet,
			"in: document 4: DaemonSet kube-system/kube-proxy is a second pod of kube-proxy"},
		{"two configurations", cm + "\n" + cm, "there are two KubeProxyConfigurations"},
		{"a DaemonSet of others", "kind: DaemonSet\nmetadata: {name: cni}\n" +
			"spec: {template: {spec: {containers: [{name: cni}, {name: bird}]}}}\n",
			"in: DaemonSet cni has no container that runs kube-proxy: it has cni, bird"},
		{"a DaemonSet without a template", "kind: DaemonSet\nmetadata: {name: x}\n",
			"in: it is a DaemonSet: a kube-proxy runs on every node, as a DaemonSet with a template"},
		{"a DaemonSet of Windows", "kind: DaemonSet\nmetadata: {name: kube-proxy-windows}\n" +
			"spec: {template: {spec: {nodeSelector: {kubernetes.io/os: windows}, containers: [{name: kube-proxy, " +
			"command: [powershell, -Command, kube-proxy.exe]}]}}}\n",
			"no proxy configuration in DaemonSet kube-proxy-windows, for Windows"},
		{"an object of others", "kind: Service\nmetadata: {name: web, namespace: shop}\n",
			"no proxy configuration in Service shop/web"},
		{"a misspelled kind (TN-85)", "kind: DeamonSet\nmetadata: {name: kube-proxy, namespace: kube-system}\n",
			"kind DeamonSet is unknown: did you mean DaemonSet?"},
		{"an empty List", "kind: List\nitems: []\n", "empty input"},
		{"an odd item", "kind: List\nitems: [7]\n", "in: items[0]: it is not a mapping"},
		{"a flag that is not known", "--proxy-mode=ipvs --no-such=1", "in: unknown flag: --no-such"},
		{"a mode that is not known", "--proxy-mode=magic", "in: --proxy-mode: \"magic\""},
		{"a command line and a file that it does not read", cm + "\n" + strings.ReplaceAll(daemonSet, "--config=",
			"--kubeconfig="), "has no --config, so it does not use the configuration of ConfigMap " +
			"kube-system/kube-proxy, key config.conf"},
		{"Cilium and a kube-proxy", cm + "\n---\nkind: ConfigMap\nmetadata: {name: cilium-config}\n" +
			"data: {kube-proxy-replacement: \"true\"}\n", "the input has both Cilium's ConfigMap and a kube-proxy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if r, err := convertText("", c.text); err == nil ||
				!strings.Contains(err.Error(), c.want) {
				t.Errorf("%v (%+v), want %q", err, r, c.want)
			}
		})
	}
	if _, err := convertText("kernelspace", "--v=1"); err == nil ||
		!strings.Contains(err.Error(), "--to: \"kernelspace\": want iptables") {
		t.Errorf("a mode of Windows: %v", err)
	}
	// A repeated key is reported: only the last one counts.
	twice, err := convertText("", configMap(head+"    mode: ipvs\n    bogus: 1\n    mode: iptables\n"+
		"    iptables: {masqueradeBit: 3, masqueradeBit: 4}\n"))
	if err != nil || !twice.says("change mode: it occurs twice in ConfigMap kube-system/kube-proxy, key config.conf, "+
		"again in line 5") || !twice.says("change masqueradeBit: it occurs twice in") || !twice.says("change bogus: ") {
		t.Errorf("what stands there twice: %v %+v", err, twice)
	}
	gate, err := convertText("", configMap(head+"    featureGates: {SupportIPVSProxyMode: true}\n"))
	if err != nil || !gate.says("key config.conf: KubeProxyConfiguration.featureGates: SupportIPVSProxyMode=true has "+
		"no effect") {
		t.Errorf("a gate that is always on: %v %+v", err, gate)
	}
	// A field that no version had is reported, with the nearest name; a field of several versions
	// is read.
	r, err := convertText("", configMap(head+"    clusterCIDRs: 10.0.0.0/8\n    conntrackMaxPerCore: 7\n"+
		"    udpTimeoutMilliseconds: 300\n    nftables: {minSyncPeriod: 2s}\n    resourceContainer: /x\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"change clusterCIDRs: ConfigMap kube-system/kube-proxy, key config.conf has the " +
		"field clusterCIDRs, which no version has", "info conntrackMaxPerCore: it is read as conntrack.maxPerCore",
		"info udpTimeoutMilliseconds: it is read as udpIdleTimeout", "info resourceContainer: it has no effect"} {
		if !r.says(want) {
			t.Errorf("it does not say %q: %+v", want, r.Statements)
		}
	}
	if i := slices.IndexFunc(r.Statements, func(s Statement) bool {
		return s.About == "clusterCIDRs"
	}); i < 0 || !strings.Contains(r.Statements[i].Do, "clusterCIDR if that was intended") {
		t.Errorf("no near name: %+v", r.Statements)
	}
}

// Every statement of the tables has its subject, reason and action.
func TestTables(t *testing.T) {
	modes := append(all.Modes().Names(func(mode.Mode) bool { return true }), ciliumMode)
	for _, d := range differences {
		if d.about == "" || d.differs == "" || strings.HasSuffix(d.differs, ".") || !strings.HasSuffix(d.why, ".") ||
			!strings.HasSuffix(d.do, ".") || !slices.Contains([]Severity{Same, Change, Missing}, d.sev) {
			t.Errorf("%+v", d)
		}
		for _, m := range slices.Concat(d.from, d.to) {
			if !slices.Contains(modes, m) {
				t.Errorf("there is no mode %s", m)
			}
		}
	}
	for _, k := range ciliumKeys {
		if k.differs != "" && (!strings.HasSuffix(k.why, ".") || !strings.HasSuffix(k.do, ".")) {
			t.Errorf("%+v", k)
		}
	}
}

// Any input gets an answer; any converted configuration loads.
func FuzzMigrate(f *testing.F) {
	for _, name := range []string{"configmap.yaml", "daemonset.yaml", "rbac.yaml"} {
		f.Add(string(file(f, kubeadm+name).Data), "nftables")
	}
	f.Add("kube-proxy --proxy-mode=ipvs 2>&1 | tee x", "")
	f.Add("KUBE_PROXY_ARGS=\"--v=2 \\\n --master=x\"", "")
	f.Add("kind: ConfigMap\ndata: {kube-proxy-replacement: strict, nodeport-addresses: 'x y'}", "iptables")
	for _, name := range slices.Sorted(maps.Keys(inputs)) {
		for _, in := range inputs[name] {
			f.Add(string(in.Data), "")
		}
	}
	f.Fuzz(func(t *testing.T, text, to string) {
		r, err := convertText(to, text)
		if err != nil {
			return
		}
		if _, err := config.Convert(all.Modes(), nil, r.Config, ""); err != nil {
			t.Errorf("%v\n%s", err, r.Config)
		}
	})
}
