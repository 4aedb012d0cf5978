package selftest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"kube-proxy/debug/api"
	"kube-proxy/debug/inspect"
	"kube-proxy/internal/netlab"
)

// lab is a node with a proxy that watches a folder of manifests.
type lab struct {
	net   *netlab.Lab
	dir   string
	ask   *api.Client
	proxy *netlab.Cmd
}

// service is a Service with TCP port 80.
type service struct {
	name, ip string
	nodePort int
	spec     string // further fields
	hosts    []string
}

const local, remote, onNode, sticky, spread, moving = "10.96.0.11", "10.96.0.12", "10.96.0.13", "10.96.0.15",
	"10.96.0.16", "10.96.0.17"

// labServices has a Service of each kind.
var labServices = []service{
	{"local", local, 30011, "", []string{"pod1"}},
	{"remote", remote, 30012, "", []string{"pod4"}},
	{"node", onNode, 30013, "", []string{"node2"}},
	{"kept", "10.96.0.14", 30014, "externalTrafficPolicy: Local, ", []string{"pod1"}},
	{"sticky", sticky, 30015, "sessionAffinity: ClientIP, ", []string{"pod1", "pod2", "pod4"}},
	{"spread", spread, 30016, "", []string{"pod1", "pod2", "pod4"}},
	{"moving", moving, 30017, "", []string{"pod2"}},
}

// extra is created, changed and deleted.
var extra = service{"extra", "10.96.0.99", 30099, "", []string{"pod1"}}

func (s service) manifest() string {
	var endpoints []string
	for _, name := range s.hosts {
		h, _ := netlab.HostByName(name)
		endpoints = append(endpoints, fmt.Sprintf("{addresses: [%s], nodeName: %s}", h.V4, h.Node))
	}
	kind, port := "ClusterIP", ""
	if s.nodePort != 0 {
		kind, port = "NodePort", fmt.Sprintf(", nodePort: %d", s.nodePort)
	}
	return fmt.Sprintf("kind: Service\nmetadata: {name: %[1]s, namespace: selftest}\n"+
		"spec: {type: %[2]s, clusterIP: %[3]s, %[4]sports: [{port: 80%[5]s}]}\n---\n"+
		"kind: EndpointSlice\nmetadata: {name: %[1]s, namespace: selftest, labels: {kubernetes.io/service-name: "+
		"%[1]s}}\naddressType: IPv4\n"+
		"ports: [{port: %[6]d}]\nendpoints: [%[7]s]\n---\n", s.name, kind, s.ip, s.spec, port, echoPort,
		strings.Join(endpoints, ", "))
}

func manifests(all []service) string {
	var text strings.Builder
	for _, s := range all {
		text.WriteString(s.manifest())
	}
	return text.String()
}

// inLab returns the steps in network namespaces, and a function that removes these.
func (r *run) inLab() (steps []func(context.Context) bool, end func(context.Context)) {
	noHNS := func(context.Context) bool { return r.skip("step", "only Windows has HNS") }
	return []func(context.Context) bool{r.node, r.build, noHNS, noHNS, r.shapes, r.latency, r.dataPath, r.restarts,
			r.control}, func(context.Context) {
			if r.lab.net != nil {
				_ = r.lab.net.Close() // it ends with the process anyway
				_ = os.RemoveAll(r.lab.dir)
			}
		}
}

// build is step 2.
func (r *run) build(context.Context) bool {
	l := &r.lab
	r.connect = r.ask
	var err error
	if l.net, err = netlab.New(netlab.Options{}); err == nil {
		l.dir, err = os.MkdirTemp("", "kube-proxy-selftest-")
	}
	for _, host := range []string{"pod1", "pod2", "pod4", netlab.Node2} {
		if err == nil {
			_, err = l.net.Listen(host, netlab.TCP, echoPort)
		}
	}
	l.ask = api.NewClient(l.path("admin.sock"))
	return r.check("lab", "network namespaces represent two nodes, their pods and a client outside; they end with "+
		"this command", err)
}

func (l *lab) path(name string) string { return filepath.Join(l.dir, name) }

// put replaces a file of manifests.
func (l *lab) put(name, text string) error {
	if err := os.WriteFile(l.path(name), []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(l.path(name), l.path(name+".yaml"))
}

// start starts the proxy on node1.
func (r *run) start() error {
	l := &r.lab
	log, err := os.Create(l.path("log"))
	if err != nil {
		return err
	}
	defer log.Close()
	l.proxy = l.net.Command(netlab.Node1, r.Program, "--proxy-mode="+r.Mode, "--manifests="+l.dir,
		"--hostname-override=node1", "--cluster-cidr=10.1.0.0/16",
		"--nodeport-addresses=172.18.0.0/24", "--conntrack-max-per-core=0", "--conntrack-min=0", "--admin-socket="+
			l.path("admin.sock"))
	l.proxy.Stdout, l.proxy.Stderr = log, log
	return l.proxy.Start()
}

// settled waits until the kernel has exactly that number of Services.
func (r *run) settled(ctx context.Context, services int) error {
	err := r.await(ctx, func() error {
		var s inspect.Status
		if err := r.lab.ask.Get(ctx, "status", nil, &s); err != nil {
			return err
		}
		begun := !slices.ContainsFunc(s.Families, func(f inspect.FamilyStatus) bool { return !f.Begun })
		if !s.Synced || s.Services != services || !begun { // a comparison would only delay it
			return fmt.Errorf("the proxy has %d Services of %d; written: %t", s.Services, services, begun)
		}
		var d inspect.Diff
		if err := r.lab.ask.Get(ctx, "diff", nil, &d); err != nil {
			return err
		}
		if d.Frontends < services || len(d.Differences) > 0 {
			return fmt.Errorf("the proxy has %d frontends of %d Services; in the kernel %d objects differ %.1v",
				d.Frontends, services, len(d.Differences)+d.More, d.Differences)
		}
		return nil
	})
	if err != nil {
		log, _ := os.ReadFile(r.lab.path("log"))
		lines := bytes.Split(bytes.TrimSpace(log), []byte("\n"))
		err = fmt.Errorf("%w; last log line: %q", err, lines[len(lines)-1])
	}
	return err
}

// served waits until a host answers a pod.
func (r *run) served(ctx context.Context, ip, by string) error {
	return r.await(ctx, func() error {
		got, err := r.lab.net.Dial("pod3", netlab.TCP, at(ip, 80), netlab.DialOptions{Timeout: soon})
		if err == nil && got.Server != by {
			err = fmt.Errorf("%s answers", got.Server)
		}
		return err
	})
}

// change replaces a file. It waits until a host answers at the address, unless that is "", and the
// kernel has that number of Services.
func (r *run) change(ctx context.Context, file, text string, services int, ip, by string) error {
	err := r.lab.put(file, text)
	if err == nil && ip != "" {
		err = r.served(ctx, ip, by)
	}
	if err == nil {
		err = r.settled(ctx, services)
	}
	return err
}

// shapes is step 5: the proxy writes, changes and deletes Services, and the kernel is compared with
// them.
func (r *run) shapes(ctx context.Context) bool {
	const node = "kind: Node\nmetadata: {name: node1}\nstatus: {addresses: [{type: InternalIP, address: 172.18.0.2}]}\n"
	n := len(labServices)
	err := errors.Join(r.lab.put("node", node), r.lab.put("extra", extra.manifest()),
		r.lab.put("all", manifests(labServices)), r.start())
	if err == nil {
		err = r.change(ctx, "extra", extra.manifest(), n+1, extra.ip, "pod1")
	}
	if !r.check("created", "the kernel has Services of each kind, and a pod answers", err) {
		return false
	}
	moved := extra
	moved.hosts = []string{"pod4"}
	return r.check("modified", "an endpoint is replaced", r.change(ctx, "extra", moved.manifest(), n+1, moved.ip,
		"pod4")) && r.check("deleted", "a deleted Service leaves nothing behind", r.change(ctx, "extra", "", n, "", ""))
}

// latency is step 6: from writing manifests to the first answer of the last Service.
func (r *run) latency(ctx context.Context) bool {
	for _, n := range r.Sizes {
		var many []service
		for i := range n {
			many = append(many, service{name: fmt.Sprintf("many-%d", i), ip: fmt.Sprintf("10.97.%d.%d", i/250, i%250+1),
				hosts: []string{"pod1"}})
		}
		begun := time.Now()
		err := r.lab.put("many", manifests(many))
		if err == nil {
			err = r.served(ctx, many[n-1].ip, "pod1")
		}
		if !r.check(fmt.Sprintf("served/%d", n), fmt.Sprintf("the last of %d new Services answers", n), err) {
			break
		}
		r.answer(fmt.Sprintf("latency-ms/%d", n), time.Since(begun).Milliseconds())
	}
	return r.check("many-deleted", "they leave nothing behind", r.change(ctx, "many", "", len(labServices), "", ""))
}

func at(ip string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(ip), port)
}

// soon is the timeout of a request that is repeated at once.
const soon = 100 * time.Millisecond

// ask connects with the usual timeout.
func (r *run) ask(_ context.Context, from string, to netip.AddrPort) (reply, error) {
	got, err := r.lab.net.Dial(from, netlab.TCP, to, netlab.DialOptions{})
	return reply{got.Server, got.Seen.Addr()}, err
}

// dataPath is step 7.
func (r *run) dataPath(ctx context.Context) bool {
	const node = "172.18.0.2"
	for _, w := range []struct {
		name, from string
		to         netip.AddrPort
		by         string
	}{
		{"pod-local", "pod3", at(local, 80), "pod1"}, {"host-local", netlab.Node1, at(local, 80), "pod1"},
		{"pod-remote", "pod3", at(remote, 80), "pod4"}, {"host-remote", netlab.Node1, at(remote, 80), "pod4"},
		{"pod-node", "pod3", at(onNode, 80), netlab.Node2}, {"host-node", netlab.Node1, at(onNode, 80), netlab.Node2},
		{"hairpin", "pod1", at(local, 80), "pod1"}, {"node-port", netlab.Client, at(node, 30012), "pod4"},
	} {
		r.reaches(ctx, w.name, w.from, w.to, w.by, netip.Addr{})
	}
	if r.Terminates {
		r.skip("client-address", "connections end at the proxy, so pods see the node's address")
	} else {
		client, _ := netlab.HostByName(netlab.Client)
		r.reaches(ctx, "client-address", client.Name, at(node, 30014), "pod1", client.V4)
	}
	r.spreads(ctx, "affinity", "with sessionAffinity one pod answers a client", "pod3", at(sticky, 80), 1)
	r.spreads(ctx, "balanced", "without it, each of three pods answers", "pod3", at(spread, 80), 3)
	c, err := r.lab.net.Open("pod3", netlab.TCP, at(moving, 80), netlab.DialOptions{})
	if err != nil {
		r.check("open-connection", "a connection opens", err)
		return true
	}
	defer c.Close()
	exchange := func() (string, error) {
		got, err := c.Exchange()
		return got.Server, err
	}
	r.moves(ctx, "pod3", at(moving, 80), "pod2", "pod4", exchange, func() error {
		moved := labServices[len(labServices)-1]
		moved.hosts = []string{"pod4"}
		return r.lab.put("all", manifests(append(slices.Clone(labServices[:len(labServices)-1]), moved)))
	})
	return true
}

// restarts is step 8: the proxy is killed and restarted, under traffic if the kernel forwards that.
func (r *run) restarts(ctx context.Context) bool {
	var ways []netlab.Way
	if !r.Terminates {
		const rest = 9 // leaves the processors to the starting proxy
		ways = []netlab.Way{{From: "pod3", To: at(remote, 80), Rest: rest}, {From: netlab.Node1, To: at(local, 80),
			Rest: rest}}
	}
	traffic, err := r.lab.net.StartTraffic(ways...)
	if !r.check("before", "connections are open", err) {
		return false
	}
	err = r.lab.proxy.Close() // SIGKILL
	if err == nil {
		err = r.start()
	}
	if err == nil {
		err = r.settled(ctx, len(labServices))
	}
	back := r.check("crash", "a killed proxy starts again and serves the same Services", err)
	if err = traffic.Stop(); r.Terminates {
		r.skip("undisturbed", "connections end with the proxy")
	} else {
		r.check("undisturbed", "meanwhile no connection broke or was refused", err)
	}
	return back
}

// control is step 9, with signals in place of service controls.
func (r *run) control(ctx context.Context) bool {
	err := r.lab.proxy.Process.Signal(syscall.SIGHUP)
	for i, text := range []string{extra.manifest(), ""} {
		if err == nil {
			err = r.change(ctx, "extra", text, len(labServices)+1-i, "", "")
		}
	}
	r.check("parameter-change", "the proxy applies changes after SIGHUP", err)
	if err = r.lab.proxy.Process.Signal(syscall.SIGTERM); err == nil {
		late := time.AfterFunc(r.Timeout, func() { _ = r.lab.proxy.Process.Kill() }) // Wait returns its error
		err = r.lab.proxy.Wait()
		late.Stop()
	}
	return r.check("stop", "it exits cleanly after SIGTERM", err)
}
