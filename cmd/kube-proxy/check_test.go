//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"kube-proxy/cli"
	"kube-proxy/cli/preflight"
	"kube-proxy/test/golden"
)

// checked is the output of kube-proxy check in a namespace.
type checked struct {
	cli.CheckReport
	code int
	text string // of stdout and stderr
}

// check runs kube-proxy check with JSON.
func (n *namespace) check(spoilt func(*exec.Cmd), args ...string) checked {
	n.t.Helper()
	p := n.start(slices.Concat([]string{"check", "-o=json", "--hostname-override=n1", "--manifests=m"}, args), spoilt)
	c := checked{code: p.end(0), text: p.log()}
	if err := json.Unmarshal([]byte(c.text), &c.CheckReport); err != nil {
		n.t.Fatalf("exit code %d, and no JSON: %v:\n%s", c.code, err, c.text)
	}
	if c.ExitCode != c.code || c.Version != 1 || c.Node != "n1" || c.Worst != preflight.Worst(c.Findings) ||
		c.code != preflight.Exit(c.Findings) {
		n.t.Errorf("exit code %d with %+v", c.code, c.CheckReport)
	}
	return c
}

// finds fails the test without such findings: "id severity about: part of the observation"; about
// may be left out.
func (c checked) finds(t *testing.T, wants ...string) {
	t.Helper()
	for _, want := range wants {
		c.has(t, want)
	}
}

func (c checked) has(t *testing.T, want string) {
	t.Helper()
	var of []string
	for _, f := range c.Findings {
		text := fmt.Sprintf("%s %s %s: %s", f.ID, f.Severity, f.About, f.Seen)
		if f.About == "" {
			text = fmt.Sprintf("%s %s: %s", f.ID, f.Severity, f.Seen)
		}
		if strings.HasPrefix(text, want) || wild(text, want) {
			if f.Severity != preflight.OK && f.Severity != preflight.Info && (f.Why == "" || f.Remedy == "") {
				t.Errorf("it does not say why, or what to do: %+v", f)
			}
			return
		}
		if id, _, _ := strings.Cut(want, " "); id == f.ID {
			of = append(of, text)
		}
	}
	t.Errorf("no finding %q; there are\n%s", want, strings.Join(of, "\n"))
}

// wild matches a text that begins with the part before … and has the part after it anywhere later.
func wild(text, want string) bool {
	before, after, ok := strings.Cut(want, "…")
	return ok && strings.HasPrefix(text, before) && strings.Contains(text[len(before):], after)
}

// Without flags the check is about the proxy that runs, with its flags and its file; with a flag,
// or without a proxy, it is not (CF-69).
func TestCheckOfRunning(t *testing.T) {
	t.Parallel()
	n := newNamespace(t).routed()
	n.write("m/web.yaml", service("web", "10.96.7.7", 80, "10.0.0.7"))
	n.write("c.yaml", []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"+
		"mode: nftables\nmetricsBindAddress: 127.0.0.1:10777\n"))
	check := func(args ...string) checked {
		p := n.start(append([]string{"check", "-o=json"}, args...))
		c := checked{code: p.end(0), text: p.log()}
		if err := json.Unmarshal([]byte(c.text), &c.CheckReport); err != nil {
			t.Fatalf("exit code %d, and no JSON: %v:\n%s", c.code, err, c.text)
		}
		return c
	}
	check().finds(t, "configuration info: the defaults: cannot query the proxy")
	p := n.start([]string{"--config=c.yaml", "--hostname-override=n7", "--manifests=m"})
	p.await(allWritten)
	p.await(regexp.MustCompile("Admin socket listening"))
	c := check()
	c.finds(t, "configuration info: the kube-proxy that runs on n7", "mode-configured ok",
		"ports info metrics: 127.0.0.1:10777 is used by the running kube-proxy",
		"api-server ok: Services come from a folder")
	if c.Node != "n7" || c.Mode != "nftables" {
		t.Errorf("the check is of another proxy:\n%s", c.text)
	}
	c = check("--proxy-mode=iptables", "--hostname-override=n1", "--manifests=m")
	c.finds(t, "configuration info: the flags of this command")
	if c.Node != "n1" || c.Mode != "iptables" {
		t.Errorf("the check is not of its flags:\n%s", c.text)
	}
}

// Each case has a node with an obstacle, made by the programs that usually make it.
func TestCheckFinds(t *testing.T) {
	upstream, err := filepath.Abs("../../plane/iptables/testdata/shop.rules")
	do(t, err)
	for _, c := range []struct {
		name  string
		make  []string // shell commands in the namespace
		other func(*testing.T, *namespace)
		args  []string
		want  []string
		runs  string // the mode; "": not compared
		code  int    // 0: not compared, for the clock of this machine may be synchronised or not
		alone bool
	}{
		{name: "nothing in the way", runs: "iptables",
			want: []string{"privileges ok", "mode ok iptables IPv4: can run", "mode ok nftables IPv6: can run",
				"mode ok userspace IPv4: can run",
				"mode-configured ok", "iptables-backends ok", "kube-proxy-rules ok", "kube-proxy-running ok",
				"ports ok healthz", "cilium ok",
				"kube-router ok", "calico-ebpf ok", "firewalld ok", "ufw ok", "docker-forward ok", "drop-policy ok",
				"ip-forward ok net.ipv4.ip_forward",
				"bridge-netfilter ok", "rp-filter ok", "conntrack-use ok", "address-conflict ok", "node-ports ok",
				"api-server ok", "node info", "programs ok iptables-nft: …1.8"}},
		{name: "a mode whose programs are missing", args: []string{"--proxy-mode=iptables"},
			other: func(t *testing.T, n *namespace) { t.Setenv("PATH", t.TempDir()) },
			want: []string{"mode warning iptables IPv4: cannot run: …install iptables",
				"mode-configured warning: …using userspace instead", "programs info nft: not installed"},
			runs: "userspace", code: 3, alone: true},
		{name: "no forwarding", make: []string{"sysctl -qw net.ipv4.ip_forward=0"},
			want: []string{"ip-forward error net.ipv4.ip_forward: it is 0"}, code: 2},
		{name: "no forwarding, and a mode that needs none", make: []string{"sysctl -qw net.ipv4.ip_forward=0"},
			args: []string{"--proxy-mode=userspace"},
			want: []string{"ip-forward info net.ipv4.ip_forward: it is 0; mode userspace does not need it"}},
		{name: "firewalld, and a chain that drops", make: []string{"nft add table inet firewalld",
			"nft 'add chain inet firewalld filter_FORWARD { type filter hook forward priority 10; }'",
			"nft add table inet mine", "nft 'add chain inet mine fence { type filter hook input priority 0; policy " +
				"drop; }'", "iptables-nft -N ufw-before-forward", "iptables-nft -P FORWARD DROP",
			"ip link add kube-dummy-if type bridge", "ip link add bpfin.cali type veth peer name bpfout.cali",
			"sysctl -qw net.ipv4.ip_local_port_range='1024 60999'"},
			other: func(t *testing.T, n *namespace) { n.listen("127.0.0.1:30080") },
			want: []string{"firewalld warning: …inet firewalld", "drop-policy warning inet mine fence: its policy at " +
				"input is drop", "ufw warning", "kube-router warning", "calico-ebpf warning: …bpfin.cali",
				"drop-policy warning ip filter FORWARD: its policy at forward is drop",
				"node-ports warning 30080/tcp: process", "local-ports warning: outgoing connections use ports 1024 " +
					"to 60999"}, code: 3},
		{name: "firewalld by iptables, Docker that drops", make: []string{"iptables-nft -N FORWARD_IN_ZONES",
			"iptables-nft -N DOCKER", "iptables-nft -N DOCKER-USER", "iptables-nft -A FORWARD -j DOCKER-USER",
			"iptables-nft -P FORWARD DROP"},
			want: []string{"firewalld warning: …ip filter", "docker-forward warning: …ip filter", "drop-policy ok"}},
		{name: "Docker of the legacy back end", make: []string{"iptables-legacy -N DOCKER",
			"iptables-legacy -P FORWARD DROP"},
			want: []string{"docker-forward warning: …ip filter", "iptables-backends ok: only the legacy back end"}},
		{name: "both back ends, and what kube-proxies left", make: []string{"iptables-nft-restore --noflush " +
			upstream, "iptables-nft -t mangle -N KUBE-IPTABLES-HINT", "iptables-nft -N DOCKER",
			"iptables-legacy -t nat -A POSTROUTING -j ACCEPT", "nft add table ip6 kube-proxy",
			"nft add chain ip6 kube-proxy services", "ip link add kube-ipvs0 type bridge"},
			want: []string{"iptables-backends warning: both back ends have rules: nft and legacy; the kubelet uses nft",
				"docker-forward info",
				"kube-proxy-rules info: …ip nat", "kube-proxy-rules info: …nftables tables ip6 kube-proxy",
				"kube-proxy-rules info: …the device kube-ipvs0"}},
		{name: "another kube-proxy that runs", other: func(t *testing.T, n *namespace) {
			n.listen("0.0.0.0:10256")
			n.listen("127.0.0.1:10249")
		}, want: []string{"ports warning healthz: …10256 is used by process",
			"ports warning metrics: …10249 is used by process"}},
		{name: "this kube-proxy runs", other: func(t *testing.T, n *namespace) {
			n.write("m/good.yaml", good())
			n.serve("nftables")
		}, want: []string{"kube-proxy-running info: running: process",
			"ports info healthz: …is used by the running kube-proxy", "kube-proxy-rules info"}},
		{name: "Cilium in kube-proxy's place", make: []string{"ip link add cilium_host type veth peer name cilium_net"},
			other: func(t *testing.T, _ *namespace) {
				loadBPF(t, "cil_sock4_conne")
			}, want: []string{"cilium error: …cil_sock4_conne"}, code: 2, alone: true},
		{name: "interfaces and networks", args: []string{"--cluster-cidr=10.0.0.0/16"},
			make: []string{"ip link add eth0 type veth peer name e0", "ip addr add 192.0.2.1/24 dev eth0",
				"ip link set eth0 up mtu 1400",
				"ip route add default via 192.0.2.254", "ip link add cali1 type veth peer name c1",
				"ip link set cali1 up mtu 1450", "ip link add eth1 type bridge", "ip addr add 198.51.100.1/24 dev eth1",
				"ip link set eth1 up", "sysctl -qw net.ipv4.conf.eth1.rp_filter=1", "ip link add eth7 type bridge",
				"ip addr add 10.0.3.4/24 dev eth7", "ip link add cni0 type bridge",
				"sysctl -qw net.ipv4.ip_local_port_range='1024 60999'",
				"sysctl -qw net.ipv4.ip_local_reserved_ports=8080,30000-32767"},
			want: []string{"mtu warning cali1: its MTU is 1450, that of the uplink eth0 1400",
				"rp-filter warning: strict on eth1, with several uplinks: …eth0",
				"address-conflict warning 10.0.0.0/16: …10.0.3.4 of interface eth7",
				"bridge-netfilter …net.bridge.bridge-nf-call-iptables", "local-ports ok: …are reserved"}},
		{name: "what is set, and who asks", args: []string{"--conntrack-tcp-timeout-close-wait=17m",
			"--proxy-mode=nftables"},
			want: []string{"sysctls info net.netfilter.nf_conntrack_tcp_timeout_close_wait: …would be set to 1020 by " +
				"--conntrack-tcp-timeout-close-wait"}},
		{name: "an API server that is not there", args: []string{"--manifests=", "--master=http://127.0.0.1:9"},
			want: []string{"api-server error: http://127.0.0.1:9 does not answer: …refused"}, code: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !c.alone {
				t.Parallel()
			}
			n := newNamespace(t)
			for _, command := range c.make {
				n.command("sh", "-c", command)
			}
			if c.other != nil {
				c.other(t, n)
			}
			got := n.check(nil, c.args...)
			got.finds(t, c.want...)
			if c.runs != "" && got.Runs != c.runs {
				t.Errorf("it says that mode %q would run, want %s", got.Runs, c.runs)
			}
			if c.code != 0 && got.code != c.code {
				t.Errorf("exit code %d, want %d", got.code, c.code)
			}
		})
	}
}

// loadBPF keeps an empty BPF program of that name in the kernel until the test ends.
func loadBPF(t *testing.T, name string) {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: ebpf.SocketFilter, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	do(t, err)
	t.Cleanup(func() { p.Close() })
}

// If something cannot be determined, each finding says so, with a remedy; the command ends, and its
// exit code is not that of a healthy node.
func TestCheckInTheDark(t *testing.T) {
	for _, c := range []struct {
		name  string
		env   string
		wants []string
	}{
		{"without root", asUser + "=65534", []string{"privileges error: this process lacks CAP_NET_ADMIN",
			"mode unknown iptables IPv4: cannot check: needs root",
			"mode unknown nftables IPv6: cannot check: needs root",
			"mode-configured unknown", "drop-policy unknown: cannot check: needs root", "firewalld unknown",
			"cilium unknown: cannot check: needs root", "ip-forward ok", "conntrack-use", "node-ports ok",
			"ports ok healthz"}},
		{"without netfilter", noNetfilter + "=1",
			[]string{"mode info nftables IPv4: cannot run: …CONFIG_NETFILTER_NETLINK",
				"mode ok userspace IPv4: can run",
				"mode-configured ok: …mode iptables would run", "drop-policy ok"}}, // legacy does not need it
	} {
		t.Run(c.name, func(t *testing.T) {
			got := newNamespace(t).check(env(c.env))
			if known := !slices.Contains(c.wants, "mode-configured unknown"); known != (got.Runs != "") {
				t.Errorf("it says that mode %q would run", got.Runs)
			}
			got.finds(t, c.wants...)
			for _, f := range got.Findings {
				if f.Severity == preflight.Unknown && (!strings.Contains(f.Seen, "cannot check") &&
					!strings.Contains(f.Seen, "not tried") || f.Remedy == "") {
					t.Errorf("it does not say what would help: %+v", f)
				}
			}
		})
	}
	// As in a container that may do no more than the proxy's: no namespace can be made, and
	// /proc/sys is read-only.
	t.Run("in a container with NET_ADMIN alone", func(t *testing.T) {
		n := newNamespace(t)
		n.command("mount", "-o", "bind,ro", "/proc/sys", "/proc/sys")
		setpriv, err := exec.LookPath("setpriv")
		do(t, err)
		got := n.check(func(cmd *exec.Cmd) {
			cmd.Args = append([]string{"setpriv", "--bounding-set=-all,+net_admin,+net_raw", "--inh-caps=-all",
				cmd.Path}, cmd.Args[1:]...)
			cmd.Path = setpriv
		})
		got.finds(t, "privileges ok", "mode unknown iptables IPv4: cannot check: needs root, or "+
			"CAP_SYS_ADMIN, for a temporary network namespace",
			"mode-configured unknown", "drop-policy ok", "kube-proxy-rules ok",
			"cilium unknown: cannot check: needs root, or CAP_SYS_ADMIN", "ip-forward ok")
	})
}

// A check does not change the node: rules of both back ends, sysctls, links, addresses, routes,
// sets, namespaces, modules, files. It tries every mode, whichever is configured. On an empty node,
// and beside other programs' objects.
func TestCheckChangesNothing(t *testing.T) {
	upstream, err := filepath.Abs("../../plane/iptables/testdata/shop.rules")
	do(t, err)
	for name, setup := range map[string][]string{
		"an empty node": nil,
		"a node that others use": {"iptables-nft-restore --noflush " + upstream,
			"iptables-legacy -A INPUT -s 192.0.2.9 -j ACCEPT", "nft add table inet firewalld",
			"nft 'add chain inet firewalld f { type filter hook input priority 10; }'",
			"ipset create KUBE-CLUSTER-IP hash:ip,port", "ip link add kube-ipvs0 type bridge",
			"ip addr add 10.96.0.1/32 dev kube-ipvs0", "conntrack -I -p udp -s 192.0.2.1 -d 192.0.2.2 --sport 1 " +
				"--dport 2 -t 100"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNamespace(t)
			for _, command := range setup {
				n.command("sh", "-c", command)
			}
			before := n.everything()
			for _, args := range [][]string{{"--proxy-mode=ipvs", "--ipvs-strict-arp", "--load-modules"},
				{"--manifests=", "--master=http://127.0.0.1:9", "--conntrack-tcp-be-liberal"}} {
				n.check(nil, args...)
			}
			if after := n.everything(); after != before {
				t.Errorf("the node is another:\n%s", golden.Diff(before, after))
			}
		})
	}
}

// everything returns the state of a namespace, and of the shared parts of the machine, as text. It
// does not list missing legacy tables, because listing creates them.
func (n *namespace) everything() string {
	n.t.Helper()
	const script = `
nft -s list ruleset
for ip in ip ip6; do cat /proc/thread-self/net/${ip}_tables_names; [ -z "$(cat /proc/thread-self/net/${ip}_tables_names)" ] || ${ip}tables-legacy-save | grep -v '^#' | sed 's/\[.*\]//'; done
sysctl -a 2>/dev/null | grep -E '^(net|kernel.modprobe|fs.nr_open|fs.file-max|kernel.core_pattern)' | grep -vE 'nf_conntrack_count|random|neigh.*gc|tcp_fastopen_key|stable_secret|nf_conntrack_buckets'
ip -d link; ip addr; ip route show table all; ip rule; ipset list; ls /sys/module; cat /proc/modules 2>/dev/null | cut -d' ' -f1
ls -d /run/xtables.lock /etc/sysctl.d/* 2>/dev/null; readlink /proc/self/ns/net; conntrack -L 2>/dev/null | sed 's/ [0-9]* src/ src/' | sort
`
	return n.command("sh", "-c", script)
}
