//go:build linux

package iptables

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	"kube-proxy/internal/netlab"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/selfwrites"
	"kube-proxy/test/planetest"
)

// A probe is a write that the kernel commits and that changes nothing. Neither this nor another
// process finds anything to repair, or must list the rules to find out (HT-04). The metrics do not
// count it as a sync (MT-10 to MT-12).
func TestProbeHT04(t *testing.T) {
	eachKind(t, func(t *testing.T, w planetest.World, cfg Config) {
		cfg.Writes = &selfwrites.Ledger{}
		p := newPlane(t, cfg)
		if err := p.Probe(t.Context()); !errors.Is(err, plane.ErrStateLost) {
			t.Errorf("before a reset: error %v", err)
		}
		table := w.Table(40, 3)
		table.Replace(w.Full(100, 1000, 3, 1, time.Hour))
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
	if err = errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	return all - others
}

// If the kernel refuses our writes, a probe fails and changes nothing; when the kernel accepts them
// again, it succeeds.
func TestProbeRefused(t *testing.T) {
	eachKind(t, func(t *testing.T, w planetest.World, cfg Config) {
		p := newPlane(t, cfg)
		reset(t, p, w.Table(5, 3))
		rules := saved(t, p.Tool.Program)
		err := withoutNetAdmin(t, func() error { return p.Probe(t.Context()) })
		if err == nil || errors.Is(err, plane.ErrStateLost) || !strings.Contains(err.Error(), "iptables: probe: ") {
			t.Errorf("programs without CAP_NET_ADMIN: error %v", err)
		}
		if s := p.Stats(); s.Failures != 1 || s.PartialFailures != 0 {
			t.Errorf("counted %+v", s)
		}
		if after := saved(t, p.Tool.Program); after != rules {
			t.Errorf("the kernel had\n%s\nand has\n%s", rules, after)
		}
		if err := p.Probe(t.Context()); err != nil {
			t.Errorf("with the capability again: %v", err)
		}
		if n, err := p.Audit(t.Context(), true); err != nil || n != 0 {
			t.Errorf("an audit then repaired %d, error %v", n, err)
		}
	})
}

// withoutNetAdmin calls f on a thread whose programs run as root without CAP_NET_ADMIN.
func withoutNetAdmin(t *testing.T, f func() error) error {
	t.Helper()
	here := fmt.Sprintf("/proc/%d/ns/net", unix.Gettid())
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // not unlocked: the thread ends with the goroutine
		failed <- func() error {
			fd, err := unix.Open(here, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
				return err
			}
			header := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			caps := make([]unix.CapUserData, 2)
			if err := unix.Capget(header, &caps[0]); err != nil {
				return err
			}
			caps[0].Inheritable, caps[1].Inheritable = 0, 0
			if err := unix.Capset(header, &caps[0]); err != nil {
				return err
			}
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_NET_ADMIN, 0, 0, 0); err != nil {
				return err
			}
			return f()
		}()
	}()
	return <-failed
}

// An interrupted probe may have been committed: the state then counts as lost, as after any write.
func TestProbeCutOff(t *testing.T) {
	netlab.EnterForTest(t)
	hole := &blackHole{}
	p := newPlane(t, Config{Family: lb.IPv4, Runner: hole})
	reset(t, p, planetest.World{Family: lb.IPv4}.Table(5, 3))
	hole.runs = nil
	if err := p.Probe(t.Context()); err != nil {
		t.Errorf("error %v", err)
	}
	if len(hole.runs) != 1 || !strings.Contains(hole.runs[0], "-restore --noflush") {
		t.Errorf("a proof ran %q, want one restore", hole.runs)
	}
	hole.fail = func([]byte, []string) error { return fmt.Errorf("it was ended: %w", context.DeadlineExceeded) }
	if err := p.Probe(t.Context()); !errors.Is(err, plane.ErrStateLost) {
		t.Errorf("a program that took too long: error %v", err)
	}
}
