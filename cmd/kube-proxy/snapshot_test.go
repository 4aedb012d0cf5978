//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"kube-proxy/cluster"
	"kube-proxy/internal/netlab"
	"kube-proxy/source/snapshot"
	"kube-proxy/test/logtest"
)

// labAPI is an API server of node1 that has objects from its start on, and never changes them.
type labAPI struct {
	server *http.Server
	mu     sync.Mutex
	lists  map[string][]json.RawMessage // by resource
	events strings.Builder
}

const labAPIAt = "127.0.0.1:6443"

// api starts an API server that has the node and these Services.
func (n *nodeLab) api(services ...labService) *labAPI {
	n.t.Helper()
	a := &labAPI{lists: map[string][]json.RawMessage{}}
	a.add(n.t, "kind: Node\nmetadata: {name: node1}\nstatus: {addresses: [{type: InternalIP, address: 172.18.0.2}]}\n")
	for _, s := range services {
		for _, doc := range strings.Split(s.manifest(), "---\n") {
			a.add(n.t, doc)
		}
	}
	var l net.Listener
	n.On(netlab.Node1, func() {
		var err error
		l, err = net.Listen("tcp", labAPIAt)
		do(n.t, err)
	})
	a.server = &http.Server{Handler: a}
	go a.server.Serve(l)
	n.t.Cleanup(a.stop)
	return a
}

func (a *labAPI) stop() { _ = a.server.Close() }

func (a *labAPI) add(t testing.TB, doc string) {
	t.Helper()
	text, err := yaml.YAMLToJSON([]byte(doc))
	do(t, err)
	var kind struct{ Kind string }
	do(t, json.Unmarshal(text, &kind))
	resource := strings.ToLower(kind.Kind) + "s"
	a.lists[resource] = append(a.lists[resource], text)
}

// ServeHTTP answers lists and requests of Nodes, keeps watches open, and takes events.
func (a *labAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	resource := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	list := map[string]string{
		"services": `"ServiceList","apiVersion":"v1"`, "nodes": `"NodeList","apiVersion":"v1"`,
		"endpointslices": `"EndpointSliceList","apiVersion":"discovery.k8s.io/v1"`,
		"servicecidrs":   `"ServiceCIDRList","apiVersion":"networking.k8s.io/v1"`,
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case r.Method != http.MethodGet:
		text, _ := io.ReadAll(r.Body)
		a.events.Write(text)
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(text)
	case r.URL.Query().Get("sendInitialEvents") != "":
		w.WriteHeader(http.StatusUnprocessableEntity)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)
	case r.URL.Query().Get("watch") != "":
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		a.mu.Unlock()
		<-r.Context().Done()
		a.mu.Lock()
	case strings.HasSuffix(r.URL.Path, "/nodes/"+resource):
		items := a.named("nodes", resource)
		if len(items) == 0 {
			w.WriteHeader(http.StatusNotFound)
			items = []json.RawMessage{[]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure",` +
				`"reason":"NotFound","code":404}`)}
		}
		_, _ = w.Write(items[0])
	default:
		items := a.lists[resource]
		if name, one := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name="); one {
			items = a.named(resource, name)
		}
		fmt.Fprintf(w, `{"kind":%s,"metadata":{"resourceVersion":"1"},"items":[`, list[resource])
		for i, item := range items {
			if i > 0 {
				fmt.Fprint(w, ",")
			}
			_, _ = w.Write(item)
		}
		fmt.Fprint(w, "]}")
	}
}

// named returns the objects with the name.
func (a *labAPI) named(resource, name string) (found []json.RawMessage) {
	for _, item := range a.lists[resource] {
		var o struct{ Metadata struct{ Name string } }
		if json.Unmarshal(item, &o) == nil && o.Metadata.Name == name {
			found = append(found, item)
		}
	}
	return found
}

// hasEvent reports whether an event was sent.
func (a *labAPI) hasEvent(reason string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return strings.Contains(a.events.String(), reason)
}

// snapshotLab is a node that keeps a snapshot.
type snapshotLab struct {
	*nodeLab
	dir, boot string
	rnd       *rand.Rand
}

func newSnapshotLab(t *testing.T, mode string) *snapshotLab {
	n := &snapshotLab{nodeLab: newNodeLab(t), dir: filepath.Join(t.TempDir(), "snapshot")}
	n.rnd = rand.New(rand.NewPCG(1, 2))
	n.mode = mode
	n.reboot("first")
	return n
}

// servedSnapshotLab is a lab in mode nftables whose proxy and API server have served a Service, and
// ended.
func servedSnapshotLab(t *testing.T) (n *snapshotLab, web labService) {
	n = newSnapshotLab(t, "nftables")
	n.echo("pod1", 8080)
	web = labService{name: "web", ip: "10.96.0.10", endpoints: []netip.AddrPort{endpoint("pod1", 8080)}}
	api := n.api(web)
	p := n.run()
	p.await(allWritten)
	p.stop()
	api.stop()
	return n, web
}

// reboot gives the node another boot id.
func (n *snapshotLab) reboot(id string) {
	n.boot = filepath.Join(n.t.TempDir(), "boot-id")
	do(n.t, os.WriteFile(n.boot, []byte(id), 0o644))
}

func (n *snapshotLab) run(args ...string) *labProgram {
	n.t.Helper()
	return n.program(append([]string{"--proxy-mode=" + n.mode, "--hostname-override=node1", "--v=2", "--boot-id-file=" +
		n.boot, "--master=http://" + labAPIAt, "--kube-api-content-type=application/json", "--snapshot=" + n.dir,
		"--cluster-cidr=10.1.0.0/16,fd00:10:1::/48", "--conntrack-max-per-core=0", "--conntrack-min=0",
		"--admin-socket=" + filepath.Join(n.t.TempDir(), "admin.sock")}, args...)...)
}

// answered checks that a client reaches the Service.
func (n *snapshotLab) answered(s labService) {
	n.t.Helper()
	if problem := n.problem(s); problem != "" {
		n.t.Error(problem)
	}
}

// problem returns the reason why a client does not reach the Service; "" if it does.
func (n *snapshotLab) problem(s labService) string {
	to := netip.MustParseAddrPort(s.ip + ":80")
	if _, err := n.converse(netlab.Client, to, 100, timeout, n.rnd); err != nil {
		return fmt.Sprintf("Service %s: %v", s.name, err)
	}
	return ""
}

// ready checks the answer to probes.
func (n *snapshotLab) ready(code string) {
	n.t.Helper()
	for _, path := range []string{"/readyz", "/healthz"} {
		until(n.t, func() string {
			c, err := n.dial(netlab.Node1, "tcp", netip.MustParseAddrPort("127.0.0.1:10256"), time.Second)
			if err != nil {
				return err.Error()
			}
			defer c.Close()
			fmt.Fprintf(c, "GET %s HTTP/1.0\r\n\r\n", path)
			answer, _ := io.ReadAll(c)
			if !strings.HasPrefix(string(answer), "HTTP/1.0 "+code) {
				return fmt.Sprintf("%s: %s, want %s", path, answer, code)
			}
			return ""
		})
	}
}

// steady is a connection that must live.
type steady struct{ net.Conn }

func (n *snapshotLab) steady(s labService) steady {
	n.t.Helper()
	c, err := n.dial(netlab.Client, "tcp", netip.MustParseAddrPort(s.ip+":80"), timeout)
	do(n.t, err)
	n.t.Cleanup(func() { c.Close() })
	do(n.t, c.SetDeadline(time.Now().Add(timeout)))
	_, err = io.ReadFull(c, make([]byte, len("pod1:8080\n")))
	do(n.t, err)
	return steady{c}
}

func (c steady) lives(t *testing.T) {
	t.Helper()
	do(t, c.SetDeadline(time.Now().Add(timeout)))
	_, err := c.Write([]byte("ping"))
	if err == nil {
		_, err = io.ReadFull(c, make([]byte, 4))
	}
	if err != nil {
		t.Errorf("an established connection broke: %v", err)
	}
}

var (
	servingSnapshot = regexp.MustCompile(`Serving from a snapshot`)
	snapshotOver    = regexp.MustCompile(`snapshot is no longer in use`)
)

// SN-01, SN-03: after a reboot the node serves from the snapshot, and reports that. The lists of
// the API server then change only the differences, one added and one deleted Service: connections
// live, and rules keep their handles. SN-07: a process that starts again in the same boot does not
// touch the rules of the kernel, but if another program has removed them it serves from the
// snapshot.
func TestBootWithoutAPIServer(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"nftables", "iptables", "userspace"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			n := newSnapshotLab(t, mode)
			for _, pod := range []string{"pod1", "pod2", "pod4"} {
				n.echo(pod, 8080)
			}
			lasting := "" // contents of rules that must not change
			if mode == "iptables" {
				lasting = " 10.1.1.1" // the pods of the remaining Services; the small dispatch chain is rewritten
			}
			to := func(pod string) []netip.AddrPort { return []netip.AddrPort{endpoint(pod, 8080)} }
			web := labService{name: "web", ip: "10.96.0.10", endpoints: to("pod1")}
			other := labService{name: "other", ip: "10.96.0.20", endpoints: to("pod2")}
			old := labService{name: "old", ip: "10.96.0.30", endpoints: to("pod4")}
			young := labService{name: "young", ip: "10.96.0.40", endpoints: to("pod4")}

			api := n.api(web, other, old)
			p := n.run()
			p.await(allWritten)
			n.ready("200")
			n.answered(web)
			p.stop()
			api.stop()
			if info, err := os.Stat(filepath.Join(n.dir, "facts")); err != nil || info.Mode() != 0o600 {
				t.Fatalf("the snapshot: %v (%v)\n%s", info, err, p.log())
			}
			n.loseRules()

			n.reboot("second")
			p = n.run()
			p.await(servingSnapshot)
			p.await(allWritten)
			n.ready("503")
			connections := []steady{n.steady(web), n.steady(other)}
			n.answered(old)
			metrics, err := p.get("/metrics")
			if err != nil || !strings.Contains(metrics, "kubeproxy_snapshot_serving 1") {
				t.Errorf("metrics (%v):\n%s", err, metrics)
			}
			before := n.handles(lasting)
			api = n.api(web, other, young)
			p.await(snapshotOver)
			until(t, func() string { return n.problem(young) })
			n.ready("200")
			for _, c := range connections {
				c.lives(t)
			}
			after := n.handles(lasting)
			for _, line := range before {
				if !slices.Contains(after, line) {
					t.Errorf("rewritten: %s", line)
				}
			}
			until(t, func() string {
				if c, err := n.dial(netlab.Client, "tcp", netip.MustParseAddrPort(old.ip+":80"),
					100*time.Millisecond); err == nil {
					c.Close()
					return "a Service that has gone is served"
				}
				return ""
			})
			until(t, func() string {
				if !api.hasEvent("KubeProxyServingSnapshot") {
					return "there is no event"
				}
				return ""
			})
			written := 0
			for _, m := range regexp.MustCompile(`verb="apply" changes=(\d+)`).FindAllStringSubmatch(p.log(), -1) {
				changes, err := strconv.Atoi(m[1])
				do(t, err)
				written += changes
			}
			if written < 4 || written > 6 { // two ports added, perhaps before their endpoints, and two removed
				t.Errorf("%d changes were written, want 4 to 6:\n%s", written, p.log())
			}
			p.stop()
			api.stop()

			// The same boot.
			if mode == "userspace" { // its rules point to a process that has ended
				p = n.run()
				p.await(servingSnapshot)
				p.await(allWritten)
			} else {
				before = n.handles("")
				p = n.run()
				p.await(regexp.MustCompile(`Snapshot not needed`))
				if after := n.handles(""); !slices.Equal(after, before) {
					t.Errorf("the kernel has\n%s\nwant\n%s", after, before)
				}
			}
			n.answered(young)
			p.stop()

			// The same boot, but another program has emptied the kernel.
			n.loseRules()
			p = n.run()
			p.await(servingSnapshot)
			p.await(allWritten)
			n.answered(young)
			p.stop()
			if mode != "nftables" {
				return
			}
			// Its tables are there, with sets and maps, and without a rule.
			flush := "flush table ip kube-proxy; flush table ip6 kube-proxy"
			out, err := n.Command(netlab.Node1, "nft", flush).CombinedOutput()
			if err != nil {
				t.Fatalf("flush: %v\n%s", err, out)
			}
			p = n.run()
			p.await(servingSnapshot)
			p.await(allWritten)
			n.answered(young)
			p.stop()
		})
	}
}

// SN-03: with --snapshot-ready the node counts as ready while it serves from a snapshot.
func TestReadyFromSnapshot(t *testing.T) {
	t.Parallel()
	n, web := servedSnapshotLab(t)
	n.reboot("second")
	p := n.run("--snapshot-ready")
	p.await(servingSnapshot)
	n.ready("200")
	n.answered(web)
	p.stop()
}

// SN-02, SN-06: a snapshot that cannot be used is reported in one line, with the reason. The
// process waits for the API server as without a snapshot, and the rules in the kernel stay. A write
// that fails is one more line.
func TestBadSnapshot(t *testing.T) {
	t.Parallel()
	n, web := servedSnapshotLab(t)
	file := filepath.Join(n.dir, "facts")
	good, err := os.ReadFile(file)
	do(t, err)
	rejected := regexp.MustCompile(`(?m)^E.*"Snapshot rejected, starting without" err=.*$`)
	for i, c := range []struct {
		name, want string
		spoil      func()
		spoils     int // lines about writes
	}{
		{"altered", "its checksum does not match", func() {
			bad := slices.Clone(good)
			bad[len(bad)-1]++
			do(t, os.WriteFile(file, bad, 0o600))
		}, 0},
		{"a directory for all", "other users have access (mode 0777)", func() { do(t, os.Chmod(n.dir, 0o777)) }, 1},
	} {
		c.spoil()
		n.reboot(fmt.Sprint("boot ", i))
		p := n.run()
		p.await(rejected)
		n.answered(web) // by the rules before
		n.ready("503")
		api := n.api(web)
		p.await(allWritten)
		n.ready("200")
		n.answered(web)
		p.stop()
		api.stop()
		lines := rejected.FindAllString(p.log(), -1)
		if len(lines) != 1 || !strings.Contains(lines[0], c.want) {
			t.Errorf("%s: %q, want one line with %q", c.name, lines, c.want)
		}
		if got := strings.Count(p.log(), "Snapshot is not complete"); got != c.spoils {
			t.Errorf("%s: %d lines about writes, want %d:\n%s", c.name, got, c.spoils, p.log())
		}
	}
}

// SN-06: a disk that does not answer keeps the process neither from serving nor from ending.
func TestDiskDoesNotAnswer(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	var log logtest.Buffer
	p := n.proxy(slog.New(slog.NewTextHandler(&log, nil)))
	p.store.WaitForFacts(false)
	writing, never := make(chan struct{}), make(chan struct{})
	var begun sync.Once
	defer close(never)
	p.snapshots.manager = snapshot.NewManager(snapshot.Config{
		Save: func() (snapshot.Saved, error) {
			begun.Do(func() { close(writing) })
			<-never
			return snapshot.Saved{}, nil
		},
		Current: func() bool { return p.begun.done() }, MaxAge: time.Hour, Log: p.log,
	})
	ctx, cancel := context.WithCancel(t.Context())
	src := source{run: func(ctx context.Context, sink func(cluster.Event)) error {
		sink(cluster.SlicesListed{})
		sink(cluster.ServicesListed{})
		web := cluster.Name{Namespace: "shop", Name: "web"}
		sink(cluster.ServiceSet{Service: &cluster.Service{Name: web}})
		<-writing
		for range 1000 { // the source does not wait for the disk
			sink(cluster.ServiceSet{Service: &cluster.Service{Name: web, Created: 1}})
			sink(cluster.ServiceGone{Name: web})
		}
		cancel()
		return nil
	}}
	if err := p.serve(ctx, src); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "The last snapshot is not written") {
		t.Errorf("log:\n%s", log.String())
	}
	if err := p.closePlanes(); err != nil {
		t.Error(err)
	}
}

// loseRules takes all rules from the kernel, as a reboot does.
func (n *snapshotLab) loseRules() {
	n.t.Helper()
	p := n.program("--cleanup", "--hostname-override=node1")
	if code := p.end(0); code != 0 {
		n.t.Fatalf("--cleanup: exit code %d\n%s", code, p.log())
	}
}

// handles lists the rules and chains that nf_tables has and that contain a text, with their
// handles, but without counters.
func (n *snapshotLab) handles(text string) []string {
	n.t.Helper()
	out, err := n.Command(netlab.Node1, "nft", "-a", "list", "ruleset").CombinedOutput()
	do(n.t, err)
	counters := regexp.MustCompile(`counter packets \d+ bytes \d+|expires \S+`)
	var all []string
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "# handle") && strings.Contains(line, text) {
			all = append(all, counters.ReplaceAllString(line, ""))
		}
	}
	return all
}
