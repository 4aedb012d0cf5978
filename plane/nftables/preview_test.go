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
	"kube-proxy/test/kerneltest"
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

// proveRendering proves that nft accepts the text, and that a plane has nothing to change on top of
// it. The namespace must not have our table.
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
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// Render can express every state of every scenario, and nft reads it as the plane's own table.
func TestRenderScenarios(t *testing.T) {
	kerneltest.Later(t)
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

// The rules that nft makes of the text treat packets as the plane's own rules do. The core's
// scenarios have every form of rule.
func TestRenderConformance(t *testing.T) {
	kerneltest.Later(t)
	t.Setenv("PLANETEST_CORE", "1")
	planetest.Run(t, planetest.Config{
		Mode: "nftables-text", Variant: true, Core: core,
		New: func(f lb.Family) (planetest.Plane, error) {
			p, err := New(Config{Family: f})
			return textPlane{p}, err
		},
		Differs: map[string]string{"SV-05": "nft does not take a table over, but replaces it and what it remembers " +
			"of clients"},
	})
}

// goldens returns tables whose rendering is in testdata: a Service of all kinds with source ranges,
// and one without endpoints.
func goldens() map[string]*lb.Table {
	shop := func(f lb.Family, sticky time.Duration, change func(*lb.Table)) *lb.Table {
		w := planetest.World{Family: f}
		t := &lb.Table{Node: w.Node()}
		t.Replace(w.Full(0, 4, 3, 1, sticky))
		t.Replace(w.ClusterIP(1, 0, 0))
		change(t)
		return t
	}
	return map[string]*lb.Table{
		"affinity": shop(lb.IPv4, 3*time.Hour, func(*lb.Table) {}),
		"everybody": shop(lb.IPv4, 0, func(t *lb.Table) {
			for f := range t.All() {
				if f.Kind == lb.LoadBalancer {
					f.Sources = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
				}
			}
		}),
		"ipv6": shop(lb.IPv6, 3*time.Hour, func(t *lb.Table) {}),
		"interface-prefix": shop(lb.IPv4, 0, func(t *lb.Table) {
			t.Node.Pods = lb.Detector{InterfacePrefix: "veth"}
			t.Node.NodePorts = []netip.Prefix{lb.IPv4.Everywhere()}
		}),
		"interface": shop(lb.IPv4, 0, func(t *lb.Table) {
			t.Node.Pods = lb.Detector{Interface: "cni0"}
			t.Node.ServiceCIDRs = append(t.Node.ServiceCIDRs, netip.MustParsePrefix("172.16.0.0/13"))
		}),
		"empty": {},
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
	kerneltest.NotEmulated(t)
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
