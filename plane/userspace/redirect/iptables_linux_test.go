package redirect

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/plane"
)

// onlyIPTables hides all programs but those of one back end of iptables.
func onlyIPTables(t *testing.T, backend string) {
	t.Helper()
	dir := t.TempDir()
	for _, base := range []string{"iptables", "ip6tables"} {
		for _, part := range []string{"", "-save", "-restore"} {
			path, err := exec.LookPath(base + "-" + backend + part)
			if err != nil {
				t.Fatalf("install iptables: %v", err)
			}
			for _, name := range []string{base + part, base + "-" + backend + part} {
				if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	t.Setenv("PATH", dir)
}

// A refused entry translates nothing, also on a node without an address to redirect to.
func TestRefusalWithoutAddress(t *testing.T) {
	for _, w := range worlds() {
		c := &IPTables{cfg: Config{Family: w.Family}, node: w.n()}
		nat, _ := c.lead(cluster(w.key(w.vip, 80, lb.TCP), []Route{{From: lb.Anywhere, Do: lb.Reject}}))
		if len(nat) != 1 || !strings.HasSuffix(nat[0], " -j ACCEPT") {
			t.Errorf("%s: %q", w.Family, nat)
		}
	}
}

// TestIPTablesRefuses: if this iptables refuses an entry, the error says so, and the others still
// redirect.
func TestIPTablesRefuses(t *testing.T) {
	for _, w := range worlds() {
		t.Run(w.Family.String(), func(t *testing.T) {
			b := &bench{TestLab: netlab.ForTest(t, netlab.Options{NoNode2: true}), t: t, world: w, way: ways[1]}
			b.start(Config{Family: w.Family})
			b.serve(netlab.TCP, 40001)
			// no such match
			good, bad := cluster(b.key(w.vip, 80, lb.TCP), to(40001)), cluster(b.key(w.vip, 81, lb.Proto(99)),
				to(40002))
			b.reset(good)
			b.On(netlab.Node1, func() {
				if err := b.Apply(t.Context(), []Entry{bad}, nil); err == nil || errors.Is(err, plane.ErrStateLost) {
					t.Errorf("a change that is refused: %v", err)
				}
			})
			b.arrives("pod1", netlab.TCP, w.vip, 80)
			b.apply(nil, cluster(b.key(w.vip, 82, lb.TCP), to(40001)))
			b.arrives("pod1", netlab.TCP, w.vip, 82)
			b.On(netlab.Node1, func() {
				if later, err := b.Reset(t.Context(), b.n(), []Entry{good, bad}); err != nil || len(later) != 1 ||
					later[0] != bad.Key {
					t.Errorf("a Reset with a row that is refused: %v, %v", later, err)
				}
			})
			b.arrives("pod1", netlab.TCP, w.vip, 80)
			b.apply(nil, cluster(b.key(w.vip, 82, lb.TCP), to(40001)))
			b.arrives("pod1", netlab.TCP, w.vip, 82)
		})
	}
}

// TestRemoveUpstreamDP15: leftovers of upstream's userspace mode are removed, of both families and
// back ends.
func TestRemoveUpstreamDP15(t *testing.T) {
	rules, err := os.ReadFile("testdata/upstream.rules")
	if err != nil {
		t.Fatal(err)
	}
	for _, backend := range []string{"nft", "legacy"} {
		for _, w := range worlds() {
			t.Run(backend+"/"+w.Family.String(), func(t *testing.T) {
				onlyIPTables(t, backend)
				netlab.EnterForTest(t)
				program := map[lb.Family]string{lb.IPv4: "iptables", lb.IPv6: "ip6tables"}[w.Family]
				restore := exec.Command(program + "-restore")
				restore.Stdin = bytes.NewReader(rules)
				if out, err := restore.CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				report, err := Remove(t.Context(), []lb.Family{w.Family}, "")
				if err != nil || len(report.Left) > 0 {
					t.Errorf("%+v, %v", report, err)
				}
				out, err := exec.Command(program + "-save").CombinedOutput()
				if err != nil || bytes.Contains(out, []byte("KUBE-")) {
					t.Errorf("%v, left:\n%s", err, out)
				}
			})
		}
	}
}
