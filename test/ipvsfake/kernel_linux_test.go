package ipvsfake_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	nlconn "kube-proxy/internal/netlink/conn"
	ipvswire "kube-proxy/internal/netlink/ipvs"
	"kube-proxy/test/ipvsfake"
)

var (
	seed     = flag.Uint64("ipvs.seed", 1, "of the random messages of TestFakeIsLikeTheKernel")
	messages = flag.Int("ipvs.messages", 5000, "how many messages TestFakeIsLikeTheKernel sends")
)

// side is one of the two that are compared.
type side struct {
	name   string
	conn   nlconn.Transport
	family uint16
}

// expected are commands and what becomes of them, each once at least; or the messages are no good.
var expected = []string{
	"1: <nil>", "1: file exists", "1: no such file or directory", "1: invalid argument", "1: address family not supported by protocol",
	"2: <nil>", "2: no such process", "2: no such file or directory", "3: <nil>", "3: no such process", "4: <nil>", "4: no such process",
	"5: <nil>", "5: file exists", "5: no such process", "5: invalid argument", "5: numerical result out of range", "5: address family not supported by protocol",
	"6: <nil>", "6: no such process", "6: no such file or directory", "7: <nil>", "7: no such file or directory", "8: <nil>", "8: operation not supported", "12: <nil>",
	"13: <nil>", "16: <nil>", "16: no such process", "17: <nil>", "30: operation not supported",
}

// The fake answers each message as the kernel does, byte by byte, and lists the same after it: random ones, well formed and not.
func TestFakeIsLikeTheKernel(t *testing.T) {
	netlab.EnterForTest(t)
	loopback, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(loopback)
	}
	if err != nil {
		t.Fatal(err)
	}
	if c, err := ipvswire.Open(); errors.Is(err, ipvswire.ErrNoIPVS) {
		t.Skipf("%v; make test-kernels has it", err)
	} else if err != nil {
		t.Fatal(err)
	} else {
		c.Close()
	}
	kernel, err := nlconn.Open(nlconn.Config{Protocol: unix.NETLINK_GENERIC})
	if err != nil {
		t.Fatal(err)
	}
	defer kernel.Close()
	schedulers := loadable(t, kernel)
	t.Logf("the kernel has the schedulers %v", schedulers)
	both := []side{{name: "kernel", conn: kernel}, {name: "fake", conn: ipvsfake.New(ipvsfake.Config{Schedulers: schedulers}).Connect()}}
	for i := range both {
		both[i].resolve(t)
	}
	g := &generator{Rand: rand.New(rand.NewPCG(*seed, 0))}
	told := map[string]int{}
	var last []string // messages since both were empty
	differ := func(format string, args ...any) {
		t.Helper()
		t.Errorf(format+"\nthe messages before:\n%s", append(args, strings.Join(last[max(0, len(last)-100):], "\n"))...)
		if told["differences"]++; told["differences"] == 10 {
			t.Fatalf("so far:\n%s", tally(told))
		}
		for _, s := range both { // start again, to see what else differs
			s.ask(t, message{flags: unix.NLM_F_ACK, cmd: 17})
		}
		last = nil
	}
	for n := range *messages {
		m := g.message()
		want, got := both[0].ask(t, m), both[1].ask(t, m)
		told[fmt.Sprintf("%v: %v", m.cmd, want.err)]++
		if !want.equal(got) {
			differ("message %d of seed %d: %v\nkernel: %v\nfake:   %v", n, *seed, m, want, got)
			continue
		}
		if want.err == nil {
			g.took(m)
		}
		if last = append(last, m.String()); n%100 == 99 || n == *messages-1 {
			if want, got := both[0].state(t), both[1].state(t); want != got {
				differ("after message %d of seed %d the kernel has\n%s\nthe fake\n%s", n, *seed, want, got)
			}
		}
	}
	t.Logf("%d messages of seed %d:\n%s", *messages, *seed, tally(told))
	for _, want := range expected {
		if told[want] == 0 {
			t.Errorf("no message was answered by %q", want)
		}
	}
}

// loadable are the schedulers that the kernel has or can load. lblc and lblcr are not asked for: to load them by a message can keep
// the kernel for ever (docs/adr/0046).
func loadable(t *testing.T, kernel nlconn.Transport) (names []string) {
	t.Helper()
	c, err := ipvswire.New(t.Context(), kernel)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range ipvsfake.Schedulers {
		s := ipvswire.Service{ServiceID: ipvswire.ByMark(ipvswire.IPv4, 1), Scheduler: name, Netmask: 1<<32 - 1}
		if strings.HasPrefix(name, "lblc") {
			continue
		}
		err := c.Do(t.Context(), []ipvswire.Op{{Verb: ipvswire.NewService, Service: s}, {Verb: ipvswire.DelService, Service: s}}, nil)
		switch {
		case err == nil:
			names = append(names, name)
		case !errors.Is(err, unix.ENOENT):
			t.Fatal(err)
		}
	}
	if len(names) < 5 {
		t.Fatalf("the kernel has only the schedulers %v", names)
	}
	return names
}

// tally says how often each command brought what.
func tally(told map[string]int) string {
	var lines []string
	for what, n := range told {
		lines = append(lines, fmt.Sprintf("%6d command %s", n, what))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (s *side) resolve(t *testing.T) {
	t.Helper()
	var e nlconn.Encoder
	at := e.Begin(unix.GENL_ID_CTRL, 0, 0)
	e.B = append(e.B, unix.CTRL_CMD_GETFAMILY, 1, 0, 0)
	e.Str(unix.CTRL_ATTR_FAMILY_NAME, "IPVS")
	e.EndMessage(at)
	err := s.conn.Do(t.Context(), e.B, func(m nlconn.Message) error {
		s.family = binary.NativeEndian.Uint16(nlconn.Attribute(m.Body[4:], unix.CTRL_ATTR_FAMILY_ID))
		return nil
	})
	if err != nil || s.family == 0 {
		t.Fatalf("%s: %v", s.name, err)
	}
}

// outcome is what a message brought.
type outcome struct {
	bodies []string // of the answer, in hex
	err    error    // a unix.Errno, or nil
}

func (o outcome) equal(p outcome) bool { return o.err == p.err && slices.Equal(o.bodies, p.bodies) }

func (o outcome) String() string {
	return fmt.Sprintf("%v, %d answers\n%s", o.err, len(o.bodies), strings.Join(o.bodies, "\n"))
}

// ask sends a message and collects what comes of it.
func (s *side) ask(t *testing.T, m message) (o outcome) {
	t.Helper()
	err := s.conn.Do(t.Context(), m.bytes(s.family), func(a nlconn.Message) error {
		if a.Type == s.family {
			o.bodies = append(o.bodies, fmt.Sprintf("%x", a.Body))
		}
		return nil
	})
	if m.cmd != uint8(ipvsfake.GetDest) { // destinations come with the newest first; where a service stands, a secret of the kernel decides
		slices.Sort(o.bodies)
	}
	var e *nlconn.Error
	switch {
	case errors.As(err, &e):
		o.err = e.Errno
	case err != nil:
		t.Fatalf("%s: %v: %v", s.name, m, err)
	}
	return o
}

// state is all that it lists, in the order of names.
func (s *side) state(t *testing.T) string {
	t.Helper()
	c, err := ipvswire.New(t.Context(), s.conn)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	var ids []ipvswire.ServiceID
	err = c.Services(t.Context(), func(v ipvswire.ServiceState) error {
		all, ids = append(all, v.String()), append(ids, v.ServiceID)
		return nil
	})
	for _, id := range ids {
		err = errors.Join(err, c.Destinations(t.Context(), id, func(d ipvswire.DestinationState) error {
			all = append(all, fmt.Sprintf("%v %+v", id, d))
			return nil
		}))
	}
	if err != nil {
		t.Fatalf("%s: %v", s.name, err)
	}
	timeouts, err := c.Timeouts(t.Context())
	slices.Sort(all)
	return fmt.Sprintf("%s\n%+v, %v", strings.Join(all, "\n"), timeouts, err)
}

// attr is an attribute to be sent, with its value or with attributes.
type attr struct {
	typ   uint16
	value []byte
	in    []attr
	nest  bool
}

func (a attr) bytes() []byte {
	v := a.value
	if a.nest {
		v = all(a.in)
	}
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(v)))
	b = append(binary.NativeEndian.AppendUint16(b, a.typ), v...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func all(attrs []attr) (b []byte) {
	for _, a := range attrs {
		b = append(b, a.bytes()...)
	}
	return b
}

func (a attr) String() string {
	if a.nest {
		return fmt.Sprintf("%d%v", a.typ, a.in)
	}
	return fmt.Sprintf("%d=%x", a.typ, a.value)
}

type message struct {
	flags uint16
	cmd   uint8
	attrs []attr
	tail  []byte // what stands where the next attribute would
}

func (m message) String() string {
	return fmt.Sprintf("command %d flags %#x %v %x", m.cmd, m.flags, m.attrs, m.tail)
}

func (m message) bytes(family uint16) []byte {
	var e nlconn.Encoder
	at := e.Begin(family, m.flags, 0)
	e.B = append(e.B, m.cmd, 1, 0, 0)
	e.B = append(append(e.B, all(m.attrs)...), m.tail...)
	e.EndMessage(at)
	return e.B
}

// generator makes messages, mostly of services and destinations that are there.
type generator struct {
	*rand.Rand
	made []madeService
}

// madeService are the attributes that name a service, and those that name its destinations.
type madeService struct {
	name  []attr
	dests [][]attr
}

// names are the attributes of those types, if all are as their sender meant them.
func names(as []attr, types ...uint16) (of []attr) {
	for _, a := range as {
		if slices.Contains(types, a.typ) && !a.nest {
			of = append(of, a)
		}
	}
	return of
}

// took remembers what a message made.
func (g *generator) took(m message) {
	if len(m.attrs) == 0 || m.cmd != 1 && m.cmd != 5 && m.cmd != 17 {
		return
	}
	service := names(m.attrs[0].in, 1, 2, 3, 4, 5)
	switch {
	case m.cmd == 17:
		g.made = nil
	case m.cmd == 1:
		g.made = append(g.made, madeService{name: service})
	case len(m.attrs) > 1:
		for i := range g.made {
			if fmt.Sprint(g.made[i].name) == fmt.Sprint(service) {
				g.made[i].dests = append(g.made[i].dests, names(m.attrs[1].in, 1, 2, 11))
			}
		}
	}
	if len(g.made) > 12 {
		g.made = g.made[1:]
	}
}

// meet has a message be of what was made before.
func (g *generator) meet(m *message) {
	if len(g.made) == 0 || len(m.attrs) == 0 || m.cmd == 1 && g.IntN(8) > 0 {
		return
	}
	one := g.made[g.IntN(len(g.made))]
	put := func(a *attr, name []attr, types ...uint16) {
		rest := slices.DeleteFunc(slices.Clone(a.in), func(in attr) bool { return slices.Contains(types, in.typ) })
		a.in = append(slices.Clone(name), rest...)
	}
	for i := range m.attrs {
		switch a := &m.attrs[i]; {
		case !a.nest:
		case a.typ == 1:
			put(a, one.name, 1, 2, 3, 4, 5)
		case a.typ == 2 && len(one.dests) > 0 && (m.cmd != 5 || g.IntN(4) == 0):
			put(a, one.dests[g.IntN(len(one.dests))], 1, 2, 11)
		}
	}
}

func pick[T any](g *generator, from ...T) T { return from[g.IntN(len(from))] }

func n16(n uint16) []byte { return binary.NativeEndian.AppendUint16(nil, n) }
func n32(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

func (g *generator) message() message {
	m := message{flags: unix.NLM_F_ACK, cmd: pick[uint8](g, 1, 1, 1, 2, 2, 3, 4, 4, 5, 5, 5, 5, 6, 6, 7, 7, 8, 8, 12, 13, 16)}
	switch g.IntN(300) {
	case 0:
		m.cmd = 17
	case 1:
		m.cmd = pick[uint8](g, 0, 14, 18, 30, 30, 200) // nobody has them
	}
	whole := m.cmd == 1 || m.cmd == 2 || g.IntN(20) == 0
	if m.cmd != 12 && m.cmd != 13 && m.cmd != 17 || g.IntN(20) == 0 {
		m.attrs = append(m.attrs, attr{typ: 1, nest: true, in: g.service(whole)})
	}
	if m.cmd >= 5 && m.cmd <= 7 || g.IntN(20) == 0 {
		m.attrs = append(m.attrs, attr{typ: 2, nest: true, in: g.destination(m.cmd != 7 || g.IntN(20) == 0)})
	}
	if m.cmd == 12 {
		for typ := uint16(4); typ <= 6; typ++ {
			if g.IntN(2) == 0 {
				m.attrs = append(m.attrs, attr{typ: typ, value: n32(pick[uint32](g, 0, 1, 60, 900, 86400, 8589934, 8589935, 1<<31-1, 1<<31, 1<<32-1))})
			}
		}
	}
	if m.cmd == 4 || m.cmd == 8 {
		m.flags = pick[uint16](g, unix.NLM_F_ACK, unix.NLM_F_DUMP)
	}
	if g.IntN(4) > 0 {
		g.meet(&m)
	}
	switch g.IntN(60) {
	case 0:
		m.flags |= unix.NLM_F_DUMP
	case 1:
		if m.cmd > 17 {
			break // newer kernels look at the flags first
		}
		m.flags |= pick[uint16](g, unix.NLM_F_CREATE, unix.NLM_F_EXCL, unix.NLM_F_ECHO, unix.NLM_F_ROOT)
	}
	if g.IntN(12) == 0 {
		g.spoil(&m.attrs)
	}
	if g.IntN(100) == 0 {
		m.tail = pick(g, []byte{0, 0, 0, 0}, []byte{3, 0, 1, 0}, []byte{200, 0, 1, 0}, []byte{1, 2}, []byte{4, 0, 1, 0}, []byte{4, 0, 2, 0})
	}
	return m
}

// service is the attributes of one.
func (g *generator) service(whole bool) (as []attr) {
	six := g.IntN(3) == 0
	family := uint16(unix.AF_INET)
	if six {
		family = unix.AF_INET6
	}
	if g.IntN(80) == 0 {
		family = pick[uint16](g, 0, 1, 3, 9, 10, 2, 65535)
	}
	as = append(as, attr{typ: 1, value: n16(family)})
	if g.IntN(3) == 0 {
		as = append(as, attr{typ: 5, value: n32(pick[uint32](g, 1, 2, 0x4000, 1<<32-1, 257, 0))})
	} else {
		addr := []byte{10, 96, 0, byte(g.IntN(3))}
		if six {
			addr = append(addr, []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9}...)
		}
		if g.IntN(20) == 0 {
			addr = pick(g, []byte{0, 0, 0, 0}, []byte{224, 0, 0, 1}, bytes.Repeat([]byte{255}, 16), []byte{10, 96, 0, 1, 1, 2, 3}, []byte{10, 96}, []byte{10, 96, 0, 1, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9})
		}
		as = append(as, attr{typ: 2, value: n16(pick[uint16](g, 6, 6, 6, 17, 132, 0, 300))}, attr{typ: 3, value: addr}, attr{typ: 4, value: pick(g, []byte{0, 80}, []byte{0, 80}, []byte{0, 0}, []byte{0, 21}, []byte{255, 255})})
	}
	if whole {
		scheduler := pick(g, "rr", "rr", "rr", "wrr", "sh", "mh")
		switch g.IntN(60) {
		case 0:
			scheduler = pick(g, "none", "lc", "wlc", "dh", "sed", "nq", "fo", "ovf", "twos") // lblc and lblcr may not be loaded by this: docs/adr/0046
		case 1:
			scheduler = pick(g, "", "sip", "no-scheduler-15", "no-scheduler--16", "ftp")
		}
		mask := pick(g, []byte{255, 255, 255, 255}, []byte{255, 255, 255, 0}, []byte{0, 0, 0, 0}, []byte{1, 2, 3, 4})
		if six {
			mask = n32(pick[uint32](g, 128, 128, 128, 128, 64, 1))
			if g.IntN(10) == 0 {
				mask = n32(pick[uint32](g, 0, 129, 1<<32-1))
			}
		}
		as = append(as, attr{typ: 6, value: append([]byte(scheduler), 0)},
			attr{typ: 7, value: append(n32(pick(g, 0, 1, 3, 5, 2, 0x38, g.Uint32())), n32(pick(g, ^uint32(0), ^uint32(0), ^uint32(0), 0, 1, g.Uint32()))...)},
			attr{typ: 8, value: n32(pick(g, 0, 300, 10800, 86400, 17179869, 17179870, 1<<31, g.Uint32()))},
			attr{typ: 9, value: mask})
		if g.IntN(30) == 0 {
			as = append(as, attr{typ: 11, value: append([]byte(pick(g, "sip", "", "sip", "none")), 0)})
		}
	}
	if g.IntN(12) == 0 {
		g.spoil(&as)
	}
	return as
}

// destination is the attributes of one.
func (g *generator) destination(whole bool) (as []attr) {
	six := g.IntN(3) == 0
	addr := []byte{10, 1, 0, byte(g.IntN(4))}
	if six {
		addr = []byte{0xfd, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, byte(g.IntN(4))}
	}
	if g.IntN(10) == 0 {
		addr = pick(g, []byte{0, 0, 0, 0}, []byte{0, 0, 0, 1}, []byte{224, 0, 0, 1}, []byte{239, 1, 1, 1}, []byte{240, 0, 0, 1}, []byte{255, 255, 255, 255}, []byte{127, 0, 0, 1}, []byte{127, 255, 255, 255}, []byte{10, 1},
			[]byte{10, 1, 0, 1, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9}, make([]byte, 16), append(make([]byte, 15), 1), append([]byte{0xfe, 0x80}, make([]byte, 14)...), append([]byte{0xff, 2}, make([]byte, 14)...),
			[]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 1, 0, 1}, []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 1, 0, 1}, append([]byte{0xfe, 0xc0}, make([]byte, 14)...))
	}
	as = append(as, attr{typ: 1, value: addr}, attr{typ: 2, value: pick(g, []byte{31, 144}, []byte{31, 144}, []byte{0, 0}, []byte{255, 255})})
	switch {
	case g.IntN(100) == 0:
		as = append(as, attr{typ: 11, value: n16(pick[uint16](g, 0, 1, 9, 65535))})
	case six:
		as = append(as, attr{typ: 11, value: n16(unix.AF_INET6)})
	case g.IntN(3) > 0:
		as = append(as, attr{typ: 11, value: n16(unix.AF_INET)})
	}
	if whole {
		as = append(as, attr{typ: 3, value: n32(pick[uint32](g, 0, 0, 0, 1, 2, 2, 3, 4, 5, 7, 8, 0x102))}, attr{typ: 4, value: n32(pick[uint32](g, 1, 1, 0, 100, 65535, 65536, 1<<31-1, 1<<31, 1<<32-1))},
			attr{typ: 5, value: n32(pick[uint32](g, 0, 0, 0, 10, 65535))}, attr{typ: 6, value: n32(pick[uint32](g, 0, 0, 0, 9, 11))})
		if g.IntN(10) == 0 {
			as = append(as, attr{typ: 13, value: []byte{pick[byte](g, 0, 1, 2, 3, 200)}})
		}
		if g.IntN(10) == 0 {
			as = append(as, attr{typ: 14, value: pick(g, []byte{0, 0}, []byte{21, 179})})
		}
		if g.IntN(10) == 0 {
			as = append(as, attr{typ: 15, value: n16(pick[uint16](g, 0, 1, 2, 3, 65535))})
		}
	}
	if g.IntN(12) == 0 {
		g.spoil(&as)
	}
	return as
}

// spoil makes something of attributes that nobody would send.
func (g *generator) spoil(as *[]attr) {
	if len(*as) == 0 {
		return
	}
	at := g.IntN(len(*as))
	a := &(*as)[at]
	switch g.IntN(7) {
	case 0:
		*as = slices.Delete(*as, at, at+1)
	case 1: // twice
		*as = append(*as, *a)
	case 2: // too short, or empty
		*a = attr{typ: a.typ, value: a.flat()[:g.IntN(1+min(len(a.flat()), 4))]}
	case 3: // too long
		*a = attr{typ: a.typ, value: append(a.flat(), make([]byte, pick(g, 1, 2, 4, 20))...)}
	case 4: // no NUL, or garbage
		v := a.flat()
		for i := range v {
			v[i] = byte(1 + g.IntN(255))
		}
		*a = attr{typ: a.typ, value: v}
	case 5: // nobody's
		*as = slices.Insert(*as, at, attr{typ: pick[uint16](g, 0, 10, 12, 16, 99, 0x3fff), value: make([]byte, g.IntN(9))})
	case 6: // with flags
		a.typ |= pick[uint16](g, 0x8000, 0x4000, 0xc000)
	}
}

func (a attr) flat() []byte {
	if a.nest {
		return all(a.in)
	}
	return slices.Clone(a.value)
}
