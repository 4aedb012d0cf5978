package planetest

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/scenario"
)

// line executes one line of packets, and notes the result.
func (r *run) line(p scenario.Packet) {
	var err error
	sent := true
	switch {
	case r.model != nil:
		sent, err = r.ask(p)
	case p.Verb == scenario.Send, p.Verb == scenario.Open:
		sent, err = r.send(p)
	case p.Verb == scenario.Begin:
		sent, err = r.begin(p)
	case p.Verb == scenario.Reaches:
		sent, err = r.reaches(p)
	case p.Verb == scenario.KeepsWorking, p.Verb == scenario.IsDead, p.Verb == scenario.MovesTo:
		sent, err = r.reuse(p)
	}
	switch {
	case errors.Is(err, netlab.ErrUnsupported):
		r.sctp.Add(1)
	case err != nil:
		r.failf("  %s.txtar:%d: %s\n%s%s", r.sc.Name, p.Line, p.Text, indent(err.Error()), indent(r.dumpText()))
	case sent:
		r.passed.Add(1)
	}
}

func indent(s string) string {
	if s == "" {
		return ""
	}
	return "    " + strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n    ") + "\n"
}

// volley is a line of packets on its way.
type volley struct {
	r     *run
	p     scenario.Packet
	shots []scenario.Shot
	// seen counts the answers by host; ports has the ports of each.
	seen map[string]int
	n    int  // connections so far
	late bool // the last of them was sent when the client's affinity may have expired
}

// resolve returns the targets of a line; none if it is not for this family.
func (r *run) resolve(p scenario.Packet) ([]scenario.Shot, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.replay.Resolve(p, netlab.Addr)
}

// send makes the connections of a line; sent is false if the line is not for this family.
func (r *run) send(p scenario.Packet) (sent bool, err error) {
	shots, err := r.resolve(p)
	if err != nil || len(shots) == 0 {
		return false, err
	}
	if r.lab.noSCTP && shots[0].Proto == lb.SCTP {
		return true, netlab.ErrUnsupported
	}
	if r.s.Holds && passes(p) && r.unserved(shots) {
		p.Want = scenario.Outcome{Verdict: scenario.Refused}
	} else if r.s.Untouched && p.Want.Verdict != scenario.Answered && r.strange(shots) {
		switch proto := shots[0].Proto; {
		case proto == 0 || proto == lb.SCTP:
			// A ping that passes the node proves nothing about it. The sink refuses SCTP like the
			// node would, because SCTP sockets take no packets to addresses of other hosts.
			return false, nil
		case proto == lb.UDP && r.family == lb.IPv6:
			p.Want = scenario.Outcome{Verdict: scenario.Dropped} // the sink answers from its own address
		default:
			p.Want = scenario.Outcome{
				Backends: []scenario.Backend{{Host: netlab.Sink, From: scenario.Origin{Host: scenario.Same}}}}
		}
	}
	if err := r.lab.expect(shots); err != nil {
		return true, fmt.Errorf("make the sink listen: %w", err)
	}
	v := &volley{r: r, p: r.asProxied(p, shots), shots: shots, seen: map[string]int{}}
	switch {
	case p.Verb == scenario.Open:
		err = v.open()
	case p.To.ICMP && r.s.Holds && p.Want.Verdict == scenario.Refused:
		err = v.try(shots[0], r.s.timeout)
	case p.Want.Verdict != scenario.Answered:
		err = v.silent()
	case p.Want.Sticky:
		err = v.sticky()
	case p.Want.Evenly:
		err = v.evenly()
	case p.Want.Or != scenario.Answered && !r.s.Proxied:
		err = v.mixed()
	default:
		err = v.spread()
	}
	if err != nil {
		err = v.explain(err)
		r.mu.Lock()
		r.lapsed = r.lapsed || v.late
		r.mu.Unlock()
	} else {
		v.sentAll()
	}
	return true, err
}

// passes reports whether the line expects an untranslated packet.
func passes(p scenario.Packet) bool {
	return len(p.Want.Backends) == 1 && p.Want.Backends[0].Host == netlab.Sink
}

// unserved reports whether all shots go to ports without endpoints at service addresses of the
// table.
func (r *run) unserved(shots []scenario.Shot) bool {
	for _, s := range shots {
		held, serves := false, false
		for f := range r.table.All() {
			held = held || f.Key.Addr == s.To.Addr()
			serves = serves || f.Key == s.Key && balances(f)
		}
		if !held || serves || s.Proto == 0 || r.lab.owner(s.To.Addr()) == netlab.Node1 { // there a program may answer
			return false
		}
	}
	return true
}

// strange reports whether all shots go to service addresses that are not the node's and have no
// frontend.
func (r *run) strange(shots []scenario.Shot) bool {
	for _, s := range shots {
		if !lb.Within(netlab.ServiceRanges(), s.To.Addr()) || r.lab.owner(s.To.Addr()) == netlab.Node1 ||
			r.table.Get(lb.Key{Addr: s.To.Addr(), Port: s.To.Port(), Proto: s.Proto}) != nil {
			return false
		}
	}
	return true
}

// spread connects until every backend has answered. The chance that a fair choice misses one of
// them in that many connections is below one in a billion.
func (v *volley) spread() error {
	k := len(v.p.Want.Backends)
	least, most := max(4*k, len(v.shots)), 20*k+20+len(v.shots)
	if v.p.Want.Or != scenario.Answered {
		least = 20 // so many connections would meet the endpoint that does not answer, but once in a million
	}
	for v.n < most {
		if err := v.connect(v.shots[v.n%len(v.shots)]); err != nil {
			return err
		}
		if v.n >= least && len(v.seen) == k {
			return nil
		}
	}
	return fmt.Errorf("not all backends answered in %d connections", v.n)
}

// mixed connects until every backend has answered, and one connection met an endpoint that does
// not.
func (v *volley) mixed() error {
	want, timeout := netlab.ErrRefused, v.r.s.timeout
	if v.p.Want.Or == scenario.Dropped {
		want, timeout = netlab.ErrTimeout, v.r.lab.silence
	}
	failed := 0
	for k := len(v.p.Want.Backends); v.n < 40*(k+1); {
		c, err := v.dial(v.shots[v.n%len(v.shots)], timeout)
		switch {
		case errors.Is(err, want):
			failed++
		case err != nil:
			return err
		default:
			if err := errors.Join(v.check(c), c.Close()); err != nil {
				return err
			}
		}
		if failed > 0 && len(v.seen) == k {
			return nil
		}
	}
	return fmt.Errorf("%d of %d connections met the endpoint that does not answer, and not all others answered", failed,
		v.n)
}

// evenly makes fifty connections for each backend and, unless their shares are clearly equal, a
// hundred. A fair choice fails the final test, by six times its standard deviation, less than once
// in a hundred million runs. A choice that gives a backend two fifths of its share passes the first
// round, by more than three times the standard deviation, about once in two thousand.
func (v *volley) evenly() error {
	var unfair error
	for _, round := range []struct{ share, off int }{{50, 15}, {100, 60}} {
		for v.n < round.share*len(v.p.Want.Backends) {
			if err := v.connect(v.shots[v.n%len(v.shots)]); err != nil {
				return err
			}
		}
		unfair = v.unfair(round.share, round.off)
		if unfair == nil {
			return nil
		}
	}
	return unfair
}

// unfair names a backend that was met too often or too rarely.
func (v *volley) unfair(share, off int) error {
	for _, b := range v.p.Want.Backends {
		if n := v.seen[b.Host]; n < share-off || n > share+off {
			return fmt.Errorf("%s got %d of %d connections", b.Host, n, v.n)
		}
	}
	return nil
}

// stickyTries is how many connections must meet the same backend; of three at random they would
// once in 2,187.
const stickyTries = 8

func (v *volley) sticky() error {
	for range stickyTries {
		if err := v.connect(v.shots[v.n%len(v.shots)]); err != nil {
			return err
		}
		if len(v.seen) > 1 {
			return errors.New("not the same backend each time")
		}
	}
	return nil
}

// connect makes one connection and checks the answer.
func (v *volley) connect(shot scenario.Shot) error {
	begin := time.Now()
	c, err := v.dial(shot, v.r.s.timeout)
	if err != nil {
		return err
	}
	v.late = v.r.affinityOver(client{v.p.From, c.Local().Addr(), shot.Key}, begin)
	return errors.Join(v.check(c), c.Close())
}

// client identifies an affinity: a client, and a frontend.
type client struct {
	host string
	addr netip.Addr
	to   lb.Key
}

// affinityOver notes a client's connection, from begin until now. It reports whether the affinity
// of the connection before may have expired: since that one began, at least its duration has
// passed.
func (r *run) affinityOver(c client, begin time.Time) bool {
	row := r.table.Get(c.to)
	if row == nil || row.Affinity == 0 {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	last, again := r.affine[c]
	r.affine[c] = begin
	return again && time.Since(last) >= row.Affinity
}

func (v *volley) dial(shot scenario.Shot, timeout time.Duration) (*netlab.Conn, error) {
	v.n++
	return v.shoot(shot, timeout)
}

// shoot connects from a port that was not used for long. The plane may have a listener on it.
func (v *volley) shoot(shot scenario.Shot, timeout time.Duration) (c *netlab.Conn, err error) {
	for range 100 {
		local := netip.AddrPortFrom(shot.Local, v.r.lab.nextPort())
		c, err = v.r.lab.lab.Open(v.p.From, netlab.Proto(shot.Proto.String()), shot.To,
			netlab.DialOptions{Timeout: timeout, Local: local})
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	v.r.saw(v.p, shot, c, err)
	return c, err
}

// check compares an answer with the line.
func (v *volley) check(c *netlab.Conn) error {
	a := c.First()
	v.seen[a.Server]++
	i := slices.IndexFunc(v.p.Want.Backends, func(b scenario.Backend) bool { return b.Host == a.Server })
	if i < 0 {
		return fmt.Errorf("%s answered", a.Server)
	}
	want := v.p.Want.Backends[i]
	if want.Port != 0 && want.Port != a.At.Port() {
		return fmt.Errorf("%s was reached at port %d", a.Server, a.At.Port())
	}
	return v.checkSource(v.r.origin(want.From, a, v.shots), a, c.Local().Addr())
}

func (v *volley) checkSource(want scenario.Origin, a netlab.Reply, local netip.Addr) error {
	seen := a.Seen.Addr()
	ok := true
	switch {
	case v.r.s.Sockets && seen == local && v.r.lab.lab.Cgroup(v.r.lab.owner(local)) != "":
	case want.Host == scenario.Same:
		ok = seen == local
	case want.Host != "":
		ok = v.r.lab.owner(seen) == want.Host
	case !want.Addr.IsZero():
		v.r.mu.Lock()
		addr, found := v.r.replay.Address(want.Addr)
		v.r.mu.Unlock()
		ok = !found || seen == addr
	}
	if !ok {
		return fmt.Errorf("%s saw the source %s (%s), the client was %s", a.Server, seen, v.r.lab.owner(seen), local)
	}
	return nil
}

// silentTries is how many connections must be refused or dropped; a route that does so only
// sometimes would be found by more runs.
const silentTries = 3

// silent makes connections that must not be answered, at the same time.
func (v *volley) silent() error {
	want, timeout := netlab.ErrRefused, v.r.s.timeout
	if v.p.Want.Verdict == scenario.Dropped {
		want, timeout = netlab.ErrTimeout, v.r.lab.silence
	}
	results := make(chan error, silentTries*len(v.shots))
	for range silentTries {
		for _, shot := range v.shots {
			v.n++
			go func() { results <- v.try(shot, timeout) }()
		}
	}
	var failed error
	for range cap(results) {
		if err := <-results; !errors.Is(err, want) && !v.r.resets(v.p, v.shots, err) && failed == nil {
			failed = err
			if err == nil {
				failed = errors.New("it was answered")
			}
		}
	}
	return failed
}

// try makes one connection that is not to be answered, or sends one ping.
func (v *volley) try(shot scenario.Shot, timeout time.Duration) error {
	if v.p.To.ICMP {
		err := v.r.lab.lab.Ping(v.p.From, shot.To.Addr(), timeout)
		v.r.saw(v.p, shot, nil, err)
		return err
	}
	c, err := v.shoot(shot, timeout)
	if err != nil {
		return err
	}
	return errors.Join(fmt.Errorf("%s answered", c.First().Server), c.Close())
}

// open makes one connection and keeps it.
func (v *volley) open() error {
	c, err := v.dial(v.shots[0], v.r.s.timeout)
	if err != nil {
		return err
	}
	v.r.mu.Lock()
	v.r.conns[v.p.Conn] = c
	v.r.mu.Unlock()
	return v.check(c)
}

// reuse uses a connection that was opened before; sent is false if it was not for this family.
func (r *run) reuse(p scenario.Packet) (sent bool, err error) {
	r.mu.Lock()
	c := r.conns[p.Conn]
	r.mu.Unlock()
	if c == nil {
		return false, nil
	}
	if p.Verb == scenario.MovesTo {
		return true, r.moves(p, c)
	}
	before := c.First()
	after, err := c.Exchange()
	if p.Verb == scenario.KeepsWorking && r.restarted && r.s.Proxied {
		return true, r.overRestart(p, c, err)
	}
	if p.Verb == scenario.IsDead {
		if err == nil {
			return true, fmt.Errorf("connection %s is still answered by %s", p.Conn, after.Server)
		}
		return true, nil
	}
	if err != nil {
		return true, fmt.Errorf("connection %s: %w", p.Conn, err)
	}
	if after.Server != before.Server {
		return true, fmt.Errorf("connection %s was answered by %s before and is by %s now", p.Conn, before.Server,
			after.Server)
	}
	return true, nil
}

// resend is when a client sends again that got no answer.
const resend = 200 * time.Millisecond

// moves has a client send without a pause until the backend that the line names answers. Sessions
// and flows that a datagram renews never expire meanwhile.
func (r *run) moves(p scenario.Packet, c *netlab.Conn) error {
	want := p.Want.Backends[0].Host
	c.SetTimeout(resend) // an answer may be lost while the kernel forgets the flow
	for begun, n := time.Now(), 1; ; n++ {
		got, err := c.Exchange()
		switch {
		case err == nil && got.Server == want:
			return nil
		case time.Since(begun) > r.s.timeout && err != nil:
			return fmt.Errorf("connection %s: datagram %d: %w", p.Conn, n, err)
		case time.Since(begun) > r.s.timeout:
			return fmt.Errorf("connection %s: datagram %d was still answered by %s, not by %s", p.Conn, n, got.Server,
				want)
		}
	}
}

// explain describes the packets sent, the answers, and the frontend that should have decided.
func (v *volley) explain(err error) error {
	var b strings.Builder
	shot := v.shots[0]
	fmt.Fprintf(&b, "sent: %s → %s", v.p.From, shot.To)
	if shot.Proto != 0 {
		fmt.Fprintf(&b, "/%s", shot.Proto)
	}
	if n := len(v.shots); n > 1 {
		fmt.Fprintf(&b, " and %d more ports", n-1)
	}
	fmt.Fprintf(&b, ", %d connections\n", v.n)
	var answers []string
	for _, host := range slices.Sorted(maps.Keys(v.seen)) {
		answers = append(answers, fmt.Sprintf("%s %d", host, v.seen[host]))
	}
	if len(answers) > 0 {
		fmt.Fprintf(&b, "answers: %s\n", strings.Join(answers, ", "))
	}
	fmt.Fprintf(&b, "got:  %v\n", err)
	if row := v.r.table.Get(shot.Key); row != nil {
		fmt.Fprintf(&b, "row:  %s", strings.ReplaceAll(row.String(), "\n", "\n      "))
	} else {
		fmt.Fprintf(&b, "row:  none for %s", shot.Key)
	}
	return errors.New(b.String())
}
