//go:build linux

package iptables

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/kernel"
	"kube-proxy/internal/netlab"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/test/planetest"
	"kube-proxy/test/seedtest"
	"kube-proxy/trace"
)

// differentialSteps is how many changes a walk makes if KUBE_PROXY_STEPS does not say it.
const differentialSteps = 20

// Whatever changes came, whichever process died in the middle of them, and whatever the node's facts were meanwhile: the
// rules end as those of a fresh start, and those of others are as they were. Services are so many that all trees split
// and grow together again.
func TestChangesEndWhereAFreshStartDoes(t *testing.T) {
	eachKind(t, func(t *testing.T, w planetest.World, cfg Config) {
		d := &differential{T: t, World: w, cfg: cfg, rnd: rand.New(rand.NewPCG(seedtest.Of(t), 0)), table: &lb.Table{Node: w.Node()}}
		d.cfg.Runner = xtables.System{Lock: ownLock()}
		localhost := d.rnd.IntN(3) > 0
		d.cfg.LocalhostNodePorts = &localhost
		d.walk()
	})
}

// differential is a walk of one plane after the other.
type differential struct {
	*testing.T
	planetest.World
	cfg     Config
	rnd     *rand.Rand
	table   *lb.Table
	plane   *Plane
	crashes int
}

// foreign are rules of others, in front of ours and behind.
const foreign = `*filter
:THEIRS - [0:0]
:KUBE-FIREWALL - [0:0]
-A THEIRS -m comment --comment "not -j KUBE-SERVICES" -j ACCEPT
-A INPUT -j THEIRS
-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP
COMMIT
*nat
:KUBE-POD-THEIRS - [0:0]
-A PREROUTING -j KUBE-POD-THEIRS
COMMIT
`

func (d *differential) walk() {
	d.start()
	steps := differentialSteps
	if s := os.Getenv("KUBE_PROXY_STEPS"); s != "" {
		var err error
		if steps, err = strconv.Atoi(s); err != nil {
			d.Fatal(err)
		}
	}
	for step := range steps {
		what := d.step()
		if d.plane == nil {
			what += ", and the process died"
			d.start()
		}
		before, err := d.rules()
		if err != nil {
			d.Fatal(err)
		}
		if mended, err := auditAll(d.plane); mended != 0 || err != nil {
			after, _ := d.rules()
			d.Fatalf("step %d, %s: an audit mended %d, %v:\n%s", step, what, mended, err, difference(before, after))
		}
		d.look(fmt.Sprintf("step %d, %s", step, what))
		got, err := d.rules()
		if err != nil {
			d.Fatal(err)
		}
		var want string
		if err := netlab.Isolated(0, func() error {
			theirs := exec.Command(d.plane.Tool.Program+"-restore", "--noflush")
			theirs.Stdin = strings.NewReader(foreign)
			if err := theirs.Run(); err != nil {
				return err
			}
			p, err := New(d.cfg)
			if err != nil {
				return err
			}
			defer p.Close()
			if _, err := planetest.ResetAll(d.Context(), p, d.table); err != nil {
				return err
			}
			for id, digest := range p.st.kernel {
				if d.plane.st.kernel[id] != digest {
					d.Errorf("step %d, %s: chain %v is not that of a fresh start", step, what, id)
				}
			}
			if len(p.st.kernel) != len(d.plane.st.kernel) || p.st.rules != d.plane.st.rules {
				d.Errorf("step %d, %s: %d chains with %v rules, a fresh start has %d with %v", step, what,
					len(d.plane.st.kernel), d.plane.st.rules, len(p.st.kernel), p.st.rules)
			}
			if a, b := d.plane.st.endpoints, p.st.endpoints; a != b {
				d.Errorf("step %d, %s: %d endpoints, after a fresh start %d", step, what, a, b)
			}
			if a, b := d.plane.Stats().Owned, p.Stats().Owned; a != b {
				d.Errorf("step %d, %s: %v rules are owned, after a fresh start %v", step, what, a, b)
			}
			want, err = d.rules()
			return err
		}); err != nil {
			d.Fatalf("step %d, %s: %v", step, what, err)
		}
		if got != want {
			d.Fatalf("step %d, %s: the rules are not those of a fresh start, which begin with + here:\n%s", step, what, difference(got, want))
		}
		if d.Failed() {
			return
		}
	}
	d.Logf("%d rows at the end, %d processes died", d.table.Len(), d.crashes)
}

// look follows some packets, and compares: neither finds anything but what the table says.
func (d *differential) look(when string) {
	for _, diff := range planetest.Differences(d.T, d.plane, d.table) {
		d.Errorf("%s: differs: %+v", when, diff)
	}
	how := asked
	how.Loopback = *d.cfg.LocalhostNodePorts
	packets := d.World.Packets(d.table, false)
	for range min(10, len(packets)) {
		packet := packets[d.rnd.IntN(len(packets))]
		got, err := d.plane.Follow(d.Context(), packet)
		if err != nil {
			d.Fatal(err)
		}
		if found := trace.Compare(trace.Ask(d.table, how, packet), got); found != nil {
			d.Errorf("%s: %+v: %s\n%s", when, packet, strings.Join(found, " "), show(got))
		}
	}
}

// start starts a process.
func (d *differential) start() {
	p, err := New(d.cfg)
	if err != nil {
		d.Fatal(err)
	}
	if d.plane == nil && d.crashes == 0 {
		run(d, foreign, p.Tool.Program+"-restore", "--noflush")
	}
	d.Cleanup(func() { p.Close() })
	d.plane = p
	for d.rnd.IntN(4) == 0 { // another dies at its start
		d.crash(func() error {
			_, err := p.Reset(d.Context(), d.table)
			return err
		})
		if d.plane != nil {
			return
		}
		d.plane = p
	}
	if _, err := planetest.ResetAll(d.Context(), p, d.table); err != nil {
		d.Fatal(err)
	}
}

// errCrash is the error of a restore that a process that dies leaves.
var errCrash = errors.New("the process died")

// crash lets the process die in the middle of what it does, after so many tables of restores. Then there is no plane.
func (d *differential) crash(do func() error) {
	left := d.rnd.IntN(6)
	d.plane.Tool.Run = dying{d.cfg.Runner.(xtables.System), &left}
	err := do()
	d.plane.Tool.Run = d.cfg.Runner
	switch {
	case errors.Is(err, errCrash):
		d.crashes++
		d.plane = nil
	case err != nil:
		d.Fatal(err)
	}
}

// dying runs programs, and cuts the input off before table number left of those to be restored.
type dying struct {
	xtables.System
	left *int
}

func (r dying) Pipe(ctx context.Context, in func(io.Writer) error, out func(io.Reader) error, name string, args ...string) error {
	if in == nil {
		return r.System.Pipe(ctx, in, out, name, args...)
	}
	var all strings.Builder
	if err := in(&all); err != nil {
		return err
	}
	text, ended := "", false
	for part := range strings.SplitAfterSeq(all.String(), "COMMIT\n") {
		if ended = part != "" && *r.left == 0; ended {
			break
		}
		if part != "" {
			*r.left--
		}
		text += part
	}
	err := r.System.Pipe(ctx, func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	}, out, name, args...)
	if ended {
		err = errors.Join(errCrash, err)
	}
	return err
}

// step changes something, and says what.
func (d *differential) step() string {
	ctx := d.Context()
	if d.rnd.IntN(5) == 0 {
		n := d.node()
		d.table.Node = n
		if err := d.plane.SetNode(ctx, n); err != nil {
			d.Fatal(err)
		}
		return fmt.Sprintf("node %v", n)
	}
	const most = 110
	var changes []lb.Change
	n := 1 + d.rnd.IntN(4)
	if d.rnd.IntN(4) == 0 {
		n = d.rnd.IntN(most)
	}
	goes := d.rnd.IntN(10) // how many of ten go
	for range n {
		o, fronts := d.service(d.rnd.IntN(most))
		if d.rnd.IntN(10) < goes {
			fronts = nil
		}
		more, _ := d.table.Replace(o, fronts)
		changes = append(changes, more...)
	}
	what := fmt.Sprintf("%d services", n)
	if d.rnd.IntN(3) == 0 { // a change is what it is now, whatever came before
		last := map[lb.Key]lb.Change{}
		for _, c := range changes {
			last[c.Key] = c
		}
		changes = nil
		for _, k := range slices.SortedFunc(maps.Keys(last), lb.Key.Compare) {
			changes = append(changes, last[k])
		}
		d.rnd.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
	}
	d.plane.pace = []int{nftPace, 10}[d.rnd.IntN(2)]
	apply := func() error {
		_, err := d.plane.Apply(ctx, changes)
		return err
	}
	if d.rnd.IntN(6) == 0 {
		d.crash(apply)
	} else if err := apply(); err != nil {
		d.Fatal(err)
	}
	return what
}

// node is one of some nodes.
func (d *differential) node() lb.Node {
	n := d.World.Node()
	all := netip.PrefixFrom(d.Addr(0, 0), 0).Masked()
	switch d.rnd.IntN(6) {
	case 5: // has the loopback addresses among others
		n.NodePorts = []netip.Prefix{netip.PrefixFrom(d.Addr(64, 0), 2).Masked()}
	case 0:
		n.NodePorts = []netip.Prefix{all}
	case 1:
		n.NodePorts = nil
	case 2:
		n.NodePorts = append(n.NodePorts, netip.PrefixFrom(d.Addr(193, 0), 24))
	case 3:
		n.NodePorts = []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr(map[lb.Family]string{lb.IPv4: "127.0.0.0", lb.IPv6: "::1"}[d.Family]), map[lb.Family]int{lb.IPv4: 8, lb.IPv6: 128}[d.Family])}
	}
	switch d.rnd.IntN(5) {
	case 0:
		n.Pods = lb.Detector{}
	case 1:
		n.Pods = lb.Detector{Interface: "cni0"}
	case 2:
		n.Pods = lb.Detector{InterfacePrefix: "veth"}
	case 3:
		n.Pods.Prefixes = append(n.Pods.Prefixes, netip.PrefixFrom(d.Addr(101, 0), 24))
	}
	return n
}

// service is one of the Services that number i may be.
func (d *differential) service(i int) (lb.Owner, []*lb.Frontend) {
	first, n := 1000+d.rnd.IntN(3)+i*3, d.rnd.IntN(5)
	sticky := []time.Duration{0, 0, time.Hour}[d.rnd.IntN(3)]
	if i%7 == 3 { // nearly all share their first bits: the others move the root of the tree
		n = max(n, 1)
	}
	o, fronts := d.Full(i, first, n, d.rnd.IntN(2), sticky)
	switch {
	case i%10 == 9: // far from the others
		fronts[0].Key.Addr = d.Addr(byte(11+i), i)
	case i > 60: // ports of one address
		fronts[0].Key.Addr, fronts[0].Key.Port = d.Addr(10, 1<<20), uint16(1+i%50*1300)
	}
	if i%3 == 0 {
		for _, f := range fronts {
			f.Key.Proto = lb.UDP
			for r := range f.Routes {
				if f.Routes[r].To != nil {
					set := *f.Routes[r].To
					set.ID.Proto = lb.UDP
					f.Routes[r].To = &set
				}
			}
		}
	}
	switch d.rnd.IntN(6) {
	case 0:
		fronts = fronts[:1]
	case 1:
		for _, f := range fronts {
			f.Sources = nil
		}
	case 2: // nobody serves it
		for _, f := range fronts {
			f.Routes, f.Affinity = []lb.Route{{From: lb.Anywhere, Do: lb.Reject}}, 0
		}
	case 3: // all claim the same address
		for _, f := range fronts {
			if f.Kind == lb.ExternalIP {
				f.Key.Addr = d.Addr(203, i%5)
			}
		}
	case 4: // the cluster IP drops from the host
		if n > 0 {
			fronts[0].Routes = []lb.Route{{From: lb.Anywhere, Do: lb.Drop}}
		}
	}
	if list := d.rnd.IntN(4); list > 0 { // lists come, are shared and go
		for _, f := range fronts {
			if len(f.Sources) > 0 {
				f.Sources = append(someRanges(d.World, 100*list, 2*list), f.Sources...)
			}
		}
	}
	if d.rnd.IntN(3) == 0 {
		fronts = append(fronts, &lb.Frontend{Key: lb.Key{Port: uint16(20000 + i), Proto: lb.TCP}, Service: o.Name, Kind: lb.HealthCheck,
			Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Accept}}, LocalEndpoints: d.rnd.IntN(3)})
	}
	return o, fronts
}

// rules returns what iptables-save prints, chains sorted, and the setting that goes with it.
func (d *differential) rules() (string, error) {
	chains := map[string]string{}
	table := ""
	out, err := exec.Command(d.plane.Tool.Program + "-save").Output()
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(out)) {
		switch line[0] {
		case '*':
			table = strings.TrimSpace(line[1:])
		case ':':
			name, _, _ := strings.Cut(line[1:], " ")
			chains[table+" "+name] += ""
		case '-':
			f := strings.Fields(line)
			chains[table+" "+f[1]] += line
		}
	}
	var all []string
	for name, rules := range chains {
		if rules != "" || strings.Contains(name, "KUBE-") { // others may be made by a look at them
			all = append(all, name+"\n"+rules)
		}
	}
	slices.Sort(all)
	if d.Family == lb.IPv4 {
		value, err := kernel.Sysctl(xtables.RouteLocalnet)
		all = append(all, fmt.Sprintf("route_localnet %s %v\n", value, err))
	}
	return strings.Join(all, ""), nil
}

// difference returns the lines that only one has.
func difference(got, want string) string {
	count := map[string]int{}
	for line := range strings.Lines(want) {
		count[line]++
	}
	for line := range strings.Lines(got) {
		count[line]--
	}
	var out []string
	for line, n := range count {
		switch {
		case n > 0:
			out = append(out, "+ "+line)
		case n < 0:
			out = append(out, "- "+line)
		}
	}
	if len(out) == 0 {
		return "the order alone\n" + got + "\nwant:\n" + want
	}
	slices.Sort(out)
	return strings.Join(out, "")
}
