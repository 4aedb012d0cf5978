package scenario

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"kube-proxy/lb"
)

// Verb is the action of a line in a packets section.
type Verb uint8

// The verbs.
const (
	// Send makes connections until the answering backends are clear: "pod1 -> shop/web:http :
	// pod1".
	Send Verb = iota
	// Open makes one connection and keeps it: "open a: pod1 -> shop/web:http : pod1".
	Open
	// KeepsWorking uses a connection that was opened before: "a keeps working".
	KeepsWorking
	// IsDead expects that it gets no answer: "a is dead".
	IsDead
	// MovesTo makes the client of an open UDP flow continue to send, and expects that another
	// backend soon answers, Want.Backends: "a moves to pod4".
	MovesTo
	// Begin starts a connection that nothing answers yet, and leaves it to be repeated: "begin a:
	// pod1 -> 203.0.113.1:80 : dropped".
	Begin
	// Reaches expects that it reaches a backend now, Want.Backends: "a reaches pod4".
	Reaches
	// Then waits until all lines before are done; "wait 1.2s" then waits for that time too.
	Then
)

// A Packet is one line of a packets section.
type Packet struct {
	Line int    // in the scenario file
	Text string // as in the file
	Verb Verb
	// Family restricts the line to one family; 0 means every family that the target has an address
	// of.
	Family lb.Family
	Conn   string        // the connection's name, for all verbs but Send and Then
	Wait   time.Duration // for Then

	From string // the host that sends
	As   Addrs  // the source address to send from; empty: the system chooses
	To   Target
	Want Outcome
}

// Addrs is an address, or its IPv4 and IPv6 forms: "192.0.2.1|2001:db8::1", or one that a Service
// has.
type Addrs struct {
	V4, V6 netip.Addr
	// Of names the Service and AddrKind which of its addresses is meant; "" for literal addresses.
	Of   string
	Kind AddrKind
}

// AddrKind selects one of a Service's addresses.
type AddrKind uint8

// The addresses of a Service: shop/web, ext(shop/web), lb(shop/web), nodeport(shop/web).
const (
	ClusterAddr AddrKind = iota
	ExternalAddr
	LoadBalancerAddr
	NodePortAddr
)

var addrKinds = map[string]AddrKind{"ext": ExternalAddr, "lb": LoadBalancerAddr, "nodeport": NodePortAddr}

// IsZero reports whether a names no address.
func (a Addrs) IsZero() bool { return a == Addrs{} }

// Target is where packets are sent to.
type Target struct {
	Addr Addrs
	// Port is a port's number, or the name of one of the Service's ports; "" for ICMP.
	Port string
	// Proto is the protocol; 0 means that of the Service's port, else TCP.
	Proto lb.Proto
	// ICMP: an echo request instead of a connection.
	ICMP bool
	// At is the address that a NodePort is tried on: a host's name or a literal; zero means node1.
	At     Addrs
	AtHost string
}

// Verdict is the outcome of a new connection.
type Verdict uint8

// The verdicts.
const (
	// Answered: the backends of Outcome answer.
	Answered Verdict = iota
	// Refused: an ICMP port unreachable or a TCP reset arrives at once.
	Refused
	// Dropped: no answer.
	Dropped
)

// Outcome is the expected result of a line's connections.
type Outcome struct {
	Verdict Verdict
	// Backends are those that may answer; all of them must, unless Sticky.
	Backends []Backend
	// Sticky: all connections of this line meet the same backend, one of Backends.
	Sticky bool
	// Evenly: each backend gets its equal share of many connections.
	Evenly bool
	// Or is the outcome of connections to an endpoint that does not answer: Refused or Dropped.
	// Modes that try another endpoint then hide it. The zero value, Answered, means no such
	// endpoint.
	Or Verdict
}

// Backend is a host that answers.
type Backend struct {
	Host string
	Port uint16 // 0: any port
	// From is the source address that the backend must see.
	From Origin
}

// Origin is the source that a backend sees: the host of that name, "same" for the sender, an
// address, or any source if all is zero.
type Origin struct {
	Host string
	Addr Addrs
}

// Same is the Origin.Host of an untranslated source.
const Same = "same"

// Hosts are the lab's hosts that may send and answer.
var Hosts = []string{"pod1", "pod2", "pod3", "pod4", "pod5", "node1", "node2", "client", "sink"}

var (
	connName = regexp.MustCompile(`^[a-z][a-z0-9]*$`)
	callForm = regexp.MustCompile(`^([a-z]+)\(([^()]*)\)$`)
)

func (p *parser) packets(st *State, line int, data string) {
	for i, l := range lines(data) {
		pkt, err := parsePacket(l)
		if err != nil {
			p.errorf(line+i, "%w", err)
			continue
		}
		pkt.Line = line + i
		st.Packets = append(st.Packets, pkt)
	}
}

func parsePacket(l string) (Packet, error) {
	pkt := Packet{Text: l}
	if rest, ok := strings.CutPrefix(l, "v4 "); ok {
		pkt.Family, l = lb.IPv4, rest
	} else if rest, ok := strings.CutPrefix(l, "v6 "); ok {
		pkt.Family, l = lb.IPv6, rest
	}
	if l == "then" {
		pkt.Verb = Then
		return pkt, nil
	}
	if d, ok := strings.CutPrefix(l, "wait "); ok {
		var err error
		pkt.Verb = Then
		pkt.Wait, err = time.ParseDuration(d)
		if err != nil || pkt.Wait <= 0 || pkt.Wait > 10*time.Second {
			return pkt, fmt.Errorf("wait %q: want a time such as 1.2s, at most 10s", d)
		}
		return pkt, nil
	}
	for suffix, verb := range map[string]Verb{" keeps working": KeepsWorking, " is dead": IsDead} {
		if name, ok := strings.CutSuffix(l, suffix); ok && connName.MatchString(name) {
			pkt.Verb, pkt.Conn = verb, name
			return pkt, nil
		}
	}
	for infix, verb := range map[string]Verb{" moves to ": MovesTo, " reaches ": Reaches} {
		if name, to, ok := strings.Cut(l, infix); ok && connName.MatchString(name) {
			pkt.Verb, pkt.Conn, pkt.Want = verb, name, Outcome{Backends: []Backend{{Host: to}}}
			return pkt, checkHost(to)
		}
	}
	for prefix, verb := range map[string]Verb{"open ": Open, "begin ": Begin} {
		rest, ok := strings.CutPrefix(l, prefix)
		if !ok {
			continue
		}
		name, line, ok := strings.Cut(rest, ": ")
		if !ok || !connName.MatchString(name) {
			return pkt, fmt.Errorf("%q: want %sNAME: SOURCE -> TARGET : OUTCOME", l, prefix)
		}
		pkt.Verb, pkt.Conn, l = verb, name, line
		break
	}
	from, rest, ok := strings.Cut(l, " -> ")
	to, want, ok2 := strings.Cut(rest, " : ")
	if !ok || !ok2 {
		return pkt, fmt.Errorf("%q: want SOURCE -> TARGET : OUTCOME", l)
	}
	return pkt, pkt.parseParts(from, strings.TrimSpace(to), strings.TrimSpace(want))
}

func (pkt *Packet) parseParts(from, to, want string) error {
	host, as, bound := strings.Cut(strings.TrimSpace(from), " as ")
	if err := checkHost(host); err != nil {
		return err
	}
	pkt.From = host
	var err error
	if bound {
		pkt.As, err = parseAddrs(as)
		if err != nil {
			return err
		}
	}
	pkt.To, err = parseTarget(to)
	if err != nil {
		return err
	}
	pkt.Want, err = parseOutcome(want)
	if err != nil {
		return err
	}
	if pkt.Verb == Open && (pkt.Want.Verdict != Answered || pkt.Want.Or != Answered || pkt.To.ICMP) {
		return fmt.Errorf("%q: only a connection that is answered can be kept open", want)
	}
	if pkt.Verb == Begin && (pkt.Want.Verdict != Dropped || pkt.To.ICMP) {
		return fmt.Errorf("%q: only a connection that is dropped at first can be begun", want)
	}
	return nil
}

func checkHost(name string) error {
	if !slices.Contains(Hosts, name) {
		return fmt.Errorf("host %q: want one of %s", name, strings.Join(Hosts, ", "))
	}
	return nil
}

// parseTarget reads ADDRESS:PORT[/PROTO][@AT] or ADDRESS/icmp.
func parseTarget(s string) (Target, error) {
	var t Target
	bad := func(why string) (Target, error) { return t, fmt.Errorf("target %q: %s", s, why) }
	rest, at, hasAt := strings.Cut(s, "@")
	if hasAt {
		if slices.Contains(Hosts, at) {
			t.AtHost = at
		} else {
			var err error
			t.At, err = parseAddrs(at)
			if err != nil {
				return t, err
			}
		}
	}
	if addr, ok := strings.CutSuffix(rest, "/icmp"); ok {
		t.ICMP = true
		var err error
		t.Addr, err = parseAddrs(addr)
		return t, err
	}
	addr, port, ok := cutPort(rest)
	if !ok {
		return bad("want ADDRESS:PORT, ADDRESS:PORT/PROTOCOL or ADDRESS/icmp")
	}
	if port, proto, ok := strings.Cut(port, "/"); ok {
		var err error
		t.Proto, err = lb.ParseProto(proto)
		if err != nil {
			return bad(err.Error())
		}
		t.Port = port
	} else {
		t.Port = port
	}
	if t.Port == "" {
		return bad("no port")
	}
	var err error
	t.Addr, err = parseAddrs(addr)
	if err != nil {
		return t, err
	}
	if t.Addr.Of == "" {
		if _, err := strconv.ParseUint(t.Port, 10, 16); err != nil {
			return bad("a literal address needs a port number")
		}
	}
	if hasAt && t.Addr.Kind != NodePortAddr {
		return bad("@ is for NodePorts")
	}
	return t, nil
}

// cutPort splits at the colon that is not within an address: the last one, because an IPv6 address
// before a port has brackets.
func cutPort(s string) (addr, port string, ok bool) {
	at := strings.LastIndex(s, ":")
	if at < 0 || strings.HasSuffix(s, "]") {
		return "", "", false
	}
	return s[:at], s[at+1:], true
}

// parseAddrs reads NS/NAME, KIND(NS/NAME), V4, V6, [V6] or V4|V6.
func parseAddrs(s string) (Addrs, error) {
	var a Addrs
	if m := callForm.FindStringSubmatch(s); m != nil {
		kind, ok := addrKinds[m[1]]
		if !ok {
			return a, fmt.Errorf("address %q: want ext(…), lb(…) or nodeport(…)", s)
		}
		a.Kind, s = kind, m[2]
		if !strings.Contains(s, "/") {
			return a, fmt.Errorf("address %q: want a Service as NAMESPACE/NAME", s)
		}
	}
	if ns, name, ok := strings.Cut(s, "/"); ok {
		if ns == "" || name == "" || strings.ContainsAny(name, "/: ") {
			return a, fmt.Errorf("address %q: want a Service as NAMESPACE/NAME", s)
		}
		a.Of = s
		return a, nil
	}
	for form := range strings.SplitSeq(s, "|") {
		form = strings.TrimSuffix(strings.TrimPrefix(form, "["), "]")
		ip, err := netip.ParseAddr(form)
		switch {
		case err != nil:
			return a, fmt.Errorf("address %q: %w", s, err)
		case ip.Is4() && !a.V4.IsValid():
			a.V4 = ip
		case ip.Is6() && !a.V6.IsValid():
			a.V6 = ip
		default:
			return a, fmt.Errorf("address %q: more than one of a family", s)
		}
	}
	return a, nil
}

// parseOutcome reads refused, dropped, or a list of backends: with "one of" before and "sticky"
// behind, or with "evenly", "or refused" or "or dropped" behind.
func parseOutcome(s string) (Outcome, error) {
	switch s {
	case "refused":
		return Outcome{Verdict: Refused}, nil
	case "dropped":
		return Outcome{Verdict: Dropped}, nil
	}
	var o Outcome
	list, sticky := strings.CutSuffix(s, " sticky")
	list, oneOf := strings.CutPrefix(list, "one of ")
	if sticky != oneOf {
		return o, fmt.Errorf(`outcome %q: "one of" and "sticky" go together`, s)
	}
	list, evenly := strings.CutSuffix(list, " evenly")
	o.Sticky, o.Evenly = sticky, evenly
	if l, ok := strings.CutSuffix(list, " or refused"); ok {
		list, o.Or = l, Refused
	} else if l, ok := strings.CutSuffix(list, " or dropped"); ok {
		list, o.Or = l, Dropped
	}
	if o.Or != Answered && (sticky || evenly) {
		return o, fmt.Errorf(`outcome %q: "or refused" and "or dropped" go with neither "sticky" nor "evenly"`, s)
	}
	unset := 0 // index of the first backend that the next "from" is for
	for item := range strings.SplitSeq(list, ",") {
		who, from, hasFrom := strings.Cut(strings.TrimSpace(item), " from ")
		b, err := parseBackend(who)
		if err != nil {
			return o, fmt.Errorf("outcome %q: %w", s, err)
		}
		o.Backends = append(o.Backends, b)
		if !hasFrom {
			continue
		}
		origin, err := parseOrigin(from)
		if err != nil {
			return o, fmt.Errorf("outcome %q: %w", s, err)
		}
		for i := unset; i < len(o.Backends); i++ {
			o.Backends[i].From = origin
		}
		unset = len(o.Backends)
	}
	return o, nil
}

func parseBackend(s string) (Backend, error) {
	host, port, hasPort := strings.Cut(s, ":")
	b := Backend{Host: host}
	if hasPort {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return b, fmt.Errorf("backend %q: port: %w", s, err)
		}
		b.Port = uint16(n)
	}
	return b, checkHost(host)
}

func parseOrigin(s string) (Origin, error) {
	if s == Same || slices.Contains(Hosts, s) {
		return Origin{Host: s}, nil
	}
	a, err := parseAddrs(s)
	if err != nil {
		return Origin{}, fmt.Errorf("source: want same, a host or an address: %w", err)
	}
	return Origin{Addr: a}, nil
}
