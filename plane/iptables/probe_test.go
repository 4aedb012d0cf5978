//go:build linux

package iptables

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/kernel"
	"kube-proxy/internal/xtables"
	"kube-proxy/plane"
	"kube-proxy/plane/selfwrites"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
)

// A probe is a write that the kernel commits and that changes nothing. Neither this nor another
// process finds anything to repair, or must list the rules to find out (HT-04). The metrics do not
// count it as a sync (MT-10 to MT-12).
func TestProbeHT04(t *testing.T) {
	kerneltest.Later(t)
	eachKind(t, func(t *testing.T, w planetest.World, cfg Config) {
		cfg.Writes = &selfwrites.Ledger{}
		p := newPlane(t, cfg)
		if err := p.Probe(t.Context()); !errors.Is(err, plane.ErrStateLost) {
			t.Errorf("before a reset: error %v", err)
		}
		table := w.Table(40, 3)
		table.Replace(w.Full(100, 1000, 3, 1, time.Hour))
		table.Replace(w.Full(101, 1010, 4, 1, 0))
		table.Replace(w.ClusterIP(102, 0, 0))
		reset(t, p, table)
		replace(t, p, table)(w.Full(100, 1000, 2, 1, time.Hour))
		if n, err := p.Audit(t.Context(), true); err != nil || n != 0 {
			t.Fatalf("before: repaired %d, error %v", n, err)
		}
		before, rules, stats, seen := dump(t, p), saved(t, p.Tool.Program), p.Stats(), transactions(t, p, cfg.Writes)
		for range 3 {
			if err := p.Probe(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if n := transactions(t, p, cfg.Writes) - seen; cfg.Backend == xtables.NFT && n != 3 {
			t.Errorf("3 proofs were %d transactions to the kernel", n)
		}
		if n, err := p.Audit(t.Context(), true); err != nil || n != 0 {
			t.Errorf("an audit then repaired %d, error %v", n, err)
		}
		now := p.Stats()
		if now.Saves != stats.Saves {
			t.Error("the audit listed the rules: the plane took its own probe for a foreign write")
		}
		if now.Restores != stats.Restores+3 || now.Failures != 0 || now.PartialFailures != 0 ||
			now.Last != stats.Last || now.Owned != stats.Owned {
			t.Errorf("before: %+v, after: %+v", stats, now)
		}
		repairs(t, p, 0, "after the probes")
		if after := dump(t, p); after != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
		if after := saved(t, p.Tool.Program); after != rules {
			t.Errorf("the kernel had\n%s\nand has\n%s", rules, after)
		}
		q := newPlane(t, cfg)
		reset(t, q, table)
		if s := q.Stats(); s.Restores != 0 {
			t.Errorf("another process then wrote: %+v", s)
		}

		// The plane still notices a foreign change from before a probe. The legacy kernel counts no
		// transactions, but the rule's packet counter shows the write, because it starts from zero.
		run(t, "", p.Tool.Program, "-t", "nat", "-F", xtables.Services)
		const counted = "[7:9] -A KUBE-MARK-MASQ "
		if cfg.Backend == xtables.Legacy {
			run(t, "*nat\n:KUBE-MARK-MASQ - [0:0]\n"+counted+"-j MARK --set-xmark 0x4000/0x4000\nCOMMIT\n",
				p.Tool.Program+"-restore", "--noflush", "--counters")
			if all := run(t, "", p.Tool.Program+"-save", "-c", "-t", "nat"); !strings.Contains(all, counted) {
				t.Fatalf("there is no %q in\n%s", counted, all)
			}
		}
		if err := p.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
		if all := run(t, "", p.Tool.Program+"-save", "-c", "-t", "nat"); !strings.Contains(all,
			"[0:0] -A KUBE-MARK-MASQ ") {
			t.Errorf("the rule was not written:\n%s", all)
		}
		if n, err := p.Audit(t.Context(), true); err != nil || n != 1 {
			t.Errorf("another program emptied a chain: repaired %d, error %v", n, err)
		}
		if after := dump(t, p); after != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
	})
}

// transactions returns the number of this process's transactions in this network namespace; only
// the nft back end counts them.
func transactions(t *testing.T, p *Plane, ours *selfwrites.Ledger) uint32 {
	t.Helper()
	if p.Backend != xtables.NFT {
		return 0
	}
	if p.Due(false) {
		t.Fatal("the kernel saw others than were counted")
	}
	nf, err := kernel.OpenNetfilter()
	if err != nil {
		t.Fatal(err)
	}
	defer nf.Close()
	all, err := nf.Generation()
	others, err2 := ours.Others(nf.Generation)
	err = errors.Join(err, err2)
	if err != nil {
		t.Fatal(err)
	}
	return all - others
}

// If iptables refuses the write, a probe fails and changes nothing, and later ones succeed. An
// interrupted probe may have been committed: the state then counts as lost, as after any write.
func TestProbeFails(t *testing.T) {
	kerneltest.Later(t)
	eachOnce(t, func(t *testing.T, w planetest.World, cfg Config) {
		run, p := newRefuser(t, cfg)
		reset(t, p, w.Table(5, 3))
		rules := saved(t, p.Tool.Program)
		fails := func(cause error, lost bool) {
			t.Helper()
			run.refuses = func([]byte, []string) error { return cause }
			if err := p.Probe(t.Context()); !errors.Is(err, cause) || errors.Is(err, plane.ErrStateLost) != lost ||
				!strings.Contains(err.Error(), "iptables: probe: ") {
				t.Errorf("%v: error %v", cause, err)
			}
			run.refuses = nil
		}
		fails(&xtables.RunError{Name: "iptables-restore", Said: "line 2 failed",
			Err: errors.New("exit status 4")}, false)
		if s := p.Stats(); s.Failures != 1 || s.PartialFailures != 0 {
			t.Errorf("counted %+v", s)
		}
		if after := saved(t, p.Tool.Program); after != rules {
			t.Errorf("the kernel had\n%s\nand has\n%s", rules, after)
		}
		if err := p.Probe(t.Context()); err != nil {
			t.Errorf("afterwards: %v", err)
		}
		if n, err := p.Audit(t.Context(), true); err != nil || n != 0 {
			t.Errorf("an audit then repaired %d, error %v", n, err)
		}
		fails(context.DeadlineExceeded, true)
	})
}
