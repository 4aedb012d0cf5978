//go:build linux

package iptables

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/test/planetest"
)

// fakeTool returns a machine with only these programs of iptables, whose --version prints version.
func fakeTool(version string, programs ...string) *blackHole {
	b := &blackHole{version: version, programs: []string{}}
	for _, p := range programs {
		b.programs = append(b.programs, p, p+"-restore", p+"-save")
	}
	return b
}

func TestFindTool(t *testing.T) {
	const nft, legacy = "iptables v1.8.9 (nf_tables)", "iptables v1.8.7 (legacy)"
	for _, c := range []struct {
		name, version string
		programs      []string
		want          xtables.Backend
		program       string // "" for an error
	}{
		{"nft", nft, []string{"iptables", "iptables-nft"}, xtables.NFT, "iptables-nft"},
		{"plain name of nft", nft, []string{"iptables"}, xtables.NFT, "iptables"},
		{"legacy", legacy, []string{"iptables", "iptables-legacy"}, xtables.Legacy, "iptables-legacy"},
		{"plain name of legacy", "iptables v1.4.21", []string{"iptables"}, xtables.Legacy, "iptables"},
		{"other back end", legacy, []string{"iptables"}, xtables.NFT, ""},
		{"garbage", "segmentation fault", []string{"iptables"}, xtables.NFT, ""},
		{"no iptables", nft, nil, xtables.NFT, ""},
		{"other family only", nft, []string{"ip6tables"}, xtables.NFT, ""},
	} {
		p, err := New(Config{Family: lb.IPv4, Backend: c.want, Runner: fakeTool(c.version, c.programs...)})
		switch {
		case c.program == "":
			if !errors.Is(err, plane.ErrUnsupported) || !strings.Contains(err.Error(), "install iptables") {
				t.Errorf("%s: error %v", c.name, err)
			}
		case err != nil || p.Tool.Program != c.program || p.Backend != c.want:
			t.Errorf("%s: %+v, error %v", c.name, p, err)
		}
	}
}

// slowTool is a busy machine, where each program is slow.
type slowTool struct {
	*blackHole
	takes time.Duration
}

func (s slowTool) Pipe(ctx context.Context, in func(io.Writer) error, out func(io.Reader) error, name string,
	args ...string) error {
	select {
	case <-time.After(s.takes):
		return s.blackHole.Pipe(ctx, in, out, name, args...)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A busy machine still has its programs and tables: slowness makes New choose no other back end,
// and no other mode.
func TestBusyMachineHasItsTables(t *testing.T) {
	fake := func() *blackHole {
		return fakeTool("iptables v1.8.9 (nf_tables)", "iptables-nft", "iptables-legacy")
	}
	synctest.Test(t, func(t *testing.T) {
		got, err := xtables.UsableTool(slowTool{fake(), 25 * time.Second}, lb.IPv4, xtables.NFT)
		if err != nil || got.Backend != xtables.NFT {
			t.Errorf("%+v, %v", got, err)
		}
		_, err = xtables.UsableTool(slowTool{fake(), time.Hour}, lb.IPv4, xtables.NFT)
		if !errors.Is(err, plane.ErrUnsupported) || strings.Contains(err.Error(), "has no tables") {
			t.Errorf("one that never answers: %v", err)
		}
	})
}

// A restore that fails without effect leaves the plane unchanged, and the next one succeeds. After
// one that may have been applied in part, the plane requires a Reset.
func TestRestoreFails(t *testing.T) {
	w := planetest.World{Family: lb.IPv4}
	for _, c := range []struct {
		name string
		err  error
		lost bool
	}{
		{"refused", &xtables.RunError{Name: "iptables-restore", Said: "iptables-restore: line 3 failed",
			Err: errors.New("exit status 1")}, false},
		{"does not start", errors.New("fork: resource temporarily unavailable"), false},
		{"killed", fmt.Errorf("iptables-restore: %w", context.DeadlineExceeded), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			hole := &blackHole{}
			p := newPlane(t, Config{Family: lb.IPv4, Backend: xtables.NFT, Runner: hole})
			table := w.Table(32, 2)
			reset(t, p, table)
			tree, chains := treeOf(p.st.dispatchers[inServices]), len(p.st.Digests)
			// The frontend that splits the dispatcher.
			changes, _ := table.Replace(w.ClusterIP(100, 1000, 2))
			hole.fail = func([]byte, []string) error { return c.err }
			_, err := p.Apply(t.Context(), changes)
			if err == nil || errors.Is(err, plane.ErrStateLost) != c.lost {
				t.Fatalf("apply: %v", err)
			}
			if got := treeOf(p.st.dispatchers[inServices]); got != tree || len(p.st.Digests) != chains {
				t.Errorf("the plane is not as it was: %s", got)
			}
			hole.fail = nil
			apply(t, p, changes)
			if len(p.st.rows) != 33 {
				t.Errorf("%d rows, want 33", len(p.st.rows))
			}
		})
	}
}

// endless lists rules without end, while the reader reads.
type endless struct{ *blackHole }

func (e endless) Pipe(ctx context.Context, in func(io.Writer) error, out func(io.Reader) error, name string,
	args ...string) error {
	if !strings.HasSuffix(name, "-save") {
		return e.blackHole.Pipe(ctx, in, out, name, args...)
	}
	r, w := io.Pipe()
	go func() {
		for ctx.Err() == nil {
			io.WriteString(w, "*filter\n-A INPUT -j ACCEPT\n")
		}
		w.CloseWithError(ctx.Err())
	}()
	err := out(r)
	io.Copy(io.Discard, r)
	return errors.Join(err, ctx.Err())
}

// If the legacy back end has no tables, a single nft rule decides (DP-14). Reading all rules would
// never end.
func TestChoiceReadsNoMoreThanNeeded(t *testing.T) {
	inNetns(t)
	if got := xtables.Choose(endless{fakeTool("iptables v1.8.9 (nf_tables)", "iptables", "iptables-nft")},
		lb.IPv4); got != xtables.NFT {
		t.Errorf("back end %q is chosen", got)
	}
}

// DP-14: New chooses the back end with the kubelet's chains, else the one with more rules.
func TestChooseDP14(t *testing.T) {
	needs(t, xtables.Legacy)
	const rule = "-A INPUT -j ACCEPT\n"
	hint := "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n"
	for _, c := range []struct {
		name, nft, legacy string
		want              xtables.Backend
	}{
		{"nothing", "*filter\nCOMMIT\n", "*filter\nCOMMIT\n", xtables.Auto},
		{"hint of nft", hint, "*filter\n" + strings.Repeat(rule, 9) + "COMMIT\n", xtables.NFT},
		{"hint of legacy", "*filter\n" + strings.Repeat(rule, 9) + "COMMIT\n", hint, xtables.Legacy},
		{"an old kubelet's canary", "*mangle\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n", "*filter\n" + rule + "COMMIT\n",
			xtables.NFT},
		{"more legacy", "*filter\n" + rule + "COMMIT\n", "*filter\n" + rule + rule + "COMMIT\n", xtables.Legacy},
		{"more nft", "*filter\n" + rule + rule + "COMMIT\n", "*filter\n" + rule + "COMMIT\n", xtables.NFT},
		{"as many", "*filter\n" + rule + "COMMIT\n", "*filter\n" + rule + "COMMIT\n", xtables.NFT},
	} {
		t.Run(c.name, func(t *testing.T) {
			inNetns(t)
			run(t, "", "iptables-legacy", "-t", "nat", "-S") // creates the tables
			fake := fakeTool("", "iptables-nft", "iptables-legacy")
			fake.says = func(name string, args []string) (string, error) {
				text := map[string]string{"iptables-nft": c.nft, "iptables-legacy": c.legacy}[strings.TrimSuffix(name,
					"-save")]
				if strings.HasSuffix(name, "-save") {
					return text, nil
				}
				if !slices.Equal(args, []string{"-t", "mangle", "-S"}) {
					t.Errorf("%s %q was run", name, args)
				}
				listed := "-P PREROUTING ACCEPT\n"
				for line := range strings.Lines(text) {
					if chain, _, ok := strings.Cut(line, " - "); ok && strings.Contains(text, "*mangle") {
						listed += "-N " + chain[1:] + "\n"
					}
				}
				return listed, nil
			}
			if got := xtables.Choose(fake, lb.IPv4); got != c.want {
				t.Errorf("back end %q, want %q", got, c.want)
			}
		})
	}
}

// New does not repeat the search of Find, which takes seconds among thousands of services.
func TestFoundOnce(t *testing.T) {
	needs(t, xtables.NFT)
	inNetns(t)
	found, err := xtables.Find(lb.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", t.TempDir()) // without any program
	if _, err := New(Config{Family: lb.IPv4}); !errors.Is(err, plane.ErrUnsupported) {
		t.Errorf("without programs: error %v", err)
	}
	p, err := New(Config{Family: lb.IPv4, Programs: found})
	if err != nil {
		t.Fatal(err)
	}
	if p.Backend != found.Backend {
		t.Errorf("back end %s, found %s", p.Backend, found.Backend)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if _, err := New(Config{Family: lb.IPv6, Programs: found}); err == nil {
		t.Error("the programs of IPv4 are taken for those of IPv6")
	}
}
