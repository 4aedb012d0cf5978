package planetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/nodetrace"
	"kube-proxy/policy"
	"kube-proxy/test/scenario"
	"kube-proxy/trace"
)

// inquiry collects the packets of one state. After they were sent, their outcomes are compared with
// the answers of trace, and with those that the plane reads from the kernel.
type inquiry struct {
	mu    sync.Mutex
	order []trace.Packet
	met   map[trace.Packet]*fate
	lines []sentLine
}

// fate has the outcomes of a packet that was sent some times.
type fate struct {
	line             scenario.Packet // the first that sent it
	answers          map[answer]bool
	refused, silent  int
	from             string   // the host that sent it
	ports            []uint16 // of the client, with an answer
	connected        bool     // the plane says that a program connects its socket
	ping, led, asked bool
	answer           trace.Answer // of trace, after the query
}

// answer is one responder, as one client met it.
type answer struct {
	server string
	at     netip.AddrPort
	seen   netip.Addr // the source that it saw
	local  netip.Addr // the client's own address
}

// sentLine is a line that was repeated until each of its backends had answered.
type sentLine struct {
	line    scenario.Packet
	packets []trace.Packet
	servers []string
}

// inquired counts the queries of the suite.
type inquired struct {
	mu                        sync.Mutex
	packets, followed, states int
	untracked                 int // connections of programs, all without an entry of conntrack
	took                      time.Duration
}

func (a *inquired) add(packets, followed, states, untracked int, took time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.packets, a.followed, a.states, a.took = a.packets+packets, a.followed+followed, a.states+states, a.took+took
	a.untracked += untracked
}

func (a *inquired) String() string {
	return fmt.Sprintf("trace was asked about %d packets in %d states, the plane about %d (in emulation about 8 of "+
		"each state, but in a complete run, and one of generated scenarios); %d connections of programs had no entry "+
		"in conntrack; %v in all", a.packets, a.states, a.followed, a.untracked, a.took.Round(time.Millisecond))
}

// how describes the mode to trace.
func (r *run) how() trace.Mode {
	if r.s.Trace == nil {
		return trace.Mode{}
	}
	return r.s.Trace(r.family)
}

// way returns the packet that a host sends from an address, the host's own if that is not valid.
func (r *run) way(from string, shot scenario.Shot, local netip.Addr) trace.Packet {
	if !local.IsValid() {
		local = shot.Local
	}
	to := shot.To.Addr()
	here := r.holds(to)
	if !local.IsValid() {
		local = netlab.Addr(from, r.family == lb.IPv6)
		if from == netlab.Node1 && here {
			local = to
		}
	}
	p := trace.Packet{From: netip.AddrPortFrom(local, 0), Host: from == netlab.Node1, To: shot.To, Here: here,
		Proto: shot.Proto}
	switch h, _ := netlab.HostByName(from); {
	case from == netlab.Node1:
	case h.Pod() && h.Node == netlab.Node1 && r.sc.Settings.Policy.DetectLocal == policy.BridgeInterface:
		p.In = netlab.PodBridge
	case h.Pod() && h.Node == netlab.Node1:
		p.In = netlab.PodInterfacePrefix + strings.TrimPrefix(from, "pod")
	default:
		p.In = netlab.Uplink
	}
	if shot.Proto == 0 {
		p.Proto = trace.ICMPv4
		if r.family == lb.IPv6 {
			p.Proto = trace.ICMPv6
		}
	}
	return p
}

// saw notes the outcome of one packet of a line.
func (r *run) saw(p scenario.Packet, shot scenario.Shot, c *netlab.Conn, err error) {
	local := netip.Addr{}
	if c != nil && err == nil {
		local = c.Local().Addr()
	}
	packet := r.way(p.From, shot, local)
	q := &r.inquiry
	q.mu.Lock()
	defer q.mu.Unlock()
	f := q.met[packet]
	if f == nil {
		if q.met == nil {
			q.met = map[trace.Packet]*fate{}
		}
		f = &fate{line: p, from: p.From, ping: shot.Proto == 0, led: r.led(shot), answers: map[answer]bool{}}
		q.met[packet] = f
		q.order = append(q.order, packet)
	}
	switch {
	case err == nil && c == nil: // a ping
		f.answers[answer{}] = true
	case err == nil:
		a := c.First()
		f.answers[answer{a.Server, a.At, a.Seen.Addr(), local}] = true
		f.ports = append(f.ports, c.Local().Port())
	case errors.Is(err, netlab.ErrRefused), errors.Is(err, netlab.ErrReset):
		f.refused++
	case errors.Is(err, netlab.ErrTimeout):
		f.silent++
	}
}

// sentAll notes that each backend of a line has answered.
func (v *volley) sentAll() {
	if v.p.Verb != scenario.Send || v.p.Want.Verdict != scenario.Answered || v.p.To.ICMP {
		return
	}
	line := sentLine{line: v.p, servers: slices.Sorted(maps.Keys(v.seen))}
	q := &v.r.inquiry
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, shot := range v.shots {
		for _, packet := range q.order {
			if f := q.met[packet]; f.from == v.p.From && packet.To == shot.To && packet.Proto == shot.Proto &&
				(!shot.Local.IsValid() || packet.From.Addr() == shot.Local) {
				line.packets = append(line.packets, packet)
			}
		}
	}
	q.lines = append(q.lines, line)
}

// inquire queries trace and the plane about all packets of the state, and then for differences.
func (r *run) inquire() {
	q := &r.inquiry
	begin, followed := time.Now(), 0
	look, looks := tracer(r.plane)
	few, most := r.askFew(), len(q.order)
	if os.Getenv("PLANETEST_VM") != "" && os.Getenv("PLANETEST_COMPLETE") == "" {
		most = min(most, maxAsked)
	}
	if few {
		most = 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute+time.Duration(most)*5*time.Second)
	defer cancel()
	err := r.onNode(func() error {
		for _, packet := range q.order {
			f := q.met[packet]
			f.answer, f.asked = trace.Ask(r.table, r.how(), packet), true
			finding := r.otherFate(packet, f)
			if finding == "" && looks && !f.ping && !f.led && followed < most {
				followed++
				finding = unlike(ctx, look, packet, f)
			}
			if finding != "" {
				r.failf("  %s.txtar:%d: %s\n%s%s", r.sc.Name, f.line.Line, f.line.Text, indent(finding),
					indent(f.answer.Text(packet)))
			}
		}
		if !looks || few && r.compared {
			return nil
		}
		r.compared = true
		found, err := differences(ctx, look, r.table)
		if err == nil && len(found) > 0 {
			r.failf("  the kernel differs from the table, though all was written:\n%s", indent(listed(found)))
		}
		return err
	})
	if err != nil {
		r.failf("  look for differences: %v", err)
	}
	for _, line := range q.lines {
		r.allNamed(line)
	}
	untracked, err := r.untracked()
	if err != nil {
		r.failf("  %v", err)
	}
	r.s.inquired.add(len(q.order), followed, 1, untracked, time.Since(begin))
	r.inquiry = inquiry{}
}

// untracked checks that conntrack has no entry of the connections that programs made, and returns
// their number.
func (r *run) untracked() (n int, err error) {
	var all map[way]bool
	for packet, f := range r.inquiry.met {
		if !f.connected || len(f.ports) == 0 {
			continue
		}
		if all == nil {
			all, err = r.lab.tracked(r.family)
			if err != nil {
				return n, err
			}
		}
		for _, port := range f.ports {
			n++
			if all[way{port, packet.To}] {
				r.failf("  %s.txtar:%d: %s\n    a program connects this socket, and conntrack has an entry from port "+
					"%d\n", r.sc.Name, f.line.Line, f.line.Text, port)
			}
		}
	}
	return n, nil
}

// askFew reports whether the plane is queried about one packet of a state, and for differences
// once. In emulation each answer takes a second if the kernel holds thousands of frontends or
// backends.
func (r *run) askFew() bool {
	return os.Getenv("PLANETEST_VM") != "" && strings.HasPrefix(r.sc.Name, generatedPrefix)
}

// unlike describes how the kernel's answer for a packet differs from the table's; "" if it does
// not.
func unlike(ctx context.Context, look mode.Tracer, packet trace.Packet, f *fate) string {
	k, err := look.TracePacket(ctx, packet, nodetrace.Kernel)
	if err != nil {
		return fmt.Sprintf("the plane cannot follow %s: %v", packet, err)
	}
	f.connected = k.Connected
	findings := trace.Compare(f.answer, k)
	if len(findings) == 0 {
		return ""
	}
	return fmt.Sprintf("%s arrived as the table says, and the plane reads from the kernel otherwise: %s\n"+
		"its way there:\n%s", packet, strings.Join(findings, " "), indent(strings.Join(k.Way, "\n")))
}

// otherFate describes an outcome of a packet that contradicts trace; "" without one.
func (r *run) otherFate(packet trace.Packet, f *fate) string {
	if f.led { // by another program of the node, before the proxy
		return ""
	}
	a := f.answer
	fail := func(format string, args ...any) string {
		return fmt.Sprintf("trace says of %s: %s; but ", packet, a.Verdict) + fmt.Sprintf(format, args...)
	}
	switch a.Verdict {
	case trace.Reject:
		if len(f.answers) > 0 || f.silent > 0 {
			return fail("%d answered, and %d times there was silence", len(f.answers), f.silent)
		}
	case trace.Drop:
		if len(f.answers) > 0 || f.refused > 0 {
			return fail("%d answered, and %d times it was refused", len(f.answers), f.refused)
		}
	case trace.Pass:
		return r.otherPass(packet, f, fail)
	case trace.Balance:
		return r.otherBackend(f, fail)
	default:
		return fail("that is no verdict")
	}
	return ""
}

// otherPass is otherFate of a packet that passes unchanged: the owner of the address answers, or
// refuses without a listener.
func (r *run) otherPass(packet trace.Packet, f *fate, fail func(string, ...any) string) string {
	to := packet.To
	owner := r.hasAddress(to.Addr())
	service := lb.Within(netlab.ServiceRanges(), to.Addr())
	for a := range f.answers {
		switch {
		case f.ping:
		case a.at != to && !(to.Addr().IsLoopback() && a.server == f.from):
			return fail("%s answered at %s", a.server, a.at)
		case a.seen != a.local:
			return fail("%s saw the source %s of %s", a.server, a.seen, a.local)
		}
	}
	listens := r.listens(to.Port()) && (r.lab.owner(to.Addr()) != "" || to.Addr().IsLoopback()) || f.ping && owner != ""
	switch {
	case f.refused > 0 && listens:
		return fail("it was refused, where %s listens", owner)
	case f.refused > 0 && owner == "" && !to.Addr().IsLoopback() && !(service && packet.Proto == lb.SCTP):
		return fail("it was refused, at an address without a host")
	case f.silent > 0 && (listens || owner != ""):
		return fail("there was silence, though %s has the address", owner)
	case f.silent > 0 && service && packet.Proto == lb.TCP:
		return fail("there was silence, though the sink behind the node answers")
	}
	return ""
}

// hasAddress names the host that has the address. In modes with Holds the node has the service
// addresses.
func (r *run) hasAddress(a netip.Addr) string {
	if owner := r.lab.owner(a); owner != "" || !r.s.Holds {
		return owner
	}
	for f := range r.table.All() {
		if f.Key.Addr == a {
			return netlab.Node1
		}
	}
	return ""
}

// otherBackend is otherFate of a packet that a backend answers. A refusal or silence is allowed
// only if one of the backends does not answer.
func (r *run) otherBackend(f *fate, fail func(string, ...any) string) string {
	for a := range f.answers {
		i := slices.IndexFunc(f.answer.Backends, func(b trace.Backend) bool { return b.Address == a.at })
		if i < 0 {
			return fail("%s answered at %s, which is no backend", a.server, a.at)
		}
		masq := f.answer.Masquerade || f.answer.Backends[i].Hairpin
		switch {
		case a.server == netlab.Node1 && f.from != netlab.Node1: // not masqueraded on the node itself
		case masq && r.s.Sockets && a.seen == a.local && r.lab.lab.Cgroup(f.from) != "":
		case masq && r.lab.owner(a.seen) != netlab.Node1:
			return fail("%s saw %s, and trace says that it is masqueraded", a.server, a.seen)
		case !masq && a.seen != a.local:
			return fail("%s saw %s and not %s, and trace says that it is not masqueraded", a.server, a.seen, a.local)
		}
	}
	if f.refused+f.silent > 0 && !slices.ContainsFunc(f.answer.Backends,
		func(b trace.Backend) bool { return !r.alive(b.Address) }) {
		return fail("it was refused %d times, and %d times there was silence", f.refused, f.silent)
	}
	return ""
}

// listens reports whether hosts listen at a port.
func (r *run) listens(port uint16) bool {
	if r.ports == nil {
		return slices.Contains(Ports, port)
	}
	return slices.Contains(r.ports, port)
}

// alive reports whether a host listens at an address.
func (r *run) alive(a netip.AddrPort) bool { return r.lab.owner(a.Addr()) != "" && r.listens(a.Port()) }

// allNamed compares the backends that a line reached with those in trace's answer: the line
// connected until each had answered.
func (r *run) allNamed(line sentLine) {
	named := map[string]bool{}
	for _, packet := range line.packets {
		f := r.inquiry.met[packet]
		if f.led || f.answer.AffinitySeconds > 0 || f.answer.Verdict != trace.Balance {
			return
		}
		for _, b := range f.answer.Backends {
			if r.alive(b.Address) {
				named[r.lab.owner(b.Address.Addr())] = true
			}
		}
	}
	if names := slices.Sorted(maps.Keys(named)); len(line.packets) > 0 && !slices.Equal(names, line.servers) {
		r.failf("  %s.txtar:%d: %s\n    trace names the backends %v, and %v answered", r.sc.Name, line.line.Line,
			line.line.Text, names, line.servers)
	}
}
