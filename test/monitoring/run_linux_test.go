package monitoring

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"kube-proxy/internal/netlab"
	"kube-proxy/plane/all"
)

// lab is a Prometheus on the loopback address of a host, which scrapes proxies on others.
type lab struct {
	*netlab.TestLab
	t       *testing.T
	program string
}

// hosts of the proxies, and their modes.
var proxies = []struct{ host, address, mode string }{
	{"node1", "172.18.0.2", "nftables"},
	{"node2", "172.18.0.3", "iptables"},
	{"pod1", "10.1.1.11", "userspace"},
}

// timeout is the time limit of Prometheus, which scrapes each second, for results that need a few
// scrapes.
const timeout = 90 * time.Second

// start runs a proxy that watches a folder, or an unreachable API server if dir is "".
func (l *lab) start(host, mode, dir string) *netlab.Cmd {
	l.t.Helper()
	args := []string{"--proxy-mode=" + mode, "--metrics-bind-address=0.0.0.0:10249",
		"--healthz-bind-address=0.0.0.0:10256", "--hostname-override=" + host,
		"--admin-socket=", "--conntrack-max-per-core=0", "--cluster-cidr=10.1.0.0/16"}
	if mode == "nftables" {
		args = append(args, "--service-metrics=100")
	}
	if dir == "" {
		args = append(args, "--master=http://127.0.0.1:9")
	} else {
		args = append(args, "--manifests="+dir)
	}
	return l.run(host, l.program, args...)
}

func (l *lab) run(host, program string, args ...string) *netlab.Cmd {
	l.t.Helper()
	cmd := l.Command(host, program, args...)
	name := filepath.Join(l.t.TempDir(), "log")
	log, err := os.Create(name)
	must(l.t, err)
	cmd.Stdout, cmd.Stderr = log, log
	must(l.t, cmd.Start())
	l.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		log.Close()
		if text, err := os.ReadFile(name); err == nil && l.t.Failed() {
			l.t.Logf("%s on %s:\n%.4000s", filepath.Base(program), host, text)
		}
	})
	return cmd
}

// ask queries Prometheus; "data" of the answer is decoded into into.
func (l *lab) ask(into any, path string, form ...string) error {
	args := []string{"-sS", "-G", "http://127.0.0.1:9090/api/v1/" + path}
	for _, f := range form {
		args = append(args, "--data-urlencode", f)
	}
	out, err := l.Command("client", "curl", args...).Output()
	if err != nil {
		return err
	}
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return fmt.Errorf("%w: %.200s", err, out)
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s", path, answer.Error)
	}
	return json.Unmarshal(answer.Data, into)
}

// samples returns how many a query gives; an error is of the query.
func (l *lab) samples(query string) (int, error) {
	var data struct {
		Result []struct{ Value [2]any }
	}
	err := l.ask(&data, "query", "query="+query)
	n := 0
	for _, r := range data.Result {
		if r.Value[1] != "NaN" {
			n++
		}
	}
	return n, err
}

// eventually polls until missing returns nothing.
func (l *lab) eventually(what string, missing func() []string) {
	l.t.Helper()
	for end := time.Now().Add(timeout); ; time.Sleep(500 * time.Millisecond) {
		left := missing()
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			l.t.Fatalf("%s: %s", what, strings.Join(left, "\n"))
		}
	}
}

// Every query of the dashboard has an answer, and alerts fire, where proxies in three modes meet
// real faults.
func TestWithPrometheus(t *testing.T) {
	needPrometheus(t)
	l := &lab{TestLab: netlab.ForTest(t, netlab.Options{}), t: t, program: filepath.Join(t.TempDir(), "kube-proxy")}
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", l.program, "../../cmd/kube-proxy").
		CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	l.Serve(netlab.TCP, 8080, "pod2", "pod4")
	dirs, running := map[string]string{}, map[string]*netlab.Cmd{}
	targets := []string{}
	for _, p := range proxies {
		dirs[p.host] = t.TempDir()
		write(t, dirs[p.host], "node", "kind: Node\nmetadata: {name: "+p.host+
			"}\nstatus: {addresses: [{type: InternalIP, address: "+p.address+"}]}\n")
		write(t, dirs[p.host], "web", web(""))
		write(t, dirs[p.host], "lonely", lonely)
		running[p.host] = l.start(p.host, p.mode, dirs[p.host])
		targets = append(targets, p.address+":10249")
	}
	l.start("pod3", "nftables", "") // no API server
	targets = append(targets, "10.1.1.13:10249")

	dir := t.TempDir()
	file, alerts := readAlerts(t)
	summaries := map[string]bool{}
	for i := range file.Groups {
		for k := range file.Groups[i].Rules {
			file.Groups[i].Rules[k].For = "2s" // that they wait is tested with made-up faults
		}
	}
	rules, err := yaml.Marshal(file)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "rules.yaml"), rules, 0o644))
	config, err := yaml.Marshal(map[string]any{
		"global":     map[string]any{"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
		"rule_files": []string{"rules.yaml"},
		"scrape_configs": []any{map[string]any{"job_name": "kube-proxy",
			"static_configs": []any{map[string]any{"targets": targets}}}},
	})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "prometheus.yaml"), config, 0o644))
	if out, err := exec.Command("promtool", "check", "config", filepath.Join(dir, "prometheus.yaml")).
		CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	l.run("client", "prometheus", "--config.file="+filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path="+
		filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:9090")

	l.eventually("the proxies are scraped", func() []string {
		n, err := l.samples(`kubeproxy_mode_info and on (instance) up == 1`)
		if err == nil && n == len(targets) {
			return nil
		}
		return []string{fmt.Sprintf("%d of %d, %v", n, len(targets), err)}
	})

	// Activity: endpoints change, health checks are sent, connections are made.
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Second):
			}
			for _, p := range proxies {
				write(t, dirs[p.host], "web", web(time.Now().UTC().Format(time.RFC3339Nano), i%2 == 0))
				for _, path := range []string{"healthz", "livez"} {
					_, _ = l.Command("client", "curl", "-s", "-m", "1", "http://"+p.address+":10256/"+path).Output()
				}
			}
			_, _ = l.Command("pod2", "curl", "-s", "-m", "1", "http://10.96.0.10/").Output()
			_, _ = l.Command("pod1", "curl", "-s", "-m", "1", "http://10.96.0.10/").Output()
			// whose endpoint is not there
			_, _ = l.Command("pod1", "curl", "-s", "-m", "1", "http://10.96.0.12/").Output()
		}
	}()
	defer func() { close(stop); <-done }()

	t.Run("dashboard", func(t *testing.T) {
		l.t = t
		missing := map[string]string{} // queries
		for _, p := range readDashboard(t).all() {
			for _, q := range p.Targets {
				expr := strings.NewReplacer("$cluster", ".*", "$job", "kube-proxy", "$instance", ".*",
					"$__rate_interval", "15s").Replace(q.Expr)
				missing[expr] = p.Title
			}
		}
		if len(missing) < 40 {
			t.Fatalf("%d queries", len(missing))
		}
		l.eventually("these have no answer", func() (left []string) {
			for q, title := range missing {
				n, err := l.samples(q)
				switch {
				case err != nil:
					t.Fatalf("%s: %s: %v", title, q, err)
				case n > 0:
					delete(missing, q)
				case ofMissingMode(q):
					t.Logf("%s: not asked, as no mode here has it: %s", title, q)
					delete(missing, q)
				default:
					left = append(left, title+": "+q)
				}
			}
			return left
		})
	})
	t.Run("alerts", func(t *testing.T) {
		l.t = t
		firing := func() map[string]int {
			var data struct {
				Alerts []struct {
					State               string
					Labels, Annotations map[string]string
				}
			}
			must(t, l.ask(&data, "alerts"))
			got := map[string]int{}
			for _, a := range data.Alerts {
				if a.State != "firing" {
					continue
				}
				got[a.Labels["alertname"]]++
				if s := a.Annotations["summary"]; !summaries[s] {
					summaries[s] = true
					t.Log(s)
					if strings.Contains(s, "<no value>") || strings.Contains(s, "error") || strings.Contains(s, "{{") {
						t.Errorf("%s: %s", a.Labels["alertname"], s)
					}
				}
			}
			return got
		}
		// Present from the start: one proxy has no API server, and runs in a pod, which does not
		// forward. One Service of mode userspace has no endpoint that answers.
		expect := func(about string, want ...string) {
			t.Helper()
			l.eventually(about, func() (left []string) {
				got := firing()
				for _, name := range want {
					if got[name] == 0 {
						left = append(left, name+" does not fire")
					}
				}
				return left
			})
		}
		before := []string{"KubeProxySourceDisconnected", "KubeProxyNodeProblem", "KubeProxyUserspaceRefuses"}
		expect("from the beginning", before...)
		for name := range firing() {
			if !slices.Contains(before, name) {
				t.Errorf("%s fires, and nothing is wrong", name)
			}
		}
		for _, p := range proxies {
			write(t, dirs[p.host], "claims", claims)
			write(t, dirs[p.host], "local", onlyElsewhere)
		}
		expect("what tenants did", "KubeProxyContestedKeys", "KubeProxyAddressesRefused", "KubeProxyNoLocalEndpoints")
		l.refusedRows(dirs["node2"], expect, firing)
		for range 3 {
			if out, err := l.Command("node1", "nft", "flush", "map", "ip", "kube-proxy", "cluster-sets").
				CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
		expect("another program empties a map", "KubeProxyDrift")
		must(t, os.RemoveAll(dirs["node2"]))
		l.eventually("a folder goes", func() []string {
			if n, err := l.samples(`kubeproxy_source_connected{instance="172.18.0.3:10249"} == 0`); err != nil ||
				n != 1 {
				return []string{fmt.Sprint(n, err)}
			}
			return nil
		})
		must(t, os.MkdirAll(dirs["node2"], 0o755))
		must(t, running["node1"].Process.Kill())
		expect("a proxy is killed", "KubeProxyDown")
		fired := firing()
		t.Logf("%d of %d alerts fired: %v", len(fired), len(alerts), fired)
	})
}

// refusedRows makes the kernel of node2 refuse frontends, and then accept them: another program's
// chains jump to ours from such a depth that the kernel, which counts a packet's path through
// chains of nf_tables, accepts rules for cluster IPs and no longer paths.
func (l *lab) refusedRows(dir string, expect func(about string, want ...string), firing func() map[string]int) {
	l.t.Helper()
	iptables := func(rule string) error {
		out, err := l.Command("node2", "iptables", strings.Fields("-w 10 -t nat "+rule)...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("iptables %s: %w: %s", rule, err, out)
		}
		return err
	}
	deep := 0 // how many chains the kernel takes
	for to := "KUBE-SERVICES"; ; to = fmt.Sprint("OTHER-", deep) {
		from := fmt.Sprint("OTHER-", deep+1)
		must(l.t, iptables("-N "+from))
		must(l.t, iptables("-A "+from+" -j "+to))
		err := iptables("-I PREROUTING -j " + from)
		if err != nil && deep > 0 && strings.Contains(err.Error(), "Too many links") {
			break
		}
		must(l.t, err)
		if deep > 0 {
			must(l.t, iptables("-D PREROUTING -j "+to))
		}
		deep++
		if deep == 20 {
			l.t.Fatal("this kernel takes chains of any depth: another fault is needed (iptables-nft, which the proxy " +
				"uses here, has a limit of 16)")
		}
	}
	write(l.t, dir, "deep", longWay)
	expect("another program's chains leave ours no room", "KubeProxyRowsRefused")
	shows := map[string]string{} // queries
	for _, p := range readDashboard(l.t).all() {
		for _, q := range p.Targets {
			if !strings.Contains(q.Expr, "kubeproxy_rows_failing") {
				continue
			}
			expr := strings.NewReplacer("$cluster", ".*", "$job", "kube-proxy", "$instance", "172.18.0.3:10249").
				Replace(q.Expr)
			shows["("+expr+") == 2"] = p.Title // the NodePort and the load balancer's address, and not the cluster IP
		}
	}
	if len(shows) < 3 {
		l.t.Errorf("%d panels have rows that the kernel refuses", len(shows))
	}
	l.eventually("panels do not show the two rows", func() (left []string) {
		for query, title := range shows {
			if n, err := l.samples(query); err != nil || n != 1 {
				left = append(left, fmt.Sprint(title, ": ", query, ": ", n, err))
			}
		}
		return left
	})
	if n, err := l.samples(`kubeproxy_rows_failing{instance!="172.18.0.3:10249"} > 0`); err != nil || n != 0 {
		l.t.Errorf("rows fail on other nodes too: %d, %v", n, err)
	}
	for _, address := range []string{"10.96.0.10:80", "10.96.0.40:80"} { // others are served
		if _, err := l.Dial("pod4", netlab.TCP, netip.MustParseAddrPort(address),
			netlab.DialOptions{Timeout: timeout}); err != nil {
			l.t.Errorf("%s: %v", address, err)
		}
	}
	must(l.t, iptables(fmt.Sprint("-D PREROUTING -j OTHER-", deep)))
	l.eventually("the other program gives way", func() []string {
		if n := firing()["KubeProxyRowsRefused"]; n > 0 {
			return []string{"KubeProxyRowsRefused fires"}
		}
		return nil
	})
}

// lonely is a Service without endpoints.
const lonely = `kind: Service
metadata: {name: lonely, namespace: shop}
spec: {clusterIP: 10.96.0.44, ports: [{port: 80}]}
`

// longWay is a Service whose NodePort and load balancer's address go through more chains than its
// cluster IP does.
const longWay = `kind: Service
metadata: {name: deep, namespace: shop}
spec: {type: LoadBalancer, clusterIP: 10.96.0.40, ports: [{port: 80, nodePort: 30040}]}
status: {loadBalancer: {ingress: [{ip: 192.0.2.40}]}}
---
kind: EndpointSlice
metadata: {name: deep-1, namespace: shop, labels: {kubernetes.io/service-name: deep}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.1.1.12], nodeName: node1}, {addresses: [10.1.2.14], nodeName: node2}]
`

// ofMissingMode reports whether a query only has metrics of modes that this machine's kernel does
// not support. TestDashboard compares their names and labels with the modes' tables.
func ofMissingMode(query string) bool {
	names := regexp.MustCompile(`kubeproxy_[a-z_]+`).FindAllString(query, -1)
	for _, m := range all.Modes() {
		if m.Name != "nftables" && m.Name != "iptables" && m.Name != "userspace" {
			continue
		}
		for _, x := range m.Metrics {
			if slices.Contains(names, "kubeproxy_"+x.Name) {
				return false
			}
		}
	}
	for _, m := range all.Modes() {
		for _, x := range m.Metrics {
			if slices.Contains(names, "kubeproxy_"+x.Name) {
				return true
			}
		}
	}
	return false
}

func write(t *testing.T, dir, name, text string) {
	part := filepath.Join(dir, "."+name)
	if err := os.WriteFile(part, []byte(text), 0o644); err == nil {
		_ = os.Rename(part, filepath.Join(dir, name+".yaml"))
	}
}

// web is a Service with endpoints on two nodes, that changed at a time, and one whose endpoint is
// not there.
func web(changed string, more ...bool) string {
	annotations := ""
	if changed != "" {
		annotations = fmt.Sprintf(", annotations: {endpoints.kubernetes.io/last-change-trigger-time: %q}", changed)
	}
	endpoints := "{addresses: [10.1.1.12], nodeName: node1}"
	if slices.Contains(more, true) {
		endpoints += ", {addresses: [10.1.2.14], nodeName: node2}"
	}
	return `kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80}], sessionAffinity: ClientIP}
---
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}` + annotations + `}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [` + endpoints + `]
---
kind: Service
metadata: {name: gone, namespace: shop}
spec: {clusterIP: 10.96.0.12, ports: [{port: 80}]}
---
kind: EndpointSlice
metadata: {name: gone-1, namespace: shop, labels: {kubernetes.io/service-name: gone}}
addressType: IPv4
ports: [{port: 9}]
endpoints: [{addresses: [10.1.1.12], nodeName: node1}]
`
}

// claims are Services that claim one address, and one that claims an address no Service may have.
const claims = `kind: Service
metadata: {name: a, namespace: one}
spec: {clusterIP: 10.96.0.20, externalIPs: [203.0.113.7, 127.0.0.7], ports: [{port: 80}]}
---
kind: Service
metadata: {name: b, namespace: two}
spec: {clusterIP: 10.96.0.21, externalIPs: [203.0.113.7], ports: [{port: 80}]}
`

// onlyElsewhere is a Service that serves each node by itself, and no node has an endpoint.
const onlyElsewhere = `kind: Service
metadata: {name: local, namespace: shop}
spec: {clusterIP: 10.96.0.30, ports: [{port: 80}], internalTrafficPolicy: Local}
---
kind: EndpointSlice
metadata: {name: local-1, namespace: shop, labels: {kubernetes.io/service-name: local}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.1.2.14], nodeName: node9}]
`
