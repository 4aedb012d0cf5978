//go:build linux

package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/test/planetest"
)

// halving passes frontends that a Reset left for later to Apply, and splits those that fail
// together into halves, as the engine does. It returns those that fail alone.
func halving(t *testing.T, p *Plane, table *lb.Table, keys []lb.Key) (refused []lb.Key) {
	t.Helper()
	var changes []lb.Change
	for _, k := range keys {
		changes = append(changes, lb.Change{Key: k, New: table.Get(k)})
	}
	switch _, err := p.Apply(t.Context(), changes); {
	case err == nil:
		return nil
	case !strings.Contains(err.Error(), "Invalid argument"):
		t.Fatal(err)
	case len(keys) == 1:
		return keys
	}
	half := len(keys) / 2
	return append(halving(t, p, table, keys[:half]), halving(t, p, table, keys[half:])...)
}

// refusing is an iptables that refuses the rules of some chains.
func refusing(chains ...string) func([]byte, []string) error {
	return func(stdin []byte, _ []string) error {
		for _, name := range chains {
			if strings.Contains(string(stdin), "-A "+name+" ") {
				return &xtables.RunError{Name: "iptables-restore",
					Said: "line 17: RULE_APPEND failed (Invalid argument)", Err: errors.New("exit status 4")}
			}
		}
		return nil
	}
}

// Frontends that the kernel refuses do not block others: a Reset leaves those that it cannot write
// for later, after one more attempt and without a search of its own.
func TestKernelRefusesRows(t *testing.T) {
	for _, version := range []string{"iptables v1.8.9 (nf_tables)", "iptables v1.8.9 (legacy)"} {
		t.Run(version, func(t *testing.T) {
			w := planetest.World{Family: lb.IPv4}
			hole := &blackHole{version: version, fail: refusing(chainOf(7), chainOf(133))}
			p := newPlane(t, Config{Family: lb.IPv4, Runner: hole})
			table := w.Table(150, 10)
			// Refused because of its own rule, independent of the others.
			table.Replace(w.ClusterIP(500, 0, 0))
			res, err := p.Reset(t.Context(), table)
			if err != nil {
				t.Fatal(err)
			}
			if s := p.Stats(); s.Restores > 4 || s.Failures != 1 || s.Saves != 2 {
				t.Errorf("a reset with rows that are refused took %+v", s)
			}
			if len(p.st.rows)+len(res.Later) != table.Len() ||
				p.st.rows[lb.Key{Addr: w.Addr(10, 501), Port: 80, Proto: lb.TCP}] == nil {
				t.Errorf("of %d rows %d are left for later, and %d held", table.Len(), len(res.Later), len(p.st.rows))
			}
			got := halving(t, p, table, res.Later)
			slices.SortFunc(got, lb.Key.Compare)
			want := []lb.Key{{Addr: w.Addr(10, 8), Port: 80, Proto: lb.TCP}, {Addr: w.Addr(10, 134), Port: 80,
				Proto: lb.TCP}}
			if !slices.Equal(got, want) {
				t.Errorf("refused: %v, want %v", got, want)
			}
			if len(p.st.rows) != 149 {
				t.Errorf("%d rows are held, want the 149 good ones", len(p.st.rows))
			}
		})
	}
}

// refuser is the system's iptables, which refuses the rules of some chains.
type refuser struct {
	xtables.System
	refuses func(stdin []byte, args []string) error
	program string // the last one that ran
}

// newRefuser returns a plane and its refuser, which refuses nothing yet.
func newRefuser(t testing.TB, cfg Config) (*refuser, *Plane) {
	t.Helper()
	r := &refuser{System: xtables.System{Lock: ownLock()}}
	cfg.Runner = r
	return r, newPlane(t, cfg)
}

func (r *refuser) Pipe(ctx context.Context, in func(io.Writer) error, out func(io.Reader) error, name string,
	args ...string) error {
	if in == nil || r.refuses == nil {
		return r.System.Pipe(ctx, in, out, name, args...)
	}
	var text bytes.Buffer
	if err := in(&text); err != nil {
		return err
	}
	r.program = name
	if err := r.refuses(text.Bytes(), args); err != nil {
		return err
	}
	return r.System.Pipe(ctx, func(w io.Writer) error {
		_, err := text.WriteTo(w)
		return err
	}, out, name, args...)
}

// While a Reset cannot write a change, the kernel goes on to serve the old state: all chains on the
// way to an endpoint stay unchanged, until an Apply succeeds for the frontend. Then the kernel
// holds the result of a fresh start.
func TestServedRowsThatAreRefusedStay(t *testing.T) {
	eachOnce(t, func(t *testing.T, w planetest.World, cfg Config) {
		table := w.Table(40, 3)
		table.Replace(w.Full(100, 1000, 3, 1, time.Hour))
		reset(t, newPlane(t, cfg), table)
		program := programOf(cfg)
		chainsOf := func(o string) (text string) {
			for line := range strings.Lines(saved(t, program)) {
				if strings.Contains(line, o+":http") && !strings.Contains(line, "-A KUBE-SERVICES") &&
					!strings.Contains(line, xtables.AddressBranch) {
					text += line
				}
			}
			return text
		}
		served := map[string]string{}
		for _, o := range []string{"ns/svc-5", "ns/svc-6", "ns/svc-100"} {
			served[o] = chainsOf(o)
			if !strings.Contains(served[o], "DNAT") {
				t.Fatalf("%s is not served:\n%s", o, served[o])
			}
		}
		for _, i := range []int{5, 6} { // other endpoints
			table.Replace(w.ClusterIP(i, 5000+10*i, 4))
		}
		table.Replace(w.Full(100, 6000, 4, 2, time.Hour))
		// One removed and one added, which moves branches of the tree.
		table.Replace(lb.Owner{Name: "ns/svc-9"}, nil)
		table.Replace(w.ClusterIP(41, 9000, 2))
		bad := chainOf(5)
		run, p := newRefuser(t, cfg)
		run.refuses, cfg.Runner = refusing(bad), run
		res, err := p.Reset(t.Context(), table)
		if err != nil {
			t.Fatal(err)
		}
		for o, was := range served {
			if is := chainsOf(o); is != was {
				t.Errorf("%s was served by\n%s\nand is by\n%s", o, was, is)
			}
		}
		repairs(t, p, 0, "after a Reset")
		node := w.Node()
		node.NodePorts = append(node.NodePorts, netip.PrefixFrom(w.Addr(193, 0), 24))
		if err := p.SetNode(t.Context(), node); err != nil {
			t.Errorf("another node, while rows are refused: %v", err)
		}
		table.Node = node
		got := halving(t, p, table, res.Later)
		want := []lb.Key{{Addr: w.Addr(10, 6), Port: 80, Proto: lb.TCP}}
		if !slices.Equal(got, want) {
			t.Errorf("refused: %v, want %v", got, want)
		}
		if is := chainsOf("ns/svc-5"); is != served["ns/svc-5"] {
			t.Errorf("the row that is refused was served by\n%s\nand is by\n%s", served["ns/svc-5"], is)
		}
		repairs(t, p, 0, "while a row is refused")
		run.refuses = nil
		if got := halving(t, p, table, res.Later); len(got) > 0 {
			t.Errorf("refused: %v, want none any more", got)
		}
		// Deletes the chains of removed endpoints.
		if _, err := p.Audit(t.Context(), true); err != nil {
			t.Error(err)
		}
		after := dump(t, p)
		inNetns(t)
		if want := fresh(t, cfg, table); after != want {
			t.Errorf("got:\n%s\na fresh start makes:\n%s", after, want)
		}
	})
}

// If iptables refuses everything, Reset returns an error and does not retry for ever.
func TestKernelRefusesAll(t *testing.T) {
	hole := &blackHole{fail: func(stdin []byte, _ []string) error {
		if len(stdin) == 0 {
			return nil
		}
		return &xtables.RunError{Name: "iptables-restore", Said: "line 2 failed", Err: errors.New("exit status 4")}
	}}
	p := newPlane(t, Config{Family: lb.IPv4, Runner: hole})
	p.pace.first = math.MaxInt
	if _, err := p.Reset(t.Context(), planetest.World{Family: lb.IPv4}.Table(100, 10)); err == nil {
		t.Fatal("no error")
	}
	if n := len(hole.runs); n > 100 {
		t.Errorf("%d runs", n)
	}
	if _, err := p.Apply(t.Context(), nil); !errors.Is(err, plane.ErrStateLost) {
		t.Errorf("apply after a failed reset: %v", err)
	}
}

// If a cold load is cancelled, it stops before the next restore, and the rules written so far
// serve.
func TestLoadEndsBetweenRestores(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	restores := 0
	hole := &blackHole{fail: func(stdin []byte, _ []string) error {
		if len(stdin) > 0 {
			restores++
			if restores == 2 {
				cancel()
			}
		}
		return nil
	}}
	p := newPlane(t, Config{Family: lb.IPv4, Runner: hole})
	p.maxLines, p.pace.first = 1000, math.MaxInt
	_, err := p.Reset(ctx, planetest.World{Family: lb.IPv4}.Table(200, 10))
	if !errors.Is(err, context.Canceled) || restores > 3 {
		t.Errorf("after %d restores: %v", restores, err)
	}
}

// Each restore of a cold load jumps only to existing chains, and the services that it completes
// work at once.
func TestHalfALoadServes(t *testing.T) {
	declared, jumped := map[string]bool{}, map[string]bool{}
	restores, served := 0, []int{}
	leaf := 0
	hole := &blackHole{fail: func(stdin []byte, _ []string) error {
		nat := false
		for line := range strings.Lines(string(stdin)) {
			f := strings.Fields(line)
			switch {
			case line[0] == '*':
				nat = line == "*nat\n"
			case !nat:
			case line[0] == ':':
				declared[f[0][1:]] = true
			case strings.HasPrefix(line, "-A KUBE-"):
				if to := f[len(f)-1]; strings.HasPrefix(to, "KUBE-") {
					jumped[to] = true
				}
				if strings.HasPrefix(line, "-A "+xtables.AddressBranch) && strings.Contains(line, "--dport 80 ") {
					leaf++
				}
			}
		}
		if len(stdin) > 0 {
			restores++
			served = append(served, leaf)
			for to := range jumped {
				if !declared[to] {
					return fmt.Errorf("restore %d leads to %s, which is not there", restores, to)
				}
			}
		}
		return nil
	}}
	p := newPlane(t, Config{Family: lb.IPv4, Runner: hole})
	p.maxLines, p.pace.first = 1200, math.MaxInt
	const n = 500
	reset(t, p, planetest.World{Family: lb.IPv4}.Table(n, 10))
	if restores < 10 || leaf != n {
		t.Fatalf("%d restores lead to %d services", restores, leaf)
	}
	if half := served[restores/2]; half < n/3 {
		t.Errorf("after half of the restores %d of %d services are served: %v", half, n, served)
	}
}

// install installs shell scripts, by the names of the programs that they replace.
func install(t *testing.T, scripts map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// A program that hangs and ignores signals is killed when the context ends. A program that crashes,
// or exits before it has read all its input, is an error. One that succeeded counts as successful
// even if another process holds its error output open: a child of it, or on a busy machine a child
// of ours that was just forked and has not reached its exec.
func TestProgramMisbehaves(t *testing.T) {
	for _, c := range []struct{ name, script, want string }{ // part of the error
		{"hangs", "sleep 60", "deadline exceeded"},
		{"ignores signals", "trap '' TERM; sleep 61 & wait; sleep 61", "deadline exceeded"},
		{"dies half-way", "head -c 100 >/dev/null; kill -9 $$", "killed"},
		{"fails", "cat >/dev/null; echo 'line 3 failed' >&2; exit 1", "line 3 failed"},
		{"says much", "cat >/dev/null; yes complaint | head -c 100000 >&2; exit 1", "complaint"},
		{"reads nothing", "exit 0", "write its input"},
		{"leaves its output open", "cat >/dev/null; sleep 4 >/dev/null &", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if strings.Contains(c.want, "deadline") {
				ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
			}
			defer cancel()
			err := xtables.System{}.Pipe(ctx, func(w io.Writer) error {
				_, err := w.Write(make([]byte, 4<<20)) // more than a pipe holds
				return err
			}, nil, "sh", "-c", c.script)
			if got := fmt.Sprint(err); (err == nil) != (c.want == "") || !strings.Contains(got, c.want) ||
				len(got) > 3000 {
				t.Errorf("error %.300v, want one with %q", err, c.want)
			}
		})
	}
}

// While another process holds the lock of the legacy back end, a restore waits for a bounded time,
// here a second, and its error names that process (DP-14).
func TestLockIsHeld(t *testing.T) {
	needs(t, xtables.Legacy)
	inNetns(t)
	lock := filepath.Join(t.TempDir(), "lock")
	t.Setenv("XTABLES_LOCKFILE", lock)
	p := newPlane(t, Config{Family: lb.IPv4, Backend: xtables.Legacy})
	p.Tool.Wait = []string{"-w", "1"}
	reset(t, p, shopTable())
	changes, _ := shopTable().Replace(planetest.World{Family: lb.IPv4}.ClusterIP(1, 10, 1))
	f, err := os.Create(lock)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	_, err = p.Apply(t.Context(), changes)
	me := fmt.Sprintf("process %d", os.Getpid())
	if err == nil || !strings.Contains(err.Error(), me) {
		t.Errorf("apply: %v, want an error that names %s", err, me)
	}
	f.Close()
	apply(t, p, changes)
}

// Programs before 1.6.2 cannot wait for the lock, so the plane takes it for them. They do not
// support --random-fully (DP-03, DP-14).
func TestOldIptablesDP14(t *testing.T) {
	for _, c := range []struct {
		version     string
		holds, full bool
		args        string
	}{
		{"iptables v1.4.21", true, false, "--noflush"},
		{"iptables v1.6.1", true, false, "--noflush"},
		{"iptables v1.6.2", false, true, "--noflush -w 5 -W 100000"},
		{"iptables v1.8.7 (legacy)", false, true, "--noflush -w 5 -W 100000"},
		{"iptables v1.8.9 (legacy)", false, true, "--noflush -w 5"},
		{"iptables v1.8.9 (nf_tables)", false, true, "--noflush"},
	} {
		t.Run(c.version, func(t *testing.T) {
			lock := filepath.Join(t.TempDir(), "lock")
			t.Setenv("XTABLES_LOCKFILE", lock)
			fake := fakeTool(c.version, "iptables")
			restores := 0
			fake.fail = func(stdin []byte, args []string) error {
				if len(stdin) == 0 {
					return nil
				}
				restores++
				if got := strings.Join(args, " "); got != c.args {
					t.Errorf("restore %s, want %s", got, c.args)
				}
				if strings.Contains(string(stdin), "MASQUERADE") && strings.Contains(string(stdin),
					"--random-fully") != c.full {
					t.Errorf("--random-fully: %t", !c.full)
				}
				f, err := os.OpenFile(lock, os.O_CREATE|os.O_RDONLY, 0o600)
				if err != nil {
					return err
				}
				defer f.Close()
				if held := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil; held != c.holds {
					t.Errorf("we hold the lock: %t", held)
				}
				return nil
			}
			p := newPlane(t, Config{Family: lb.IPv4, Runner: fake})
			reset(t, p, shopTable())
			if restores == 0 {
				t.Error("nothing was restored")
			}
		})
	}
}

// If iptables is unusable, New gives the reason in one sentence, and wraps the error that makes the
// process choose another mode.
func TestUnusable(t *testing.T) {
	for _, c := range []struct{ name, said, want string }{
		{"no kernel", "iptables v1.8.9 (nf_tables): Could not fetch rule set generation id: Invalid argument",
			"has no tables"},
		{"no table", "can't initialize iptables table `nat': Table does not exist (do you need to insmod?)",
			"has no tables"},
		{"not root", "Fatal: can't open lock file /run/xtables.lock: Permission denied", "may not be used"},
		{"no capability", "Could not fetch rule set generation id: Permission denied (you must be root)",
			"may not be used"},
	} {
		t.Run(c.name, func(t *testing.T) {
			hole := &blackHole{fail: func(_ []byte, args []string) error {
				if slices.Contains(args, "-S") {
					return &xtables.RunError{Name: "iptables-nft", Said: c.said, Err: errors.New("exit status 4")}
				}
				return nil
			}}
			_, err := New(Config{Family: lb.IPv4, Runner: hole})
			if !errors.Is(err, plane.ErrUnsupported) || !strings.Contains(err.Error(), c.want) ||
				!strings.Contains(err.Error(), c.said) {
				t.Errorf("error: %v", err)
			}
		})
	}
}

// In a container without NET_RAW, the legacy back end cannot be queried, and rules that name ipsets
// cannot be listed, whatever program made them. The message that old rules stay, or that none are
// written, says what to do.
func TestListWithoutRights(t *testing.T) {
	for _, c := range []struct {
		program string
		backend xtables.Backend
		said    string
	}{
		{"iptables-legacy", xtables.Legacy, "iptables-save v1.8.11 (legacy): Cannot initialize: Permission denied " +
			"(you must be root)"},
		{"iptables-nft", xtables.NFT, "iptables-nft-save v1.8.11 (nf_tables): Can't open socket to ipset."},
	} {
		hole := &blackHole{fail: func(_ []byte, args []string) error {
			return &xtables.RunError{Name: c.program + "-save", Said: c.said, Err: errors.New("exit status 1")}
		}}
		tool := &xtables.Tool{Run: hole, Program: c.program, Family: lb.IPv4, Backend: c.backend}
		err := tool.Lines(t.Context(), func(xtables.SavedLine) {})
		if err == nil || !strings.Contains(err.Error(), c.program+" may not be used: run as root with CAP_NET_ADMIN "+
			"and CAP_NET_RAW") {
			t.Errorf("error: %v", err)
		}
	}
}

// If the kernel lacks what the node's iptables needs, New takes the other back end, unless the
// configuration names one.
func TestOtherBackend(t *testing.T) {
	fake := fakeTool("", "iptables", "iptables-nft", "iptables-legacy")
	fake.says = func(name string, args []string) (string, error) {
		legacy := strings.HasPrefix(name, "iptables-legacy")
		switch {
		case slices.Contains(args, "--version") && legacy:
			return "iptables v1.8.9 (legacy)", nil
		case slices.Contains(args, "--version"):
			return "iptables v1.8.9 (nf_tables)", nil
		case slices.Contains(args, "-S") && !legacy:
			return "", &xtables.RunError{Name: name, Said: "Could not fetch rule set generation id",
				Err: errors.New("exit status 4")}
		}
		return "", nil
	}
	p := newPlane(t, Config{Family: lb.IPv4, Runner: fake})
	if p.Backend != xtables.Legacy {
		t.Errorf("back end %s", p.Backend)
	}
	if _, err := New(Config{Family: lb.IPv4, Backend: xtables.NFT, Runner: fake}); !errors.Is(err,
		plane.ErrUnsupported) {
		t.Errorf("the nft back end, which was asked for: %v", err)
	}
}

// The metrics MT-09 to MT-12 match the kernel's rules.
func TestStatsMT11(t *testing.T) {
	eachOnce(t, func(t *testing.T, w planetest.World, cfg Config) {
		p := newPlane(t, cfg)
		table := w.Table(40, 3)
		table.Replace(w.Full(100, 1000, 3, 1, 0))
		table.Replace(w.ClusterIP(102, 0, 0))
		compare := func(step string) {
			t.Helper()
			want := map[string]int{}
			tab := ""
			for line := range strings.Lines(run(t, "", p.Tool.Program+"-save")) {
				switch {
				case line[0] == '*':
					tab = strings.TrimSpace(line[1:])
				case strings.HasPrefix(line, "-A KUBE-"), strings.Contains(line, "-j KUBE-"):
					want[tab]++
				}
			}
			if got := p.Stats().Owned; got.Filter != want["filter"] || got.NAT != want["nat"] {
				t.Errorf("%s: owned %+v, want %v", step, got, want)
			}
		}
		reset(t, p, table)
		compare("first sync")
		if s := p.Stats(); s.Last != s.Owned {
			t.Errorf("a first sync wrote %+v of %+v", s.Last, s.Owned)
		}
		replace(t, p, table)(w.Full(100, 1000, 2, 1, 0))
		compare("an endpoint went")
		if s := p.Stats(); s.Last.NAT == 0 || s.Last.NAT > 20 || s.Last.Filter != 0 {
			t.Errorf("a change wrote %+v", s.Last)
		}
		replace(t, p, table)(lb.Owner{Name: "ns/svc-100"}, nil)
		compare("a service went")
		reset(t, p, table)
		compare("again")
		if s := p.Stats(); s.Last != (xtables.Written{}) || s.Failures+s.PartialFailures != 0 {
			t.Errorf("a sync without changes: %+v", s)
		}
	})
}

// While iptables refuses everything, for example because another process holds the lock, the plane
// blames no chain that it cannot delete, and does not try each one. Otherwise a node that returns
// with a thousand stale chains would wait 5 s for each.
func TestStaleChainsWhileNothingIsTaken(t *testing.T) {
	var stale strings.Builder
	stale.WriteString("*nat\n")
	for i := range 1000 {
		fmt.Fprintf(&stale, ":KUBE-SEP-%016d - [0:0]\n", i)
	}
	stale.WriteString("COMMIT\n")
	for _, version := range []string{"iptables v1.8.9 (nf_tables)", "iptables v1.8.9 (legacy)"} {
		t.Run(version, func(t *testing.T) {
			held, restores := false, 0
			hole := &blackHole{version: version, saved: stale.String(), fail: func(stdin []byte, _ []string) error {
				held = held || strings.Contains(string(stdin), "\n-X ")
				if len(stdin) == 0 || !held {
					return nil
				}
				restores++
				return &xtables.RunError{Name: "iptables-restore",
					Said: "Another app is currently holding the xtables lock.", Err: errors.New("exit status 4")}
			}}
			p := newPlane(t, Config{Family: lb.IPv4, Runner: hole})
			if _, err := p.Reset(t.Context(), shopTable()); err == nil ||
				!strings.Contains(err.Error(), "xtables lock") {
				t.Errorf("reset: %v", err)
			}
			if restores > 2 {
				t.Errorf("a reset tried %d times to delete chains", restores)
			}
			if stuck := p.Stats().Stuck; len(stuck) > 0 {
				t.Errorf("%d chains are said to be in use by others", len(stuck))
			}
			held, restores = false, 0
			if _, err := xtables.Remove(t.Context(), xtables.RemoveConfig{Family: lb.IPv4, Backend: p.Backend,
				Runner: hole}); p.Backend == xtables.NFT && err == nil || restores > 6 {
				t.Errorf("remove: %v, after %d tries to delete chains", err, restores)
			}
		})
	}
}

// A comment of a foreign rule may have several lines with any content: iptables-save prints them
// unchanged.
func TestForeignCommentOfSeveralLines(t *testing.T) {
	eachOnce(t, func(t *testing.T, w planetest.World, cfg Config) {
		p := newPlane(t, cfg)
		comments := []string{"x\n-A FORWARD -j KUBE-FORWARD\n", "made by\nsetup.sh",
			"a \"quoted\" \\\nCOMMIT\n*nat\n-A KUBE-SERVICES -j ACCEPT\n:KUBE-SVC-AAAA\n", "\nit's\n"}
		for _, c := range comments {
			run(t, "", p.Tool.Program, "-A", "INPUT", "-m", "comment", "--comment", c, "-j", "ACCEPT")
		}
		theirs := run(t, "", p.Tool.Program, "-S", "INPUT")
		table := w.Table(3, 2)
		reset(t, p, table)
		repairs(t, p, 0, "unchanged")
		if now := run(t, "", p.Tool.Program, "-S", "INPUT"); !strings.HasSuffix(now,
			strings.TrimPrefix(theirs, "-P INPUT ACCEPT\n")) {
			t.Errorf("the rules of others were\n%s\nand are\n%s", theirs, now)
		}
		// In one of our chains such a rule is drift like any other.
		svc := chainOf(1)
		run(t, "", p.Tool.Program, "-t", "nat", "-I", svc, "-m", "comment", "--comment", comments[0], "-j", "ACCEPT")
		repairs(t, p, 1, "with a rule of others in a chain of ours")
		// No line of a comment counts as a rule to remove.
		removes(t, xtables.RemoveConfig{Family: cfg.Family, Backend: cfg.Backend})
		if now := run(t, "", p.Tool.Program, "-S", "INPUT"); !strings.Contains(now,
			strings.TrimPrefix(theirs, "-P INPUT ACCEPT\n")) {
			t.Errorf("the rules of others were\n%s\nand are\n%s", theirs, now)
		}
		if rules := saved(t, p.Tool.Program); strings.Contains(rules, ":KUBE-SERVICES") {
			t.Errorf("chains stay:\n%s", rules)
		}
	})
}

// tap is a runner that reads its input piece by piece, and cancels a context after a number of
// bytes.
type tap struct {
	blackHole
	after int
	end   func()
	text  strings.Builder
	fed   error
}

func (r *tap) Write(b []byte) (int, error) {
	if r.text.Len() < r.after && r.text.Len()+len(b) >= r.after {
		r.end()
	}
	return r.text.Write(b)
}

func (r *tap) Pipe(ctx context.Context, in func(io.Writer) error, out func(io.Reader) error, name string,
	args ...string) error {
	if in != nil {
		r.fed = in(r)
		return errors.Join(r.fed, ctx.Err())
	}
	return r.blackHole.Pipe(ctx, nil, out, name, args...)
}

// A cancelled load of the legacy back end must not commit its input so far, because it begins by
// emptying all chains.
func TestLoadThatEndsCommitsNothing(t *testing.T) {
	w := planetest.World{Family: lb.IPv4}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := &tap{blackHole: blackHole{version: "iptables v1.8.9 (legacy)"}, after: 100_000, end: cancel}
	p := newPlane(t, Config{Family: lb.IPv4, Runner: r})
	p.pace.first = math.MaxInt
	if _, err := p.Reset(ctx, w.Table(500, 10)); !errors.Is(err, context.Canceled) {
		t.Errorf("reset: %v", err)
	}
	nat := r.text.String()[max(0, strings.LastIndex(r.text.String(), "*nat\n")):]
	if complete := strings.Count(nat, "-A KUBE-SEP-") == 2*500*10; r.fed == nil &&
		strings.HasSuffix(nat, "COMMIT\n") && !complete {
		t.Errorf("%d bytes that declare %d chains and have %d rules end with COMMIT", len(nat),
			strings.Count(nat, "\n:"), strings.Count(nat, "\n-A "))
	}
}

// The effect of a killed program is unknown: it may have finished.
func TestKilledAfterItsWork(t *testing.T) {
	needs(t, xtables.NFT)
	inNetns(t)
	die := filepath.Join(t.TempDir(), "die")
	real, err := exec.LookPath("iptables-nft-restore")
	if err != nil {
		t.Fatal(err)
	}
	install(t, map[string]string{
		"iptables-nft-restore": fmt.Sprintf("%s \"$@\" || exit\n[ -e %s ] && kill -9 $$\nexit 0", real, die)})
	w := planetest.World{Family: lb.IPv4}
	p := newPlane(t, Config{Family: lb.IPv4, Backend: xtables.NFT})
	table := w.Table(3, 2)
	reset(t, p, table)
	if err := os.WriteFile(die, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	changes, _ := table.Replace(w.ClusterIP(1, 700, 3)) // only of nat
	if _, err := p.Apply(t.Context(), changes); !errors.Is(err, plane.ErrStateLost) {
		t.Errorf("apply: %v; want one that says that the state is lost", err)
	}
}
