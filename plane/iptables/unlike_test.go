//go:build linux

package iptables

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"kube-proxy/internal/xtables"
	"kube-proxy/test/planetest"
)

// otherwise is an iptables whose iptables-save prints some rules differently from how they were
// written.
type otherwise struct {
	xtables.System
	replace *strings.Replacer
}

func (o otherwise) Pipe(ctx context.Context, in func(io.Writer) error, out func(io.Reader) error, name string,
	args ...string) error {
	if out == nil || !strings.HasSuffix(name, "-save") {
		return o.System.Pipe(ctx, in, out, name, args...)
	}
	return o.System.Pipe(ctx, in, func(r io.Reader) error {
		text, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		return out(bytes.NewReader([]byte(o.replace.Replace(string(text)))))
	}, name, args...)
}

// If iptables prints rules differently from how they were written, the plane does not repair them
// for ever, and does not report them as foreign changes. It still repairs real foreign changes.
func TestRulesPrintedOtherwise(t *testing.T) {
	eachOnce(t, func(t *testing.T, w planetest.World, cfg Config) {
		cfg.Runner = otherwise{xtables.System{Lock: ownLock()}, strings.NewReplacer("--probability 0.5",
			"--probability 0,5", " --random-fully", " --fully-random",
			"kubernetes service portals", "kubernetes service portal")}
		p := newPlane(t, cfg)
		tab := w.Table(5, 2)
		reset(t, p, tab)
		audit := func(what string, want int, writes bool) {
			t.Helper()
			before := p.Stats().Restores
			n, err := auditAll(p)
			if err != nil || n != want {
				t.Errorf("%s: repaired %d, error %v, want %d", what, n, err, want)
			}
			if wrote := p.Stats().Restores - before; wrote > 0 != writes {
				t.Errorf("%s: %d restores", what, wrote)
			}
		}
		audit("first", 0, true)
		if s := p.Stats(); s.Unlike < 5 {
			t.Errorf("%d chains are printed otherwise", s.Unlike)
		}
		audit("again", 0, false)

		program := p.Tool.Program
		run(t, "", program, "-t", "nat", "-F", chainOf(1))
		audit("a chain of these is flushed", 1, true)
		audit("and repaired", 0, false)
		run(t, "", program, "-t", "nat", "-I", chainOf(2), "-j", "RETURN")
		run(t, "", program, "-t", "filter", "-F", xtables.Forward)
		audit("a rule too many, and none", 2, true)
		audit("and repaired again", 0, false)

		replace(t, p, tab)(w.ClusterIP(3, 90, 2))
		audit("a change", 0, true)
		audit("after the change", 0, false)

		jumps := strings.Count(run(t, "", program+"-save"), "kubernetes service portals")
		if jumps > 2*3*2 {
			t.Errorf("%d rules that lead to ours", jumps)
		}
	})
}
