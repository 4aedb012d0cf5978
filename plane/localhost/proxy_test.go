//go:build linux

package localhost

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/plane/internal/relay"
)

// begin returns an IPv4 Proxy in a new namespace, with a limit of descriptors, and its log.
func begin(t *testing.T, descriptors int) (*Proxy, *bytes.Buffer) {
	t.Helper()
	netlab.EnterForTest(t)
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	log := &bytes.Buffer{}
	p, err := New(Config{Descriptors: relay.NewGroups(relay.NewBudget(descriptors), "a test"),
		Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	p.Reset(&lb.Table{Node: lb.Node{Localhost: netip.MustParseAddr("127.0.0.1")}})
	return p, log
}

// row returns a NodePort of a Service with one endpoint.
func row(service string, port uint16) *lb.Frontend {
	set := &lb.BackendSet{ID: lb.SetID{Service: service, Proto: lb.TCP},
		Backends: lb.BackendsOf(lb.Backend{Addr: netip.MustParseAddrPort("10.1.1.11:8080")})}
	return &lb.Frontend{Key: lb.Key{Port: port, Proto: lb.TCP}, Kind: lb.NodePort, Service: service,
		Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, To: set}}}
}

func set(f *lb.Frontend) lb.Change    { return lb.Change{Key: f.Key, New: f} }
func remove(f *lb.Frontend) lb.Change { return lb.Change{Key: f.Key, Old: f} }

func (p *Proxy) want(t *testing.T, listeners int, failures uint64) {
	t.Helper()
	if l, f := p.Stats(); l != listeners || f != failures {
		t.Errorf("%d listeners and %d failures, want %d and %d", l, f, listeners, failures)
	}
}

// One namespace gets at most eight ninths of the descriptors, however many NodePorts it has.
// Another namespace's NodePort is served. The excess is reported, retried, and served when
// descriptors are free (TN-59).
func TestListenersOfOneNamespaceTN59(t *testing.T) {
	p, log := begin(t, 90)
	var all []lb.Change
	for i := range 200 {
		all = append(all, set(row(fmt.Sprintf("evil/s%d:p", i), uint16(30000+i))))
	}
	p.Apply(all)
	had, failures := p.Stats()
	if had < 70 || had > 81 || failures != uint64(200-had) {
		t.Errorf("one namespace has %d listeners of 90 descriptors, and %d failures", had, failures)
	}
	if n := strings.Count(log.String(), "Failed to listen"); n != 20 ||
		!strings.Contains(log.String(), "Services of namespace evil have") {
		t.Errorf("%d lines: %.300s", n, log)
	}
	good := row("good/web", 31000)
	p.Apply([]lb.Change{set(good)})
	p.want(t, had+1, failures)

	for i := range all[:100] {
		all[i].New = nil
	}
	p.Apply(all[:100])
	p.again()
	if n, _ := p.Stats(); n < 70 { // a loop that accepts a client briefly holds two descriptors
		t.Errorf("of 100 NodePorts that are left there are %d listeners, %d before", n, had)
	}
	for i := range all {
		all[i].New = nil
	}
	p.Apply(append(all, remove(good)))
	p.Close()
	if len(p.doors) != 0 || p.descriptors.Len() != 0 || p.descriptors.Budget().Used() != 0 || len(p.failing) != 0 {
		t.Errorf("left: %d namespaces, %d descriptors, %d failing", p.descriptors.Len(), p.descriptors.Budget().Used(),
			len(p.failing))
	}
}

// Connections of one namespace do not use up those that another needs either (TN-59).
func TestConnectionsOfOneNamespaceTN59(t *testing.T) {
	p, _ := begin(t, 90)
	backend, err := net.Listen("tcp", "127.0.0.1:18080")
	if err != nil {
		t.Fatal(err)
	}
	defer backend.Close()
	go func() {
		for c, err := backend.Accept(); err == nil; c, err = backend.Accept() {
			go io.Copy(c, c)
		}
	}()
	for i := range 21 {
		f := row(fmt.Sprintf("evil/s%d", i), uint16(30080+i))
		if i == 20 {
			f = row("good/web", 30100)
		}
		f.Routes[0].To.Backends = lb.BackendsOf(lb.Backend{Addr: netip.MustParseAddrPort(backend.Addr().String())})
		p.Apply([]lb.Change{set(f)})
	}
	dial := func(port int) net.Conn {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	for i := range 200 {
		dial(30080 + i%20)
	}
	for p.relay.Stats().TCP.OutOfDescriptors == 0 {
		time.Sleep(time.Millisecond)
	}
	c := dial(30100)
	// Else it would block for ever.
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Errorf("a connection of another namespace, beside %d: %v", p.relay.Stats().TCP.Open, err)
	}
}

// A port that another program holds is retried at growing intervals, and each failure counts
// (TN-58).
func TestPortTakenTN58(t *testing.T) {
	p, log := begin(t, 90)
	taken, err := net.Listen("tcp", "127.0.0.1:30080")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	p.Apply([]lb.Change{set(row("shop/web", 30080)), set(row("shop/other", 30081))})
	p.want(t, 1, 1)
	if p.retry == nil {
		t.Error("no retry is planned")
	}
	p.again()
	p.want(t, 1, 2)
	if p.retry == nil || p.pause != 2*firstPause {
		t.Errorf("after a second failure the next retry comes after %s", p.pause)
	}
	if n := strings.Count(log.String(), "Failed to listen"); n != 1 || !strings.Contains(log.String(),
		"service=shop/web port=30080") || !strings.Contains(log.String(), "address already in use") {
		t.Errorf("%d lines: %s", n, log)
	}
	taken.Close()
	p.again()
	p.want(t, 2, 2)
	if p.retry != nil || p.pause != firstPause || len(p.failing) != 0 {
		t.Errorf("when all listen a retry is planned, after %s, for %v", p.pause, p.failing)
	}
}

// A port that moves between Services, and a Service port that changes its NodePort, are served at
// each step, in any order of changes; nothing is left of the old ones (TN-56).
func TestPortsChangeHands(t *testing.T) {
	p, _ := begin(t, 90)
	a, b := row("a/web", 30080), row("b/web", 30080)
	p.Apply([]lb.Change{set(a)})
	first := p.doors[30080]
	p.Apply([]lb.Change{set(b)})
	if d := p.doors[30080]; d == first || d.service != "b/web" {
		t.Errorf("%+v", d)
	}
	p.takes(t, 1, 1)
	moved := row("b/web", 30090)
	p.Apply([]lb.Change{set(moved), remove(b)})
	if d := p.doors[30090]; d == nil || len(d.turns.Backends()) != 1 || len(p.doors) != 1 {
		t.Errorf("after the change of a NodePort: %v", p.doors)
	}
	rejects := *moved
	rejects.Routes = []lb.Route{{From: lb.Anywhere, Do: lb.Reject}}
	p.Apply([]lb.Change{set(&rejects)})
	p.want(t, 0, 0)
	p.Apply([]lb.Change{set(moved)})
	p.SetNode(lb.Node{})
	p.want(t, 0, 0)
	p.SetNode(lb.Node{Localhost: netip.MustParseAddr("127.0.0.1")})
	p.want(t, 1, 0)
	p.Reset(&lb.Table{Node: lb.Node{Localhost: netip.MustParseAddr("127.0.0.1")}})
	p.want(t, 0, 0)
	p.Close()
	p.takes(t, 0, 0)
}

// takes waits until the proxy has so many descriptors. A loop whose listener is closed may have
// taken those of a next connection, and gives them back.
func (p *Proxy) takes(t *testing.T, namespaces int, descriptors int64) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		n, used := p.descriptors.Len(), p.descriptors.Budget().Used()
		if n == namespaces && used == descriptors {
			return
		}
		if time.Now().After(end) {
			t.Errorf("%d namespaces have %d descriptors, want %d and %d", n, used, namespaces, descriptors)
			return
		}
	}
}

// A nil Proxy serves nothing, and a closed one does nothing more.
func TestNone(t *testing.T) {
	var none *Proxy
	none.Apply([]lb.Change{set(row("a/b", 1))})
	none.Reset(&lb.Table{})
	none.SetNode(lb.Node{})
	none.Close()
	p, _ := begin(t, 1)
	p.Apply([]lb.Change{set(row("a/b", 30080)), set(row("a/c", 30081))})
	p.Close()
	p.again()
	p.Close()
	if p.retry != nil {
		t.Error("a retry is planned after Close")
	}
}
