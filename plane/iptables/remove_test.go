//go:build linux

package iptables

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/test/planetest"
)

func readRules(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata/remove", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var volatile = regexp.MustCompile(`(?m)^#.*\n|\[\d+:\d+\]`)

// saved returns the output of iptables-save, without counters and times.
func saved(t *testing.T, program string) string {
	t.Helper()
	return volatile.ReplaceAllString(run(t, "", program+"-save"), "")
}

func programOf(cfg Config) string { return backend(cfg.Backend).program(cfg.Family) }

// removes removes chains, and nothing of them may stay.
func removes(t testing.TB, cfg xtables.RemoveConfig) xtables.Removed {
	t.Helper()
	r, err := xtables.Remove(t.Context(), cfg)
	if err != nil || len(r.Left) > 0 {
		t.Errorf("remove: left %q, %v", r.Left, err)
	}
	return r
}

// makeSets creates the ipsets that rules of the mode ipvs match (DP-32).
func makeSets(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("ipset"); err != nil {
		t.Skip(err)
	}
	for set, typ := range map[string]string{"KUBE-LOOP-BACK": "hash:ip,port,ip", "KUBE-CLUSTER-IP": "hash:ip,port",
		"KUBE-LOAD-BALANCER":    "hash:ip,port",
		"KUBE-LOAD-BALANCER-FW": "hash:ip,port", "KUBE-NODE-PORT-TCP": "bitmap:port",
		"KUBE-HEALTH-CHECK-NODE-PORT": "bitmap:port", "KUBE-IPVS-IPS": "hash:ip"} {
		if typ == "bitmap:port" {
			run(t, "", "ipset", "create", set, typ, "range", "0-65535")
		} else {
			run(t, "", "ipset", "create", set, typ)
		}
	}
}

// Remove leaves nothing of ours, or of upstream's in any mode, and keeps all foreign rules (DP-15,
// DP-32, DP-33, PR-08).
func TestRemoveDP15(t *testing.T) {
	eachKind(t, func(t *testing.T, w planetest.World, cfg Config) {
		program := programOf(cfg)
		run(t, readRules(t, "others.rules"), program+"-restore", "--noflush")
		before := saved(t, program)
		all := xtables.RemoveConfig{Family: cfg.Family, Backend: cfg.Backend}
		same := func(what string) {
			t.Helper()
			if after := saved(t, program); after != before {
				t.Errorf("%s: others had\n%s\nand have\n%s", what, before, after)
			}
		}
		if r := removes(t, all); r.Chains+r.Rules > 0 {
			t.Errorf("removed %+v where there was nothing of ours", r)
		}
		same("nothing")

		for file, want := range map[string]xtables.Removed{"old.rules": {Chains: 10, Rules: 5},
			"ipvs.rules": {Chains: 12, Rules: 9}} {
			if file == "ipvs.rules" {
				if w.Family == lb.IPv6 {
					continue // its sets have other names
				}
				makeSets(t)
			}
			run(t, readRules(t, file), program+"-restore", "--noflush")
			if r := removes(t, all); r.Chains != want.Chains || r.Rules != want.Rules {
				t.Errorf("%s: removed %d chains and %d rules, want %d and %d", file, r.Chains, r.Rules, want.Chains,
					want.Rules)
			}
			same(file)
		}

		p := newPlane(t, cfg)
		table := w.Table(40, 3)
		table.Replace(w.Full(100, 1000, 3, 1, 0))
		table.Replace(restricted(w, 200, 3, someRanges(w, 0, 5), lb.Balance))
		table.Replace(restricted(w, 201, 3, someRanges(w, 0, 5), lb.Reject))
		reset(t, p, table)
		removes(t, all)
		same("our plane")
		reset(t, p, table)
	})
}

// If the running mode keeps chains by iptables, Remove deletes the other mode's chains, and keeps
// the running mode's where names are the same, in both directions (PR-08, DP-33).
func TestRemoveBeside(t *testing.T) {
	eachBackend(t, func(t *testing.T, b xtables.Backend) {
		inNetns(t)
		cfg := Config{Family: lb.IPv4, Backend: b} // as the sets of testdata/remove/ipvs.rules
		program := programOf(cfg)
		makeSets(t)
		beside := func(keep *xtables.Layout) xtables.Removed {
			t.Helper()
			return removes(t, xtables.RemoveConfig{Family: cfg.Family, Backend: cfg.Backend, KeepLocalnet: true,
				Keep: keep})
		}
		has := func(want, gone []string) {
			t.Helper()
			now := saved(t, program)
			for _, s := range want {
				if !strings.Contains(now, s) {
					t.Errorf("gone: %s", s)
				}
			}
			for _, s := range gone {
				if strings.Contains(now, s) {
					t.Errorf("left: %s", s)
				}
			}
			if t.Failed() {
				t.Logf("there is\n%s", now)
			}
		}
		run(t, readRules(t, "others.rules"), program+"-restore", "--noflush")
		run(t, readRules(t, "ipvs.rules"), program+"-restore", "--noflush")
		run(t, "*mangle\n:KUBE-IPVS-IN -\n-A INPUT -m comment --comment \"kubernetes service portals\" -j "+
			"KUBE-IPVS-IN\nCOMMIT\n", program+"-restore", "--noflush")

		// From ipvs to iptables.
		p := newPlane(t, cfg)
		reset(t, p, planetest.World{Family: lb.IPv4}.Table(3, 2))
		keep := layout()
		if r := beside(keep); r.Chains == 0 || r.Rules == 0 {
			t.Errorf("removed %+v", r)
		}
		has([]string{"-A KUBE-SVC-", "-j KUBE-SERVICES", "-A KUBE-POSTROUTING", "-j KUBE-PROXY-FIREWALL"},
			[]string{"KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", "KUBE-IPVS-", "KUBE-SOURCE-RANGES", "match-set KUBE-"})
		if n, err := p.Audit(t.Context(), true); n != 0 || err != nil {
			t.Errorf("of the running mode %d things were removed, %v", n, err)
		}
		if r := beside(keep); r.Chains+r.Rules > 0 {
			t.Errorf("a second time: %+v", r)
		}

		// And back, to a mode that shares some of the names.
		keep = &xtables.Layout{Ours: func(table, chain string) bool {
			return table == "nat" && (chain == "KUBE-SERVICES" || chain == "KUBE-POSTROUTING" ||
				chain == "KUBE-MARK-MASQ")
		}, Jumps: []xtables.ChainRule{{Table: "nat", Chain: "PREROUTING", Rule: "-j KUBE-SERVICES"},
			{Table: "nat", Chain: "OUTPUT", Rule: "-j KUBE-SERVICES"}, {Table: "nat", Chain: "POSTROUTING",
				Rule: "-j KUBE-POSTROUTING"}}}
		run(t,
			"*nat\n:KUBE-SERVICES -\n-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT\nCOMMIT\n",
			program+"-restore", "--noflush")
		beside(keep)
		has([]string{"-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT",
			"-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES",
			"-A KUBE-POSTROUTING", ":KUBE-MARK-MASQ"}, []string{"KUBE-SVC-", "KUBE-SEP-", ":KUBE-FORWARD",
			"KUBE-EXTERNAL-SERVICES", "KUBE-PROXY-CANARY", "KUBE-PROXY-FIREWALL"})
	})
}

// Chains that foreign rules use stay and are reported, and the rest is still removed.
func TestRemoveForeignReferences(t *testing.T) {
	eachOnce(t, func(t *testing.T, w planetest.World, cfg Config) {
		program := programOf(cfg)
		reset(t, newPlane(t, cfg), w.Table(3, 2))
		run(t, `*filter
:THEIRS - [0:0]
-A THEIRS -m comment --comment "theirs" -j KUBE-FORWARD
-A FORWARD -i eth7 -j KUBE-PROXY-FIREWALL
COMMIT
*nat
:CNI-HOSTPORT-SETMARK - [0:0]
-A CNI-HOSTPORT-SETMARK -m mark --mark 0x2000/0x2000 -j KUBE-MARK-MASQ
COMMIT
`, program+"-restore", "--noflush")
		for range 2 {
			r, err := xtables.Remove(t.Context(), xtables.RemoveConfig{Family: cfg.Family, Backend: cfg.Backend})
			if err != nil {
				t.Fatal(err)
			}
			left := strings.Join(r.Left, "\n")
			for _, want := range []string{
				"chains nat KUBE-MARK-MASQ and KUBE-POSTROUTING stay in force: a rule of others relies on them: -A " +
					"CNI-HOSTPORT-SETMARK -m mark",
				"chain filter KUBE-FORWARD stays, empty: a rule of others leads to it: -A THEIRS",
				"chain filter KUBE-PROXY-FIREWALL stays, empty: a rule of others leads to it: -A FORWARD -i eth7",
			} {
				if !strings.Contains(left, want) {
					t.Errorf("not reported: %s\nreported: %s", want, left)
				}
			}
			if len(r.Left) != 3 {
				t.Errorf("reported: %q", r.Left)
			}
		}
		var have []string
		for line := range strings.Lines(saved(t, program)) {
			if strings.Contains(line, "KUBE-") && !strings.Contains(line, "KUBE-FIREWALL") {
				have = append(have, strings.TrimSpace(line))
			}
		}
		want := []string{":KUBE-FORWARD -", ":KUBE-PROXY-FIREWALL -", "-A FORWARD -i eth7 -j KUBE-PROXY-FIREWALL",
			"-A THEIRS -m comment --comment theirs -j KUBE-FORWARD",
			":KUBE-MARK-MASQ -", ":KUBE-POSTROUTING -", "-A POSTROUTING -m comment --comment \"kubernetes " +
				"postrouting rules\" -j KUBE-POSTROUTING",
			"-A CNI-HOSTPORT-SETMARK -m mark --mark 0x2000/0x2000 -j KUBE-MARK-MASQ",
			"-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000",
			"-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN",
			"-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0",
			"-A KUBE-POSTROUTING -m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE " +
				"--random-fully"}
		for _, line := range want {
			if !strings.Contains(strings.Join(have, "\n")+"\n", line+"\n") {
				t.Errorf("gone: %s", line)
			}
		}
		if len(have) != len(want) {
			t.Errorf("there are\n%s", strings.Join(have, "\n"))
		}
	})
}

// Without the rule that blocks localnet, route_localnet would let other hosts on the link reach
// 127.0.0.1. So both are removed, or both stay for live connections, or because they are not of the
// mode whose chains are removed (DP-10).
func TestRemoveMartianDP10(t *testing.T) {
	eachBackend(t, func(t *testing.T, b xtables.Backend) {
		inNetns(t)
		reset(t, newPlane(t, Config{Family: lb.IPv4, Backend: b}), shopTable())
		for _, c := range []struct {
			what        xtables.RemoveConfig
			stays, left bool
		}{
			{xtables.RemoveConfig{Ours: func(string, string) bool { return false }}, true, false},
			{xtables.RemoveConfig{KeepLocalnet: true}, true, true},
			{xtables.RemoveConfig{}, false, false},
		} {
			c.what.Family, c.what.Backend = lb.IPv4, b
			r, err := xtables.Remove(t.Context(), c.what)
			if err != nil || len(r.Left) > 0 != c.left {
				t.Errorf("left %q, %v; want some: %t", r.Left, err, c.left)
			}
			routesLocalnet(t, c.stays)
			if has := strings.Contains(saved(t, backend(b).program(lb.IPv4)), xtables.BlockLocalnet); has != c.stays {
				t.Errorf("the rule is there: %t, want %t", has, c.stays)
			}
		}
	})
}

// Remove does not touch an unused back end, because listing it would create its tables.
func TestRemoveMakesNothing(t *testing.T) {
	for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
		inNetns(t)
		for _, b := range xtables.Both {
			needs(t, b)
			if r, err := xtables.Remove(t.Context(), xtables.RemoveConfig{Family: fam, Backend: b}); err != nil ||
				r.Chains+r.Rules+len(r.Left) > 0 {
				t.Errorf("%s %s: %+v, %v", fam, b, r, err)
			}
		}
		for _, file := range []string{"ip_tables_names", "ip6_tables_names"} {
			if b, err := os.ReadFile("/proc/thread-self/net/" + file); err != nil || len(b) > 0 {
				t.Errorf("%s has %q, %v", file, b, err)
			}
		}
		if nft, err := exec.LookPath("nft"); err == nil {
			if out := run(t, "", nft, "list", "ruleset"); out != "" {
				t.Errorf("there are tables now:\n%s", out)
			}
		}
	}
}

// Without programs, Remove reports that the host cannot do it.
func TestRemoveWithoutPrograms(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := xtables.Remove(t.Context(), xtables.RemoveConfig{Family: lb.IPv4, Backend: xtables.NFT}); !errors.Is(
		err, plane.ErrUnsupported) {
		t.Errorf("without iptables: %v", err)
	}
}

// If a restore fails because another program changed rules, Remove lists the rules again. A
// permanent failure is an error that names family and program.
func TestRemoveTriesAgain(t *testing.T) {
	needs(t, xtables.NFT)
	for _, fail := range []int{1, 2, 100} {
		for after := range 3 { // entries, jumps, chains
			inNetns(t)
			run(t, readRules(t, "old.rules"), "iptables-nft-restore", "--noflush")
			restores := 0
			r, err := xtables.Remove(t.Context(), xtables.RemoveConfig{Family: lb.IPv4, Backend: xtables.NFT,
				Runner: &refuser{refuses: func([]byte, []string) error {
					restores++
					if restores > after && restores <= after+fail {
						return errors.New("line 2 failed")
					}
					return nil
				}}})
			left := strings.Contains(saved(t, "iptables-nft"), "KUBE-")
			switch {
			case fail < 100 && (err != nil || left || len(r.Left) > 0):
				t.Errorf("%d failures after %d: left %t, %q, %v", fail, after, left, r.Left, err)
			case fail == 100 && (err == nil || !left ||
				!strings.Contains(err.Error(), "remove rules of IPv4, iptables-nft: line 2 failed")):
				t.Errorf("%d failures after %d: left %t, %v", fail, after, left, err)
			}
		}
	}
}

// However many chains cannot be deleted, Remove deletes the others and names each of those; its
// cost is in proportion to them.
func TestSweepManyStuckChains(t *testing.T) {
	for _, c := range []struct{ chains, stuck int }{{1, 0}, {1, 1}, {1000, 0}, {1000, 1}, {1000, 40}, {40, 40}} {
		var ids []xtables.ChainID
		var want []string
		used := map[string]bool{}
		for i := range c.chains {
			id := xtables.NAT.Chain(fmt.Sprintf("%s%04d", xtables.EndpointChain, i))
			ids = append(ids, id)
			if i*c.stuck/c.chains != (i+1)*c.stuck/c.chains {
				used[id.Name] = true
				want = append(want, id.Name)
			}
		}
		deleted, restores := 0, 0
		stuck, err := xtables.Sweep(t.Context(), nil, ids, 300, func(b *xtables.Batch) error {
			restores++
			for _, id := range b.Sections[0].Drop {
				if used[id.Name] {
					return errors.New("in use")
				}
			}
			deleted += len(b.Sections[0].Drop)
			return nil
		})
		var got []string
		for _, s := range stuck {
			got = append(got, s.ID.Name)
		}
		slices.Sort(got)
		if err != nil || !slices.Equal(got, want) || deleted != c.chains-c.stuck {
			t.Errorf("%+v: %d deleted, stuck %q, %v", c, deleted, got, err)
		}
		if most := 8 + c.stuck*40; restores > most {
			t.Errorf("%+v: %d restores, want %d at most", c, restores, most)
		}
	}
}

// TestRemoveAsksTheKernel (TN-71): Remove compares the kernel's content, and so detects programs
// that report success and remove nothing.
func TestRemoveAsksTheKernel(t *testing.T) {
	eachOnce(t, func(t *testing.T, w planetest.World, cfg Config) {
		program := programOf(cfg)
		run(t, readRules(t, "old.rules"), program+"-restore", "--noflush")
		install(t, map[string]string{program + "-restore": "exec cat >/dev/null"})
		r, err := xtables.Remove(t.Context(), xtables.RemoveConfig{Family: cfg.Family, Backend: cfg.Backend})
		if err == nil || !strings.Contains(err.Error(), "the kernel still has 10 chains of kube-proxy (filter KUBE-") ||
			!strings.Contains(err.Error(), "then run --cleanup again") {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// TestRemoveFirewall (DP-15): Remove deletes KUBE-FIREWALL and its jumps where no kubelet runs. If
// other programs use it, the report names it; the kubelet's rules stay.
func TestRemoveFirewall(t *testing.T) {
	const rule = "-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP"
	for name, c := range map[string]struct {
		others string
		stays  bool
		left   string
	}{
		"no kubelet": {},
		"a kubelet":  {others: "*mangle\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n", stays: true},
		"a rule in it": {others: "*filter\n" + rule + "\nCOMMIT\n", stays: true,
			left: "it has a rule that no kube-proxy writes: " + rule},
		"a rule leads in": {others: "*filter\n-A FORWARD -i eth7 -j KUBE-FIREWALL\nCOMMIT\n", stays: true,
			left: "a rule of others leads to it: -A FORWARD -i eth7"},
	} {
		t.Run(name, func(t *testing.T) {
			eachOnce(t, func(t *testing.T, w planetest.World, cfg Config) {
				p := newPlane(t, cfg)
				reset(t, p, w.Table(3, 2))
				if c.others != "" {
					run(t, c.others, programOf(cfg)+"-restore", "--noflush")
				}
				for range 2 {
					r, err := xtables.Remove(t.Context(), xtables.RemoveConfig{Family: cfg.Family,
						Backend: cfg.Backend})
					if err != nil || len(r.Left) > 0 != (c.left != "") || !strings.Contains(strings.Join(r.Left, "\n"),
						c.left) {
						t.Errorf("left %q, %v, want %q", r.Left, err, c.left)
					}
				}
				now := saved(t, programOf(cfg))
				for _, line := range []string{":KUBE-FIREWALL", "-A INPUT -j KUBE-FIREWALL",
					"-A OUTPUT -j KUBE-FIREWALL"} {
					if strings.Contains(now, line) != c.stays {
						t.Errorf("%s: want it to stay: %t\n%s", line, c.stays, now)
					}
				}
			})
		})
	}
}
