//go:build linux

package nftables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/test/cputest"
	"kube-proxy/test/golden"
	"kube-proxy/test/planetest"
	"kube-proxy/test/scenario"
)

// load loads text with nft -f, in the network namespace of this thread.
func load(text string) error {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft -f: %w\n%s", err, out)
	}
	return nil
}

func render(t testing.TB, f lb.Family, want *lb.Table) string {
	t.Helper()
	text, err := Render(Config{Family: f}, want)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// proveRendering proves that nft accepts the text, that a plane has nothing to change on top of it,
// and that the rules have the same meaning as the plane's. The namespace must not have our table.
func proveRendering(t *testing.T, f lb.Family, want *lb.Table, text string) {
	t.Helper()
	if err := load(text); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	p := newPlane(t, f)
	reset(t, p, want)
	repaired, err := p.Audit(t.Context(), true)
	if s := p.Stats(); s.Messages != 0 || repaired != 0 || err != nil {
		t.Errorf("a plane on top of the text sends %+v, and repairs %d: %v\n%s", s, repaired, err, text)
	}
	dump(t, p)
	sameSets(t, p)
	sameMeaning(t, p)
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// Render can express every state of every scenario, and nft reads it as the plane's own table.
func TestRenderScenarios(t *testing.T) {
	dir, err := scenario.Dir()
	if err != nil {
		t.Fatal(err)
	}
	all, err := scenario.LoadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	states := 0
	for _, sc := range all {
		eachFamily(t, func(t *testing.T, w planetest.World) {
			for r := sc.Replay(w.Family); ; states++ {
				step, ok, err := r.Next()
				if err != nil {
					t.Fatal(err)
				}
				if !ok {
					return
				}
				t.Run(sc.Name+"/"+step.State.Name, func(t *testing.T) {
					inNetns(t)
					text := render(t, w.Family, step.Table)
					proveRendering(t, w.Family, step.Table, text)
					if again := render(t, w.Family, r.Fresh()); again != text {
						t.Errorf("an equal table gives other text:\n%s\nbefore:\n%s", again, text)
					}
				})
			}
		})
	}
	if states < 2*len(all) {
		t.Errorf("%d states of %d scenarios", states, len(all))
	}
}

// textPlane is a plane whose Reset goes through Render and nft.
type textPlane struct{ *Plane }

// HidesTracer: nft expresses rules in other words than the plane, so numbers read from the kernel
// do not match (ADR 0056).
func (textPlane) HidesTracer() {}

func (p textPlane) Reset(ctx context.Context, want *lb.Table) (plane.ResetResult, error) {
	text, err := Render(Config{Family: p.ip.Family}, want)
	if text == nil {
		return plane.ResetResult{}, err
	}
	empty := fmt.Sprintf("table %s %s {}\ndelete table %[1]s %s\n", p.ip.Name(), TableName)
	if err := load(empty + string(text)); err != nil {
		return plane.ResetResult{}, err
	}
	before := p.Stats()
	res, err := p.Plane.Reset(ctx, want)
	if after := p.Stats(); after != before {
		err = errors.Join(err, fmt.Errorf("the plane found something to do: %+v", after.minus(before)))
	}
	return res, err
}

// The rules that nft makes of the text treat the packets of every scenario as the plane's own rules
// do.
func TestRenderConformance(t *testing.T) {
	planetest.Run(t, planetest.Config{
		Mode: "nftables-text", Variant: true,
		New: func(f lb.Family) (planetest.Plane, error) {
			p, err := New(Config{Family: f})
			return textPlane{p}, err
		},
		Differs: map[string]string{"SV-05": "nft does not take a table over, but replaces it and what it remembers " +
			"of clients"},
	})
}

// goldens returns tables whose rendering is in testdata.
func goldens() map[string]*lb.Table {
	w, w6 := planetest.World{Family: lb.IPv4}, planetest.World{Family: lb.IPv6}
	pod := func(w planetest.World, i int, local bool) lb.Backend {
		return lb.Backend{Addr: netip.AddrPortFrom(w.Addr(100, i), 8080), Local: local}
	}
	shop := func(w planetest.World, sticky time.Duration, sources ...netip.Prefix) *lb.Table {
		cluster := &lb.BackendSet{ID: lb.SetID{Service: "shop/web:http", Proto: lb.TCP, Scope: lb.Cluster},
			Backends: lb.BackendsOf(pod(w, 4, true), pod(w, 5, false), pod(w, 6, false))}
		local := &lb.BackendSet{ID: lb.SetID{Service: "shop/web:http", Proto: lb.TCP, Scope: lb.Local},
			Backends: lb.BackendsOf(pod(w, 4, true))}
		inside := []lb.Route{{From: lb.Pods, Do: lb.Balance, To: cluster}, {From: lb.Anywhere, Do: lb.Balance,
			Masq: true, To: cluster}}
		outside := []lb.Route{{From: lb.Pods, Do: lb.Balance, To: cluster}, {From: lb.Host, Do: lb.Balance, Masq: true,
			To: cluster},
			{From: lb.Anywhere, Do: lb.Balance, To: local}}
		front := func(a netip.Addr, port uint16, kind lb.Kind, routes []lb.Route) *lb.Frontend {
			return &lb.Frontend{Key: lb.Key{Addr: a, Port: port, Proto: lb.TCP}, Service: "shop/web:http", Kind: kind,
				Routes: routes, Affinity: sticky}
		}
		t := &lb.Table{Node: w.Node()}
		balancer := front(w.Addr(203, 7), 80, lb.LoadBalancer, outside)
		balancer.Sources = sources
		t.Replace(lb.Owner{Name: "shop/web"}, []*lb.Frontend{front(w.Addr(10, 80), 80, lb.ClusterIP, inside), balancer,
			front(netip.Addr{}, 30080, lb.NodePort, outside)})
		t.Replace(lb.Owner{Name: "shop/db"},
			[]*lb.Frontend{{Key: lb.Key{Addr: w.Addr(10, 81), Port: 5432, Proto: lb.TCP},
				Service: "shop/db", Kind: lb.ClusterIP, Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Reject}}}})
		return t
	}
	byName := shop(w, 0)
	byName.Node.Pods = lb.Detector{InterfacePrefix: "veth"}
	byName.Node.NodePorts = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0)}
	one := shop(w, 0)
	one.Node.Pods = lb.Detector{Interface: "cni0"}
	one.Node.ServiceCIDRs = append(one.Node.ServiceCIDRs, netip.MustParsePrefix("172.16.0.0/13"))
	six := shop(w6, 3*time.Hour, netip.MustParsePrefix("2001:db8::/33"), netip.MustParsePrefix("fd00::7/128"))
	six.Node.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("fd0a::/108")}
	return map[string]*lb.Table{
		"shop":     shop(w, 0),
		"affinity": shop(w, 3*time.Hour),
		"source-ranges": shop(w, 0, netip.MustParsePrefix("198.51.100.0/25"),
			netip.MustParsePrefix("203.0.113.9/32")),
		"everybody":        shop(w, 0, netip.MustParsePrefix("0.0.0.0/0")),
		"ipv6":             six,
		"interface-prefix": byName,
		"interface":        one,
		"empty":            {},
	}
}

// The rendering equals testdata: the table, its hooks and their priorities (DP-20), rules and
// elements.
func TestRenderGoldens(t *testing.T) {
	for name, table := range goldens() {
		t.Run(name, func(t *testing.T) {
			f := lb.IPv4
			if name == "ipv6" {
				f = lb.IPv6
			}
			got := render(t, f, table)
			golden.Equal(t, filepath.Join("testdata", name+".nft"), got)
			inNetns(t)
			proveRendering(t, f, table, got)
		})
	}
}

// The processor time to write the text grows in proportion to the table.
func TestRenderManyServices(t *testing.T) {
	of := func(n int) func() {
		table := planetest.World{Family: lb.IPv4}.Table(n, 10)
		return func() { render(t, lb.IPv4, table) }
	}
	if ratio := cputest.Ratio(of(1_000), of(10_000)); ratio > 50 {
		t.Errorf("ten times as many services cost %.0f times as much", ratio)
	}
}

// The error names frontends that cannot be written, and all others are written (plane's rules).
func TestRenderBadRows(t *testing.T) {
	w := planetest.World{Family: lb.IPv4}
	tab := w.Table(3, 2)
	want := render(t, w.Family, tab)
	p, err := offline(Config{Family: w.Family})
	if err != nil {
		t.Fatal(err)
	}
	p.maxSlots = 2
	tab.Replace(w.ClusterIP(4, 100, 3))
	got, err := p.render(tab)
	if err == nil || strings.Count(err.Error(), "nftables IPv4: ") != 1 || !strings.Contains(err.Error(), "svc-4") {
		t.Errorf("the error %v does not name the row", err)
	}
	if string(got) != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	bit := 32
	if text, err := Render(Config{Family: w.Family, MasqueradeBit: &bit}, tab); err == nil || text != nil {
		t.Errorf("masquerade bit 32 gives %q, %v", text, err)
	}
}

// Each rule that sets or matches the masquerading bit of the packet mark uses the bit that the
// configuration names (CF-30).
func TestMasqueradeBit(t *testing.T) {
	w := planetest.World{Family: lb.IPv4}
	tab := w.Table(3, 2)
	digests := regexp.MustCompile(` \[[0-9a-f]{8}\]`)
	want := digests.ReplaceAllString(render(t, w.Family, tab), "")
	if !strings.Contains(want, "0x00004000") {
		t.Fatalf("no rule has the usual bit:\n%s", want)
	}
	for _, bit := range []int{0, 3, 31} {
		got, err := Render(Config{Family: w.Family, MasqueradeBit: &bit}, tab)
		if err != nil {
			t.Fatal(err)
		}
		want := strings.ReplaceAll(want, "0x00004000", fmt.Sprintf("0x%08x", 1<<bit))
		if got := digests.ReplaceAllString(string(got), ""); got != want {
			t.Errorf("bit %d:\n%s\nwant:\n%s", bit, got, want)
		}
	}
}

// Names appear only in comments, which they cannot end. An interface's name is part of a rule;
// Render refuses one that the language cannot express.
func TestRenderNames(t *testing.T) {
	w := planetest.World{Family: lb.IPv4}
	tab := &lb.Table{Node: w.Node()}
	o, fronts := w.ClusterIP(0, 0, 1)
	fronts[0].Service = "ns/x\n\tdrop\r\x00\u2028"
	fronts[0].Set(lb.Cluster).ID.Service = fronts[0].Service
	tab.Replace(o, fronts)
	text := render(t, w.Family, tab)
	if !strings.Contains(text, "# ns/x??drop??? clusterip") {
		t.Errorf("the service is not named as it should:\n%s", text)
	}
	inNetns(t)
	proveRendering(t, w.Family, tab, text)
	for _, name := range []string{`a"b`, `a\b`, "a*", "a\nb"} {
		tab.Node.Pods = lb.Detector{Interface: name}
		if text, err := Render(Config{Family: w.Family}, tab); err == nil || text != nil {
			t.Errorf("interface %q: %v\n%s", name, err, text)
		}
	}
}
