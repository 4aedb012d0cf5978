//go:build linux

package iptables

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
)

// The cost of a change depends on the change alone (DP-11). The input of iptables-restore is the
// same among 100 services and among 2,000, except for the dispatcher's chain, and nothing is
// listed.
func TestChangeIsOfItsOwnSize(t *testing.T) {
	type cost struct {
		endpoint, add, remove int // bytes
		runs                  int
	}
	costs := map[int]cost{}
	for _, n := range []int{100, 2000} {
		// No kernel is involved: the test measures the input of the programs.
		rec := &blackHole{}
		w := planetest.World{Family: lb.IPv4}
		p := newPlane(t, Config{Family: lb.IPv4, Backend: xtables.NFT, Runner: rec})
		table := w.Table(n, 11) // so many that neither table has comments on endpoints (DP-12)
		reset(t, p, table)
		size := func(o lb.Owner, fronts []*lb.Frontend) int {
			before := p.Stats().Bytes
			replace(t, p, table)(o, fronts)
			return int(p.Stats().Bytes - before)
		}
		rec.runs = nil
		var c cost
		c.endpoint = size(w.ClusterIP(7, 190_000, 11))
		c.add = size(w.ClusterIP(60_000, 190_100, 11))
		c.remove = size(lb.Owner{Name: "ns/svc-60000"}, nil)
		c.runs = len(rec.runs)
		for _, r := range rec.runs {
			if !strings.Contains(r, "-restore ") {
				t.Errorf("a change ran %s", r)
			}
		}
		costs[n] = c
	}
	t.Logf("bytes handed over: %+v", costs)
	small, large := costs[100], costs[2000]
	if small.endpoint != large.endpoint {
		t.Errorf("an endpoint changes: %d bytes among 100 services, %d among 2,000", small.endpoint, large.endpoint)
	}
	const chain = (xtables.LeafSize + 16) * 200 // one leaf and its parent
	if d := large.add - small.add; d > chain || d < -chain {
		t.Errorf("a service comes: %d bytes among 100 services, %d among 2,000", small.add, large.add)
	}
	if d := large.remove - small.remove; d > chain || d < -chain {
		t.Errorf("a service goes: %d bytes among 100 services, %d among 2,000", small.remove, large.remove)
	}
	if small.runs != 3 || large.runs != 3 {
		t.Errorf("three changes ran %d and %d programs, want one each", small.runs, large.runs)
	}
}

// Many changes at once need few restores of the legacy back end, because each copies the whole
// table.
func TestManyChangesTakeFewCopies(t *testing.T) {
	w := planetest.World{Family: lb.IPv4}
	p := newPlane(t, Config{Family: lb.IPv4, Backend: xtables.Legacy,
		Runner: &blackHole{version: "iptables v1.8.9 (legacy)"}})
	table := w.Table(600, 10)
	reset(t, p, table)
	before := p.Stats().Restores
	var changes []lb.Change
	for i := range 600 {
		more, _ := table.Replace(w.ClusterIP(i, 100_000+10*i, 10))
		changes = append(changes, more...)
	}
	apply(t, p, changes)
	if n := p.Stats().Restores - before; n != 1 {
		t.Errorf("%d changes took %d restores, want 1", len(changes), n)
	}
}

// blackHole is an iptables that accepts everything and keeps nothing.
type blackHole struct {
	runs     []string
	programs []string // nil for all
	version  string   // nft if empty
	saved    string   // output of iptables-save
	fail     func(stdin []byte, args []string) error
	says     func(name string, args []string) (string, error) // instead of version and saved
}

func (b *blackHole) LookPath(name string) (string, error) {
	if b.programs != nil && !slices.Contains(b.programs, name) {
		return "", &exec.Error{Name: name, Err: exec.ErrNotFound}
	}
	return "/sbin/" + name, nil
}

func (b *blackHole) Pipe(_ context.Context, in func(io.Writer) error, out func(io.Reader) error, name string,
	args ...string) error {
	var text bytes.Buffer
	if in != nil {
		if err := in(&text); err != nil {
			return err
		}
	}
	said, err := b.run(text.Bytes(), name, args)
	if err != nil || out == nil {
		return err
	}
	if err := out(strings.NewReader(said)); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (b *blackHole) run(stdin []byte, name string, args []string) (string, error) {
	b.runs = append(b.runs, name+" "+strings.Join(args, " "))
	if b.fail != nil {
		if err := b.fail(stdin, args); err != nil {
			return "", err
		}
	}
	switch {
	case b.says != nil:
		return b.says(name, args)
	case slices.Contains(args, "--version"):
		return cmp.Or(b.version, "iptables v1.8.9 (nf_tables)") + "\n", nil
	case strings.HasSuffix(name, "-save"):
		return b.saved, nil
	}
	return "", nil
}

// A health check in a service port without name, which has the same name, changes none of its
// chains.
func TestHealthCheckBesidePortWithoutName(t *testing.T) {
	w := planetest.World{Family: lb.IPv4}
	o, fronts := w.Full(1, 10, 3, 1, time.Hour)
	nat := func(p *Plane) map[xtables.ChainID]xtables.Digest {
		all := maps.Clone(p.st.Digests)
		maps.DeleteFunc(all, func(id xtables.ChainID, _ xtables.Digest) bool { return id.Table != xtables.NAT })
		return all
	}
	table := &lb.Table{Node: w.Node()}
	table.Replace(o, fronts)
	p := newPlane(t, Config{Family: lb.IPv4, Runner: &blackHole{}})
	reset(t, p, table)
	want := nat(p)
	for endpoints := range 2 {
		_, check := healthCheck(fronts[0].Service, 65000)
		check[0].LocalEndpoints = endpoints
		replace(t, p, table)(o, slices.Concat(fronts, check))
		fresh := newPlane(t, Config{Family: lb.IPv4, Runner: &blackHole{}})
		reset(t, fresh, table)
		if got := nat(p); !maps.Equal(got, want) || !maps.Equal(nat(fresh), want) {
			t.Errorf("with a health check of %d endpoints the chains of nat are others", endpoints)
		}
	}
}

// servicesOf returns the dispatcher of these addresses.
func servicesOf(fam lb.Family, keys []lb.Key) *xtables.Dispatcher {
	d := newDispatchers()[inServices]
	d.Family = fam
	var entries []xtables.Entry
	for _, k := range keys {
		entries = append(entries, xtables.Entry{Path: xtables.PathOf(k), Rules: []string{"-j ACCEPT"}})
	}
	d.Fill(entries)
	return d
}

// A packet walks tens of rules among ten thousand services, not thousands.
func TestWalkIsShort(t *testing.T) {
	for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
		var keys []lb.Key
		for i := range 10_000 {
			keys = append(keys, lb.Key{Addr: planetest.World{Family: fam}.Addr(10, i+1), Port: 80, Proto: lb.TCP})
		}
		d := servicesOf(fam, keys)
		for _, key := range []lb.Key{keys[0], keys[4999], keys[9999]} {
			walked, at := 0, ""
			for n := d.Nodes[at]; n.Children != nil; n = d.Nodes[at] {
				walked += len(n.Children)
				at = n.ChildOf(xtables.PathOf(key))
			}
			walked += len(d.RangeOf(at))
			if walked > 100 {
				t.Errorf("%s: a packet to %s walks %d rules", fam, key, walked)
			}
		}
	}
}

// Whatever addresses tenants choose, a tree has few levels: nf_tables refuses a rule from which a
// packet could jump 16 times, and up to six jumps follow the tree (TN-75). Here each address
// differs from the next at a different nibble, and the last has more frontends than fit in a leaf.
func TestTreesAreLow(t *testing.T) {
	for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
		for _, c := range []struct{ ports, levels int }{{40, 1}, {500, 2}, {5000, 4}} {
			d := servicesOf(fam, deepKeys(fam, c.ports))
			deepest, most := 0, 0
			for at, n := range d.Nodes {
				most = max(most, len(n.Children))
				depth := 0
				for up := at; up != ""; up = d.Nodes[up].Parent {
					depth++
				}
				deepest = max(deepest, depth)
			}
			if deepest == 0 || deepest > c.levels || most > 600 {
				t.Errorf("%s, %d ports: the tree has %d levels, want 1 to %d, and a chain leads to %d", fam, c.ports,
					deepest, c.levels, most)
			}
		}
	}
}

// deepKeys returns an address with many ports, and for each nibble of the address another address
// that differs from there on.
func deepKeys(fam lb.Family, ports int) (keys []lb.Key) {
	deep := netip.MustParseAddr("203.119.85.66")
	if fam == lb.IPv6 {
		deep = netip.MustParseAddr("2001:db8:1234:5678:9abc:def1:2345:6789")
	}
	for port := range ports {
		keys = append(keys, lb.Key{Addr: deep, Port: uint16(port + 1), Proto: lb.TCP})
	}
	for i := range 2 * len(deep.AsSlice()) {
		b := deep.AsSlice()
		b[i/2] ^= 8 << (4 * (1 - i%2))
		a, _ := netip.AddrFromSlice(b)
		keys = append(keys, lb.Key{Addr: a, Port: 80, Proto: lb.TCP})
	}
	return keys
}

// Load balancers at such addresses are served, with the maximum number of chains behind each. So is
// another tenant's later Service (TN-75).
func TestDeepTreesAreTaken(t *testing.T) {
	eachKind(t, func(t *testing.T, w planetest.World, cfg Config) {
		table := &lb.Table{Node: w.Node()}
		o, fronts := w.Full(100, 1000, 1100, 3, time.Hour)
		var all []*lb.Frontend
		for _, k := range deepKeys(w.Family, 40) {
			f := *fronts[len(fronts)-1]
			f.Key = k
			all = append(all, &f)
		}
		table.Replace(o, all)
		p := newPlane(t, cfg)
		reset(t, p, table)
		replace(t, p, table)(w.ClusterIP(1, 1, 2))
		restarted := newPlane(t, cfg)
		if res := reset(t, restarted, table); len(res.Later) > 0 {
			t.Errorf("left for later: %v", res.Later)
		}
	})
}

// An audit repairs foreign changes of our chains (DP-13): a flushed table, a deleted jump, a
// foreign rule in one of our chains, a missing chain. Foreign rules elsewhere stay.
func TestDriftIsRepaired(t *testing.T) {
	kerneltest.Later(t)
	eachOnce(t, func(t *testing.T, w planetest.World, cfg Config) {
		p := newPlane(t, cfg)
		table := w.Table(40, 3)
		table.Replace(w.Full(100, 1000, 3, 1, 0))
		reset(t, p, table)
		tool := p.Tool.Program
		run(t, "*filter\n:THEIRS - [0:0]\n-A THEIRS -j ACCEPT\n-A INPUT -j THEIRS\nCOMMIT\n", tool+"-restore",
			"--noflush")
		if repaired, err := p.Audit(context.Background(), false); repaired != 0 || err != nil {
			t.Errorf("another program has its own chain: repaired %d, %v", repaired, err)
		}
		want := dump(t, p)
		svc := chainOf(7)
		for _, drift := range []struct {
			name    string
			args    []string
			restore string // instead of args: the input of a restore without --noflush
		}{
			{"nat flushed", []string{"-t", "nat", "-F"}, ""},
			{"filter flushed", nil, "*filter\n:THEIRS - [0:0]\n-A THEIRS -j ACCEPT\n-A INPUT -j THEIRS\nCOMMIT\n"},
			{"nat restored by another program", nil, "*nat\n:THEIRS - [0:0]\n-A OUTPUT -j THEIRS\nCOMMIT\n"},
			{"jump deleted", []string{"-t", "nat", "-D", "PREROUTING", "1"}, ""},
			{"chain emptied", []string{"-t", "nat", "-F", svc}, ""},
			{"rule deleted", []string{"-t", "nat", "-D", svc, "2"}, ""},
			{"rule added", []string{"-t", "nat", "-I", svc, "-j", "ACCEPT"}, ""},
			{"canary deleted", []string{"-t", "mangle", "-X", xtables.Canary}, ""},
		} {
			saves := p.Stats().Saves
			if repaired, err := p.Audit(context.Background(), true); repaired != 0 || err != nil ||
				p.Stats().Saves != saves {
				t.Errorf("before %s: no change happened; repaired %d, %v, %d times listed", drift.name, repaired, err,
					p.Stats().Saves-saves)
			}
			if drift.restore != "" {
				run(t, drift.restore, tool+"-restore")
			} else {
				run(t, "", tool, drift.args...)
			}
			repaired, err := p.Audit(context.Background(), false)
			if err != nil || repaired == 0 {
				t.Errorf("%s: repaired %d, %v", drift.name, repaired, err)
			}
			if got := dump(t, p); got != want {
				t.Errorf("%s: not repaired:\n%s", drift.name, got)
			}
			repairs(t, p, 0, drift.name+", a second audit")
		}
		saves := p.Stats().Saves
		p.ListedAt = p.ListedAt.Add(-time.Hour)
		for range 2 {
			if repaired, err := p.Audit(context.Background(), true); repaired != 0 || err != nil {
				t.Errorf("an hour later: repaired %d, %v", repaired, err)
			}
		}
		if n := p.Stats().Saves - saves; n != 1 {
			t.Errorf("two audits after an hour listed all rules %d times, want once", n)
		}
		if rules := run(t, "", tool, "-S", "INPUT"); !strings.Contains(rules, "-j THEIRS") {
			t.Errorf("the rule of others is gone:\n%s", rules)
		}
	})
}

// One of our chains cannot be deleted while a foreign rule jumps to it: the plane empties it, and
// everything else works.
func TestChainInUseElsewhere(t *testing.T) {
	eachOnce(t, func(t *testing.T, w planetest.World, cfg Config) {
		p := newPlane(t, cfg)
		table := w.Table(3, 2)
		reset(t, p, table)
		svc := chainOf(1)
		run(t, "", p.Tool.Program, "-t", "nat", "-A", "OUTPUT", "-j", svc)
		changes, _ := table.Replace(lb.Owner{Name: "ns/svc-1"}, nil)
		more, _ := table.Replace(w.ClusterIP(5, 500, 2))
		apply(t, p, append(changes, more...))
		out := run(t, "", p.Tool.Program+"-save", "-t", "nat")
		if strings.Contains(out, "-A "+svc+" ") || !strings.Contains(out, "ns/svc-5:http") {
			t.Errorf("after the service went:\n%s", out)
		}
		if got := p.Stats().Stuck; !slices.Contains(got, "nat "+svc) {
			t.Errorf("nothing is said of the chain that is stuck: %q", got)
		}
		for range 2 { // deletable chains are removed at once, not after an hour
			if _, err := p.Audit(context.Background(), true); err != nil {
				t.Error(err)
			}
			if got := p.Stats().Stuck; len(got) != 1 || got[0] != "nat "+svc {
				t.Errorf("after an audit: stuck are %q, want %s alone", got, svc)
			}
		}
		if n := strings.Count(run(t, "", p.Tool.Program+"-save", "-t", "nat"), ":"+xtables.EndpointChain); n != 6 {
			t.Errorf("%d chains of endpoints, want 2 of each of the 3 services", n)
		}
		repairs(t, p, 0, "later")
	})
}

// If iptables refuses to delete a chain that no foreign rule leads to, each audit tries again, and
// counts only what it has deleted. A chain that a foreign rule leads to is not tried again.
func TestChainNotDeletedAtFirst(t *testing.T) {
	eachOnce(t, func(t *testing.T, w planetest.World, cfg Config) {
		runner, p := newRefuser(t, cfg)
		reset(t, p, w.Table(3, 2))
		const unneeded, used = "KUBE-SEP-AAAAAAAAAAAAAAAA", "KUBE-SEP-BBBBBBBBBBBBBBBB"
		for _, name := range []string{unneeded, used} {
			run(t, "", p.Tool.Program, "-t", "nat", "-N", name)
		}
		run(t, "", p.Tool.Program, "-t", "nat", "-A", "OUTPUT", "-g", used)
		runner.refuses = func(text []byte, _ []string) error {
			if !bytes.Contains(text, []byte("\n-X ")) {
				return nil
			}
			return &xtables.RunError{Name: "iptables-restore", Said: "busy", Err: errors.New("exit status 4")}
		}
		audit := func(want int, again bool, when string) {
			t.Helper()
			got, err := p.Audit(t.Context(), true)
			if got != want || p.ListedAt.IsZero() != again || err != nil {
				t.Errorf("%s: an audit repaired %d, want %d; the next lists the rules: %t, want %t; %v", when,
					got, want, p.ListedAt.IsZero(), again, err)
			}
		}
		audit(1, true, "with one chain in use") // which it has emptied
		audit(0, true, "while iptables deletes no chain")
		runner.refuses = nil
		audit(1, false, "when iptables deletes chains")
		audit(0, false, "later")
		out := run(t, "", p.Tool.Program+"-save", "-t", "nat")
		if strings.Contains(out, ":"+unneeded) || !strings.Contains(out, ":"+used) {
			t.Errorf("unneeded is %s, in use %s:\n%s", unneeded, used, out)
		}
	})
}

// Several Applies result in the same chains as a fresh plane, also across the sizes at which the
// dispatcher splits.
func TestStepsEndWhereAFreshStartDoes(t *testing.T) {
	for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
		w := planetest.World{Family: fam}
		p := newPlane(t, Config{Family: fam, Backend: xtables.NFT, Runner: &blackHole{}})
		table := &lb.Table{Node: w.Node()}
		reset(t, p, table)
		compare := func(step string) {
			fresh := newPlane(t, Config{Family: fam, Backend: xtables.NFT, Runner: &blackHole{}})
			reset(t, fresh, table)
			for i, d := range p.st.dispatchers {
				got, want := treeOf(d), treeOf(fresh.st.dispatchers[i])
				if got != want {
					t.Fatalf("%s, %s: the tree is\n%s, that of a fresh start\n%s", fam, step, got, want)
				}
			}
			if len(p.st.Digests) != len(fresh.st.Digests) {
				t.Fatalf("%s, %s: %d chains, a fresh start has %d", fam, step, len(p.st.Digests), len(fresh.st.Digests))
			}
			for id, d := range fresh.st.Digests {
				if p.st.Digests[id] != d {
					t.Fatalf("%s, %s: chain %v is not that of a fresh start", fam, step, id)
				}
			}
		}
		for i := range 120 {
			replace(t, p, table)(w.ClusterIP(i*37%4096, i, i%3))
			if i%5 == 0 {
				compare(fmt.Sprintf("service %d came", i))
			}
		}
		replace(t, p, table)(w.Full(50_000, 9000, 3, 1, 0)) // addresses far from the others
		compare("an outlier came")
		for i := range 120 {
			o, _ := w.ClusterIP(i*37%4096, 0, 0)
			replace(t, p, table)(o, nil)
			if i%5 == 0 {
				compare(fmt.Sprintf("service %d went", i))
			}
		}
	}
}

func treeOf(d *xtables.Dispatcher) string {
	var b bytes.Buffer
	var walk func(at string)
	walk = func(at string) {
		c := d.Chain(at)
		fmt.Fprintf(&b, "%s\n    %s\n", c.ID.Name, strings.Join(c.Rules, "\n    "))
		for _, child := range d.Nodes[at].Children {
			walk(child)
		}
	}
	walk("")
	fmt.Fprintf(&b, "%d nodes", len(d.Nodes))
	return b.String()
}
