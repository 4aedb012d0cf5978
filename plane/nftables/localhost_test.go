//go:build linux

package nftables

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/nodetrace"
	"kube-proxy/test/planetest"
	"kube-proxy/test/tables"
	"kube-proxy/trace"
)

// localhostTable has NodePorts on localhost: 30080 with all endpoints, 30081 with session affinity
// and one endpoint, 30082 with the policy Local and a local endpoint, 30083 without a local one,
// 30084 without any, and 30053 for UDP.
const localhostTable = `node nodeports %[1]s/%[2]d localhost %[1]s
nodeport:30080/tcp shop/web:http nodeport
  anywhere balance shop/web:http/tcp/cluster masquerade
nodeport:30081/tcp shop/sticky nodeport affinity 3600s
  anywhere balance shop/sticky/tcp/cluster masquerade
nodeport:30082/tcp shop/local nodeport
  host     balance shop/local/tcp/cluster masquerade
  anywhere balance shop/local/tcp/local
nodeport:30083/tcp shop/away nodeport
  host     balance shop/away/tcp/cluster masquerade
  anywhere drop
nodeport:30084/tcp shop/empty nodeport
  anywhere reject
nodeport:30053/udp shop/dns nodeport
  anywhere balance shop/dns/udp/cluster masquerade
set shop/web:http/tcp/cluster
  %[3]s:8080 local
  %[4]s:8080
set shop/sticky/tcp/cluster
  %[3]s:8080 local
  %[4]s:8080
set shop/local/tcp/cluster
  %[3]s:8080 local
  %[4]s:8080
set shop/local/tcp/local
  %[3]s:8080 local
set shop/away/tcp/cluster
  %[4]s:8080
set shop/dns/udp/cluster
  %[3]s:8080 local
`

// localhostOf returns the table of a family, and its loopback address.
func localhostOf(t testing.TB, f lb.Family) (*lb.Table, netip.Addr) {
	t.Helper()
	at, six := netip.MustParseAddr("127.0.0.1"), f == lb.IPv6
	if six {
		at = netip.IPv6Loopback()
	}
	backend := func(pod string) string {
		h, _ := netlab.HostByName(pod)
		return strings.TrimSuffix(netip.AddrPortFrom(h.Addr(six), 0).String(), ":0")
	}
	tab, err := tables.Parse(fmt.Sprintf(localhostTable, at, at.BitLen(), backend("pod1"), backend("pod4")))
	if err != nil {
		t.Fatal(err)
	}
	return tab, at
}

// localhostLab is a lab whose node has a plane that serves NodePorts on localhost.
type localhostLab struct {
	*netlab.TestLab
	t     *testing.T
	at    netip.Addr
	table *lb.Table
	plane *Plane
}

func newLocalhostLab(t *testing.T, f lb.Family) *localhostLab {
	t.Helper()
	l := &localhostLab{TestLab: netlab.ForTest(t, netlab.Options{}), t: t}
	l.table, l.at = localhostOf(t, f)
	for _, proto := range []netlab.Proto{netlab.TCP, netlab.UDP} {
		l.Serve(proto, 8080, "pod1", "pod4")
	}
	l.restart(true)
	t.Cleanup(l.stop)
	return l
}

// stop ends the process; its rules stay.
func (l *localhostLab) stop() {
	if l.plane == nil {
		return
	}
	if err := l.plane.Close(); err != nil {
		l.t.Error(err)
	}
	l.plane = nil
}

// restart replaces the plane by that of another process, with the feature gate on or off.
func (l *localhostLab) restart(on bool) {
	l.t.Helper()
	l.On("node1", func() {
		l.stop()
		var err error
		l.plane, err = New(Config{Family: lb.FamilyOf(l.at), LocalhostNodePorts: on})
		if err != nil {
			l.t.Fatal(err)
		}
		reset(l.t, l.plane, l.table)
	})
}

// servers returns the servers that answered some connections. It checks that they saw the node's
// address, and that trace agrees.
func (l *localhostLab) servers(port uint16) (names []string) {
	l.t.Helper()
	for range 8 {
		r, err := l.Dial("node1", netlab.TCP, netip.AddrPortFrom(l.at, port), netlab.DialOptions{})
		if err != nil {
			l.t.Fatal(err)
		}
		if h, _ := netlab.HostByName("node1"); r.Seen.Addr().IsLoopback() || r.Server == "pod4" &&
			r.Seen.Addr() != h.Addr(l.at.Is6()) {
			l.t.Errorf("%s saw %s", r.Server, r.Seen)
		}
		if !slices.Contains(names, r.Server) {
			names = append(names, r.Server)
		}
	}
	slices.Sort(names)
	l.traced(lb.TCP, port, trace.Balance)
	return names
}

func (l *localhostLab) refused(proto netlab.Proto, port uint16) {
	l.t.Helper()
	if _, err := l.Dial("node1", proto, netip.AddrPortFrom(l.at, port), netlab.DialOptions{}); !errors.Is(err,
		netlab.ErrRefused) {
		l.t.Errorf("%s to port %d: %v, want that it is refused", proto, port, err)
	}
}

// refusedAtOnce sends a datagram from a connected socket: sending must succeed, and the answer is
// ECONNREFUSED, not EPERM.
func (l *localhostLab) refusedAtOnce(port uint16) {
	l.t.Helper()
	l.On("node1", func() {
		conn, err := net.Dial("udp", netip.AddrPortFrom(l.at, port).String())
		if err != nil {
			l.t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("x")); err != nil {
			l.t.Errorf("send: %v", err)
		}
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNREFUSED) {
			l.t.Errorf("receive: %v, want ECONNREFUSED", err)
		}
	})
}

// traced traces a packet through the table and the kernel, which must agree.
func (l *localhostLab) traced(proto lb.Proto, port uint16, want trace.Verdict) {
	l.t.Helper()
	packet := trace.Packet{From: netip.AddrPortFrom(l.at, 0), Host: true, To: netip.AddrPortFrom(l.at, port),
		Here: true, Proto: proto}
	a := trace.Ask(l.table, Mode().Trace(mode.Settings{LocalhostProxy: l.plane.localhost != nil}), packet)
	l.On("node1", func() {
		k, err := l.plane.TracePacket(l.t.Context(), packet, nodetrace.Kernel)
		if err != nil {
			l.t.Fatal(err)
		}
		if findings := trace.Compare(a, k); a.Verdict != want || len(findings) > 0 {
			l.t.Errorf("port %d/%s: the table says %s, want %s: %q; the kernel %s: %q; %q", port, proto, a.Verdict,
				want, a.Why, k.Verdict, k.Way, findings)
		}
	})
}

// same fails if the kernel differs from the table, or if an audit repairs anything.
func (l *localhostLab) same() {
	l.t.Helper()
	l.On("node1", func() {
		if found := planetest.Differences(l.t, l.plane, l.table); len(found) > 0 {
			l.t.Errorf("differences: %v", found)
		}
		if n, err := l.plane.Audit(l.t.Context(), true); n != 0 || err != nil {
			l.t.Errorf("an audit repaired %d: %v", n, err)
		}
	})
}

// measured returns the metrics, by name and labels.
func (l *localhostLab) measured() map[string]float64 {
	l.t.Helper()
	all := map[string]float64{}
	if err := l.plane.Measure(func(name string, v float64, labels ...string) {
		all[strings.Join(append([]string{strings.TrimPrefix(name, "nftables_localhost_nodeport_")}, labels...), " ")] =
			v
	}); err != nil {
		l.t.Error(err)
	}
	return all
}

// The life of one Service at localhost: packets, an established connection over changes, and a
// restart (TN-56, TN-57).
func TestConformanceLocalhost(t *testing.T) {
	dir, n := scenarios(t, "testdata/scenarios/*.txtar")
	if n != 4 {
		t.Fatalf("%d files", n)
	}
	planetest.Run(t, planetest.Config{Mode: "nftables-localhost", Variant: true, Dir: dir,
		New:   func(f lb.Family) (planetest.Plane, error) { return New(Config{Family: f, LocalhostNodePorts: true}) },
		Trace: func(f lb.Family) trace.Mode { return Mode().Trace(mode.Settings{Family: f, LocalhostProxy: true}) }})
}

// With the feature gate off nothing is served or rejected on localhost; if nodePortAddresses
// selects no loopback address, every packet to a NodePort is rejected and counted. Once turned on
// it serves at once, in the same process and after a restart (TN-57, TN-58;
// kubernetes/kubernetes#142183).
func TestLocalhostTurnedOnTN58(t *testing.T) {
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			l := newLocalhostLab(t, f)
			named := l.table.Node
			node := func(n lb.Node) {
				l.table.Node = n
				l.On("node1", func() {
					if err := l.plane.SetNode(t.Context(), n); err != nil {
						t.Fatal(err)
					}
				})
			}
			on := true
			served := func(is bool) {
				t.Helper()
				switch {
				case is:
					l.servers(30080)
					l.traced(lb.UDP, 30053, trace.Reject)
				case on: // not selected
					before := l.measured()["rejected_packets_total TCP"]
					l.refused(netlab.TCP, 30080)
					if n := l.measured()["rejected_packets_total TCP"]; n != before+1 {
						t.Errorf("%g rejected packets, then %g", before, n)
					}
					l.traced(lb.TCP, 30080, trace.Reject)
					l.traced(lb.UDP, 30053, trace.Reject)
				default:
					l.refused(netlab.TCP, 30080)
					l.traced(lb.TCP, 30080, trace.Pass)
					l.traced(lb.UDP, 30053, trace.Pass)
				}
				if n := l.measured()["listeners"]; n != map[bool]float64{true: 3}[is] {
					t.Errorf("%g listeners", n)
				}
				l.same()
			}
			served(true)
			unnamed := named
			unnamed.Localhost = netip.Addr{}
			node(unnamed)
			served(false)
			l.restart(true)
			served(false)
			node(named)
			served(true)
			on = false
			l.restart(on)
			served(false)
			on = true
			l.restart(on)
			served(true)
		})
	}
}

// Connections that the proxy opens to an endpoint at the address of another Service do not reach
// that Service (TN-56), and the proxy reaches an endpoint in the host's network.
func TestLocalhostLeadsToEndpointsAlone(t *testing.T) {
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			l := newLocalhostLab(t, f)
			l.Serve(netlab.TCP, 8081, "node1")
			victim, host := netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("172.18.0.2")
			if l.at.Is6() {
				victim, host = netip.MustParseAddr("fd00:10:96::a"), netip.MustParseAddr("fd00:18::2")
			}
			at, own := netip.AddrPortFrom(victim, 80), netip.AddrPortFrom(host, 8081)
			more, err := tables.Parse(strings.NewReplacer("VICTIM", at.String(), "HOST", own.String(), "WEB",
				l.table.Get(lb.Key{Port: 30080, Proto: lb.TCP}).Last().To.Backends.At(0).Addr.String()).
				Replace(`VICTIM/tcp good/web clusterip
  anywhere balance good/web/tcp/cluster
nodeport:30090/tcp evil/web nodeport
  anywhere balance evil/web/tcp/cluster masquerade
nodeport:30091/tcp host/web nodeport
  anywhere balance host/web/tcp/cluster masquerade
set good/web/tcp/cluster
  WEB
set evil/web/tcp/cluster
  VICTIM
set host/web/tcp/cluster
  HOST local
`))
			if err != nil {
				t.Fatal(err)
			}
			for row := range more.All() {
				l.table.Replace(lb.Owner{Name: lb.OwnerOf(row.Service)}, []*lb.Frontend{row})
				l.On("node1", func() { apply(t, l.plane, []lb.Change{{Key: row.Key, New: row}}) })
			}
			if _, err := l.Dial("node1", netlab.TCP, at, netlab.DialOptions{}); err != nil {
				t.Errorf("the other Service: %v", err)
			}
			if r, err := l.Dial("node1", netlab.TCP, netip.AddrPortFrom(l.at, 30090),
				netlab.DialOptions{}); err == nil {
				t.Errorf("%s answers, an endpoint of another Service", r.Server)
			}
			if r, err := l.Dial("node1", netlab.TCP, netip.AddrPortFrom(l.at, 30091),
				netlab.DialOptions{}); err != nil || r.Server != "node1" {
				t.Errorf("an endpoint in the host's network: %v, %v", r, err)
			}
		})
	}
}

// A port that another program uses is no failure of the frontend: the NodePort is served elsewhere,
// trace and diff report the missing listener, and the program keeps its clients (TN-58).
func TestLocalhostPortTakenTN58(t *testing.T) {
	l := newLocalhostLab(t, lb.IPv4)
	l.stop()
	taken, err := l.Listen("node1", netlab.TCP, 30080)
	if err != nil {
		t.Fatal(err)
	}
	l.restart(true)
	to := netip.AddrPortFrom(l.at, 30080)
	if r, err := l.Dial("node1", netlab.TCP, to, netlab.DialOptions{}); err != nil || r.Server != "node1" {
		t.Errorf("the program has lost its clients: %v, %v", r, err)
	}
	if got := l.measured(); got["listeners"] != 2 || got["listener_creation_failures_total"] == 0 {
		t.Errorf("metrics: %v", got)
	}
	l.On("node1", func() {
		k, err := l.plane.TracePacket(t.Context(), trace.Packet{From: to, Host: true, To: to, Here: true,
			Proto: lb.TCP}, nodetrace.Kernel)
		if way := strings.Join(k.Way, " "); err != nil || k.Verdict != trace.Pass ||
			!strings.Contains(way, "cannot listen at 127.0.0.1:30080") {
			t.Errorf("%s: %q, %v", k.Verdict, way, err)
		}
		found := planetest.Differences(t, l.plane, l.table)
		if len(found) != 1 || found[0].Object != "listener 127.0.0.1:30080/tcp" ||
			!strings.Contains(found[0].Actual, "address already in use") {
			t.Errorf("differences: %v", found)
		}
	})
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	l.restart(true)
	l.servers(30080)
	l.same()
}

// nft loads the localhost part of Render's output, and a plane accepts it as its own (TN-56,
// TN-57).
func TestRenderLocalhost(t *testing.T) {
	eachFamily(t, func(t *testing.T, w planetest.World) {
		inNetns(t)
		cfg := Config{Family: w.Family, LocalhostNodePorts: true}
		tab, _ := localhostOf(t, w.Family)
		text, err := Render(cfg, tab)
		if err == nil {
			err = load(string(text))
		}
		if err != nil {
			t.Fatal(err)
		}
		p := planeOf(t, cfg)
		reset(t, p, tab)
		if s := p.Stats(); s.Messages != 0 {
			t.Errorf("the plane found something to do: %+v", s)
		}
		listed := runNFT(t, "list", "chain", p.ip.Name(), TableName, "filter-input")
		if !strings.Contains(listed, "update @localhost-rejected") ||
			!strings.Contains(listed, "localhost: TCP alone is served") {
			t.Errorf("%s", listed)
		}
	})
}

// Rejected packets are counted. A kernel that cannot count still rejects, and the metric does not
// exist (TN-57).
func TestLocalhostRejectedTN57(t *testing.T) {
	l := newLocalhostLab(t, lb.IPv4)
	for range 3 {
		l.refusedAtOnce(30053)
	}
	if got := l.measured(); got["rejected_packets_total UDP"] != 3 || got["rejected_packets_total SCTP"] != 0 {
		t.Errorf("metrics: %v", got)
	}
	l.On("node1", func() {
		if err := l.plane.rejected.close(); err != nil {
			t.Error(err)
		}
		l.plane.rejected, l.plane.rules.uncounted = nil, true
		l.plane.readLayout = l.plane.rules.layout
		reset(t, l.plane, l.table)
		if listed := runNFT(t, "list", "table", "ip", TableName); strings.Contains(listed,
			"update @localhost-rejected") {
			t.Error("it counts")
		}
	})
	l.refused(netlab.UDP, 30053)
	l.traced(lb.UDP, 30053, trace.Reject)
	if _, there := l.measured()["rejected_packets_total UDP"]; there {
		t.Error("the metric is there")
	}
	l.same()
}
