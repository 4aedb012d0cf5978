package migrate

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"kube-proxy/plane/all"
)

// inputs are other forms of input, all with the same meaning.
var inputs = map[string][]Input{
	"variables of any name": {text("proxy", "# the proxy\nKUBE_MASTER=\"--master=https://a\"\nKUBE_LOG_LEVEL=--v=2\n"+
		"MODE='--proxy-mode=ipvs'\nexport NETWORK=--cluster-cidr=10.0.0.0/8 # of pods\n")},
	"a quoted value of several lines": {text("proxy", "KUBE_PROXY_OPTS=\"--master=https://a \\\n--v=2 \\\n  "+
		"--proxy-mode=ipvs\n--cluster-cidr=10.0.0.0/8\"\n")},
	"a unit with its environment files": {
		text("kube-proxy.service", "[Unit]\nDescription=x\n[Service]\nEnvironmentFile=-/etc/kubernetes/config\n"+
			"EnvironmentFile=/etc/kubernetes/proxy\nEnvironment=MODE=ipvs \"NETWORK=10.0.0.0/8\"\n"+
			"ExecStart=-/usr/bin/kube-proxy \\\n  # why\n  $KUBE_MASTER $KUBE_LOG_LEVEL \\\n  $KUBE_PROXY_ARGS "+
			"--cluster-cidr=${NETWORK}\nRestart=always\n"),
		text("config", "KUBE_MASTER=--master=https://a\nKUBE_LOG_LEVEL=--v=2\n"),
		text("proxy", "KUBE_PROXY_ARGS=\"--proxy-mode ipvs\"\n")},
	"environment files before the unit": {
		text("proxy", "A=\"--master=https://a --v=2 \\\n --proxy-mode=ipvs --cluster-cidr='10.0.0.0/8'\"\n"),
		text("kube-proxy.service", "[Service]\r\nExecStart=/usr/bin/kube-proxy $A\r\n")},
	"docker run": {text("kube-proxy.service", "[Service]\nExecStartPre=-/usr/bin/docker rm -f kube-proxy\n"+
		"ExecStart=/usr/bin/docker run --rm -it --net=host --privileged --name kube-proxy -e A=b -v /:/rootfs:ro \\\n"+
		"  registry.example/hyperkube:v1.12 /hyperkube proxy --master=https://a --v=2 --proxy-mode=ipvs "+
		"--cluster-cidr=10.0.0.0/8\n")},
	"docker run of the proxy's image": {text("line", "docker run --network host registry.example/kube-proxy:v1.20 "+
		"--master=https://a --v=2 --proxy-mode=ipvs --cluster-cidr=10.0.0.0/8\n")},
	"sh -c": {text("kube-proxy.service", "[Service]\nEnvironmentFile=/etc/default/proxy\nExecStart=/bin/sh -c "+
		"\"ulimit "+
		"-n 9; exec /usr/bin/kube-proxy $ARGS --cluster-cidr=10.0.0.0/8 >>/var/log/kube-proxy.log 2>&1\"\n"),
		text("proxy", "ARGS='--master=https://a --v=2 --proxy-mode=ipvs'\n")},
	"a script": {text("start", "#!/bin/sh\nset -e\nMODE=ipvs\nARGS=\"--master=https://a --v=2\"\n# the proxy\n"+
		"exec kube-proxy $ARGS --proxy-mode=\"$MODE\" \\\n  --cluster-cidr=10.0.0.0/8\n")},
	"a unit of k3s": {text("k3s.service", "[Service]\nType=notify\nExecStart=/usr/local/bin/k3s \\\n    server \\\n"+
		"\t'--kube-proxy-arg=proxy-mode=ipvs' \\\n\t'--kube-proxy-arg' 'healthz-bind-address=0.0.0.0' "+
		"'--kube-proxy-arg=v=2' --kube-proxy-arg=master=https://a '--cluster-cidr=10.0.0.0/8' --tls-san=x\n")},
	"config.yaml of k3s": {text("config.yaml", "write-kubeconfig-mode: \"0644\"\nkube-proxy-arg:\n- proxy-mode=ipvs\n"+
		"- v=2\n- master=https://a\n- healthz-bind-address=0.0.0.0\ncluster-cidr: 10.0.0.0/8\n")},
	"config.yaml of RKE2 with a unit": {text("config.yaml", "cni: calico\nkube-proxy-arg: proxy-mode=iptables\n"+
		"cluster-cidr: 10.0.0.0/8\n"), text("rke2-server.service", "[Service]\nExecStart=/usr/local/bin/rke2 server "+
		"--kube-proxy-arg proxy-mode=ipvs --kube-proxy-arg healthz-bind-address=0.0.0.0 --kube-proxy-arg v=2 "+
		"--kube-proxy-arg master=https://a\n")},
	"kops": {text("cluster", "apiVersion: kops.k8s.io/v1alpha2\nkind: Cluster\nmetadata: {name: c}\nspec:\n"+
		"  nonMasqueradeCIDR: 10.0.0.0/8\n  kubeProxy: {proxyMode: ipvs, logLevel: 2, master: https://a, "+
		"enabled: true, cpuRequest: 10m}\n")},
	"a wrapper": {text("line", "nice -n -5 /go-runner --log-file=/x /usr/local/bin/kube-proxy --master=https://a "+
		"--v=2 "+
		"--proxy-mode=ipvs --cluster-cidr=10.0.0.0/8")},
	"a pod with variables": {text("pod", "kind: Pod\nmetadata: {name: kube-proxy-n1}\nspec:\n  hostNetwork: true\n"+
		"  containers:\n  - name: kube-proxy\n    env: [{name: MODE, value: ipvs}, {name: NET, value: 10.0.0.0/8}]\n"+
		"    command: [sh, -c, 'kube-proxy --master=https://a --v=2 --proxy-mode=$(MODE) --cluster-cidr=${NET}']\n")},
}

func text(name, data string) Input { return Input{Name: name, Data: []byte(data)} }

func TestInputs(t *testing.T) {
	const want = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nclusterCIDR: 10.0.0.0/8\n" +
		"kind: KubeProxyConfiguration\nmode: ipvs\n"
	for name, in := range inputs {
		r, err := convert("", in...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		// The verbosity has a field, and the master's address stays on the command line.
		config := strings.Replace(string(r.Config), "logging:\n  verbosity: 2\n", "", 1)
		if config != want || config == string(r.Config) || !slices.Equal(r.Flags, []string{"--master=https://a"}) {
			t.Errorf("%s: flags %q\n%s", name, r.Flags, r.Config)
		}
	}
}

// Every word of the input is used, reported, or an error: none can be replaced by another without a
// trace (FL-10).
func TestEveryWordCounts(t *testing.T) {
	words := regexp.MustCompile(`(?:--)?[A-Za-z][A-Za-z_-]*[A-Za-z]`)
	const marker = "zz-marker"
	for name, in := range inputs {
		plain, err := convert("", in...)
		if err != nil {
			t.Fatal(err)
		}
		tried := 0
		for n := range in {
			for _, at := range words.FindAllIndex(in[n].Data, -1) {
				old, before := string(in[n].Data[at[0]:at[1]]), string(in[n].Data[:at[0]])
				line := strings.TrimSpace(before[strings.LastIndexByte(before, '\n')+1:])
				switch {
				case strings.HasPrefix(line, "#") || strings.HasPrefix(line, "[") || strings.Contains(line, " #"):
					continue // a comment, or the name of a section
				case strings.HasSuffix(before, "/"):
					continue // a folder, such as that of the program
				case bytes.HasPrefix(in[n].Data[at[1]:], []byte("=")) && strings.ToUpper(old) == old &&
					!strings.Contains(line, "="):
					continue // a variable whose value has flags: they are read
				case old == "calico":
					continue // values of k3s may be secrets, and only their keys are printed
				}
				word := marker
				if strings.HasPrefix(old, "--") {
					word = "--" + marker
				} else if strings.ContainsAny(old, "_") || strings.ToUpper(old) == old {
					word = "ZZ_MARKER"
				}
				changed := slices.Clone(in)
				changed[n].Data = []byte(string(in[n].Data[:at[0]]) + word + string(in[n].Data[at[1]:]))
				r, err := convert("", changed...)
				tried++
				if err != nil || string(r.Config) != string(plain.Config) || !slices.Equal(r.Flags, plain.Flags) ||
					!slices.Equal(r.Statements, plain.Statements) {
					continue
				}
				t.Errorf("%s: %q instead of %q is lost:\n%s", name, word, old, changed[n].Data)
			}
		}
		if tried < 5 {
			t.Errorf("%s: %d words", name, tried)
		}
	}
}

// Input that would lose words is refused, with what is missing.
func TestIncompleteInputs(t *testing.T) {
	for name, c := range map[string]struct {
		in   []Input
		want string
	}{
		"a unit without its environment file": {[]Input{text("u", "[Service]\nEnvironmentFile=-/etc/kubernetes/proxy\n"+
			"ExecStart=/usr/bin/kube-proxy $KUBE_PROXY_ARGS\n")},
			"u, ExecStart has $KUBE_PROXY_ARGS, whose flags the input lacks: pass its environment file too: " +
				"/etc/kubernetes/proxy"},
		"a variable without flags": {[]Input{text("e", "KUBECONFIG=/etc/kubernetes/proxy.kubeconfig\n")},
			"e sets only KUBECONFIG, without flags: pass the unit or script that names them too"},
		"two values of a variable": {[]Input{text("a", "A=--v=1\n"), text("b", "A=--v=2\n")},
			"b: it sets A, and so does a with another value"},
		"an unknown flag with a placeholder": {[]Input{text("l", "kube-proxy --no-such=$(X)")},
			"l: unknown flag: --no-such"},
		"an unknown flag with a placeholder apart": {[]Input{text("l", "kube-proxy --proxi-mode $(X)")},
			"unknown flag: --proxi-mode: did you mean --proxy-mode?"},
		"a word too many": {[]Input{text("l", "kube-proxy --v=2 extra")}, "extra"},
		"a flag of kops": {[]Input{text("c", "apiVersion: kops.k8s.io/v1alpha2\nkind: Cluster\nspec: "+
			"{kubeProxy: {x: 1}}\n")}, "spec.kubeProxy.x is unknown"},
		"kops without a proxy": {[]Input{text("c", "apiVersion: kops.k8s.io/v1alpha2\nkind: Cluster\nspec: "+
			"{kubeProxy: {enabled: false}}\n")}, "it runs no kube-proxy"},
		"k3s without a proxy": {[]Input{text("c", "disable-kube-proxy: true\n")}, "disable-kube-proxy: true: k3s " +
			"runs no kube-proxy"},
		"a flag of k3s": {[]Input{text("c", "kube-proxy-arg: [proxy-moed=ipvs]\n")}, "unknown flag: " +
			"--proxy-moed: did you mean --proxy-mode?"},
		"a number for k3s": {[]Input{text("c", "kube-proxy-arg: [3]\n")}, "kube-proxy-arg: it is 3: want a text"},
		"an open quote":    {[]Input{text("l", "kube-proxy --proxy-mode='ipvs")}, "l: a ' does not end"},
		"an open value":    {[]Input{text("e", "A=\"--v=2\n")}, "e: A: a \" does not end"},
		"a unit without a start": {[]Input{text("u", "[Service]\nRestart=always\n")},
			"u: the unit has no ExecStart"},
		"a unit of others":   {[]Input{text("u", "[Service]\nExecStart=/usr/bin/kubelet\n")}, "runs no kube-proxy"},
		"a script of others": {[]Input{text("s", "#!/bin/sh\necho hello\n")}, "runs no kube-proxy"},
		"two units": {[]Input{text("u", "[Service]\nExecStart=kube-proxy\n"),
			text("v", "[Service]\nExecStart=kube-proxy\n")},
			"v: it is a second unit, beside u"},
		"an image without its program": {[]Input{text("l", "docker run registry.example/hyperkube:v1 --v=2")},
			"the program of image registry.example/hyperkube:v1 is unknown"},
	} {
		if r, err := convert("", c.in...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v (%+v), want %q", name, err, r, c.want)
		}
	}
	// Beside flags, other variables are reported.
	r, err := convert("", text("e", "KUBECONFIG=/x\nA=--proxy-mode=ipvs\n"))
	if err != nil || !r.says("change e: KUBECONFIG=/x is not used") {
		t.Errorf("%v %+v", err, r)
	}
}

// Words that other words of the input replace are reported, and so are files that it lacks (FL-10).
func TestReplacedWords(t *testing.T) {
	const start = "[Service]\nExecStart=/usr/bin/kube-proxy $A\n"
	const three = "kind: KubeProxyConfiguration\n    apiVersion: kubeproxy.config.k8s.io/v1alpha1\n    logging: " +
		"{verbosity: 3}\n"
	const cm = "kind: ConfigMap\nmetadata: {name: c}\ndata:\n  config.conf: |\n    " + three
	const pod = "kind: Pod\nmetadata: {name: kube-proxy-n1}\nspec: {tolerations: [], containers: [{name: kube-proxy, " +
		"command: [kube-proxy, --v=3]}]}\n"
	for name, c := range map[string]struct {
		in   Input
		want string
	}{
		"a variable of a file": {text("e", "A=--v=2\nA=--v=3\n"), "change e: A=--v=2 has no effect"},
		"a variable of a unit": {text("u", start+"Environment=A=--v=2 A=--v=3\n"),
			"change u: A=--v=2 has no effect"},
		"a variable of a script": {text("s", "#!/bin/sh\nA=--v=2\nA=--v=3\nkube-proxy $A\n"),
			"change s: A=--v=2 is not used"},
		"a variable before a command": {text("s", "#!/bin/sh\nKUBECONFIG=/k kube-proxy --v=3\n"),
			"change s: KUBECONFIG=/k is not used"},
		"a missing file": {text("u", start+"Environment=A=--v=3\nEnvironmentFile=-/etc/default/x\n"),
			"change u: EnvironmentFile=/etc/default/x: no input has this name"},
		"a second document": {text("c", cm+"    ---\n    kind: Other\n"),
			"the file has 2 YAML documents; only the first has an effect"},
		"another key":           {text("c", cm+"  x: y\n"), "info ConfigMap c: other keys: x: they were ignored"},
		"other fields of a pod": {text("p", pod), "info Pod kube-proxy-n1: fields beside command"},
	} {
		r, err := convert("", c.in)
		if err != nil || !r.says(c.want) || !strings.Contains(string(r.Config), "verbosity: 3\n") {
			t.Errorf("%s: it does not say %q: %v %+v", name, c.want, err, r)
		}
	}
	// A file of that name, a value that was read before the next, and an equal value.
	for _, in := range [][]Input{{text("u", start+"EnvironmentFile=/etc/default/x\n"), text("x", "A=--v=3\n")},
		{text("s", "#!/bin/sh\nA=--v=2\nA=\"$A --proxy-mode=ipvs\"\nkube-proxy $A\n")},
		{text("e", "A=--v=3\nA=--v=3\n")}} {
		r, err := convert("", in...)
		if err != nil || r.says("has no effect") || r.says("is not used") || r.says("no input has") {
			t.Errorf("%v %+v", err, r)
		}
	}
	_, err := convert("", text("c", cm+"  x: 'kind: KubeProxyConfiguration'\n"))
	if err == nil || !strings.Contains(err.Error(), "there are two KubeProxyConfigurations, of ConfigMap c, key "+
		"config.conf and of ConfigMap c, key x: pass one at a time, or the DaemonSet too") {
		t.Error(err)
	}
}

// eks are the objects of EKS.
const eks = "kind: List\nitems:\n- kind: DaemonSet\n  metadata: {name: kube-proxy, namespace: kube-system}\n  spec:\n" +
	"    selector: {matchLabels: {k8s-app: kube-proxy}}\n    template: {spec: {hostNetwork: true, containers: " +
	"[{name: " +
	"kube-proxy, image: registry.example/eks/kube-proxy:v1.30, command: [kube-proxy, --v=2, " +
	"--config=/var/lib/kube-proxy-config/config, --hostname-override=$(NODE_NAME)], securityContext: {privileged: " +
	"true}, " +
	"volumeMounts: [{name: kubeconfig, mountPath: /var/lib/kube-proxy/}, {name: config, mountPath: " +
	"/var/lib/kube-proxy-config/}]}], volumes: [{name: kubeconfig, configMap: {name: kube-proxy}}, {name: config, " +
	"configMap: {name: kube-proxy-config}}]}}\n"

// The configuration is the one that the DaemonSet mounts at --config, and the commands have its
// names.
func TestEKS(t *testing.T) {
	const conf = "'apiVersion: kubeproxy.config.k8s.io/v1alpha1\n\n      kind: KubeProxyConfiguration\n\n      mode: "
	const maps = "- kind: ConfigMap\n  metadata: {name: kube-proxy, namespace: kube-system}\n  data: {kubeconfig: " +
		"x}\n" +
		"- kind: ConfigMap\n  metadata: {name: kube-proxy-config, namespace: kube-system}\n  data:\n    " +
		"config: " + conf +
		"iptables'\n    other: " + conf + "ipvs'\n"
	r, err := convert("", text("eks", eks+maps))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(r.Config), "mode: iptables") || r.Distribution != "eks" {
		t.Errorf("%s\n%s", r.Distribution, r.Config)
	}
	all := fmt.Sprint(r.Forth, r.Back)
	for _, want := range []string{"kubectl -n kube-system create configmap kube-proxy-config " +
		"--from-file=config=config.yaml",
		"patch configmap kube-proxy-config --type merge", "set image daemonset/kube-proxy kube-proxy=IMAGE",
		"delete pod -l k8s-app=kube-proxy --field-selector spec.nodeName=NODE", "aws eks delete-addon",
		"replace -f configmap-before.yaml -f daemonset-before.yaml", "aws eks create-addon"} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in %s", want, all)
		}
	}
	if _, err := convert("", text("eks", eks)); err == nil || !strings.Contains(err.Error(),
		"it is in the ConfigMap kube-proxy-config: give that too (kubectl -n kube-system get configmap "+
			"kube-proxy-config") {
		t.Errorf("without its ConfigMap: %v", err)
	}
	if _, err := convert("", text("eks", eks+strings.ReplaceAll(maps, "    config:", "    conf:"))); err == nil ||
		!strings.Contains(err.Error(), "ConfigMap kube-system/kube-proxy-config has no key config: it has conf, "+
			"other") {
		t.Errorf("without its key: %v", err)
	}
}

// Each distribution has commands, forth and back, except GKE (FL-10).
func TestDistributions(t *testing.T) {
	for _, name := range append(Distributions(), "") {
		p, err := Read(all.Modes(), []Input{text("f", "kube-proxy --proxy-mode=ipvs")})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.On(name); err != nil {
			t.Fatal(err)
		}
		r, err := Convert(all.Modes(), p, "")
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case name == "":
			if len(r.Forth)+len(r.Back) > 0 {
				t.Errorf("commands for an unknown distribution: %v", r.Forth)
			}
		case name == "gke":
			if !r.says("missing gke: GKE writes its kube-proxy") || len(r.Forth) > 0 {
				t.Errorf("gke: %+v", r)
			}
		case len(r.Forth) < 3 || len(r.Back) < 2:
			t.Errorf("%s: %v, back %v", name, r.Forth, r.Back)
		}
	}
	for image, want := range map[string]string{"registry.example/kube-proxy-amd64:v1.27.3-gke.100": "gke",
		"registry.example/oss/kubernetes/kube-proxy:v1": "aks", "rancher/hardened-kubernetes:v1": "rke2",
		"registry.example/kube-proxy:v1": ""} {
		r, err := convert("", text("p", "kind: Pod\nmetadata: {name: kube-proxy-n1, namespace: kube-system}\nspec: "+
			"{containers: [{name: kube-proxy, image: '"+image+"', command: [kube-proxy, --v=2]}]}\n"))
		if err != nil || r.Distribution != want {
			t.Errorf("%s: %v, %v", image, r.Distribution, err)
		}
	}
	if err := new(Proxy).On("rancher"); err == nil || !strings.Contains(err.Error(), "--distribution: \"rancher\": "+
		"want aks") {
		t.Error(err)
	}
}

// A DaemonSet with flags only keeps its object: it selects no node while the chart's serves.
func TestDaemonSetWithFlags(t *testing.T) {
	r, err := convert("", text("d", "kind: DaemonSet\nmetadata: {name: my-proxy, namespace: net}\nspec: {template: "+
		"{spec: "+
		"{containers: [{name: kube-proxy, command: [kube-proxy, --v=2]}]}}}\n"))
	if err != nil || len(r.Forth) < 3 || !strings.Contains(r.Forth[0].Run, "kubectl -n net patch daemonset my-proxy") ||
		!strings.Contains(r.Back[len(r.Back)-1].Run, `"kube-proxy.example/none":null`) {
		t.Errorf("%v %+v", err, r)
	}
}

// Each change to mode ebpf or from ipvs reports what differs, and nothing that does not.
func TestDifferencesOfModes(t *testing.T) {
	for _, c := range []struct {
		from, to    string
		says, quiet []string
	}{
		{"ipvs", "nftables", []string{"change kube-ipvs0"}, []string{"NodePorts on 127.0.0.1"}},
		{"iptables", "ebpf", []string{"change requirements", "change client addresses of pods",
			"change UDP sockets of removed endpoints", "change host firewalls", "change NodePorts on 127.0.0.1"}, nil},
		{"ipvs", "ebpf", []string{"change requirements", "change kube-ipvs0", "change connections through IPVS"},
			[]string{"NodePorts on 127.0.0.1"}},
		{"iptables --iptables-localhost-nodeports=false", "nftables", []string{"change host firewalls"},
			[]string{"127.0.0.1"}},
		{"iptables --nodeport-addresses=10.0.0.0/8", "nftables", []string{"change host firewalls"},
			[]string{"127.0.0.1"}},
		{"iptables --nodeport-addresses=0.0.0.0/0", "nftables", []string{"change NodePorts on 127.0.0.1",
			"nodePortAddresses: the new configuration sets 127.0.0.0/8, for NodePorts on 127.0.0.1"}, nil},
		{"nftables", "ebpf", []string{"change requirements", "info session affinity"}, []string{"host firewalls"}},
		{"ebpf", "iptables", []string{"change direct connections", "change programs"}, []string{"change requirements"}},
	} {
		r, err := convert(c.to, Input{Name: "f", Flags: strings.Fields("--proxy-mode=" + c.from)})
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range c.says {
			if !r.says(want) {
				t.Errorf("%s to %s: it does not say %q", c.from, c.to, want)
			}
		}
		for _, not := range c.quiet {
			if r.says(not) {
				t.Errorf("%s to %s: it says %q", c.from, c.to, not)
			}
		}
	}
}
