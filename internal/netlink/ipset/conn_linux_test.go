package ipset

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/internal/netlink"
	"kube-proxy/test/kerneltest"
)

// open enters a network namespace and connects to its ipsets.
func open(t testing.TB) *Conn {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	netlab.EnterForTest(t)
	c, err := Open()
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// program runs the program ipset, against which the tests compare.
func program(t testing.TB, stdin string, args ...string) string {
	t.Helper()
	cmd := exec.Command("ipset", args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("ipset %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// saved returns the program's output of save, without values that the kernel chose, and with the
// members of each set sorted.
func saved(t testing.TB) string {
	t.Helper()
	lines := slices.Collect(strings.Lines(program(t, "", "save")))
	for i, l := range lines {
		if before, _, found := strings.Cut(l, " bucketsize "); found {
			lines[i] = before + "\n"
			if strings.Contains(l, " skbinfo") && !strings.Contains(before, " skbinfo") {
				lines[i] = before + " skbinfo\n"
			}
		}
	}
	return strings.Join(inOrder(lines), "")
}

// inOrder sorts consecutive members.
func inOrder(lines []string) []string {
	for first := 0; first < len(lines); {
		last := first
		for last < len(lines) && strings.HasPrefix(lines[last], "add ") == strings.HasPrefix(lines[first], "add ") {
			last++
		}
		if strings.HasPrefix(lines[first], "add ") {
			slices.Sort(lines[first:last])
		}
		first = last
	}
	return lines
}

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// content is a set and its members.
type content struct {
	set     Set
	members []Member
}

// all has every type in every family, with every kind of member.
var all = []content{
	{Set{Name: "KUBE-IPVS-IPS", Type: HashIP, Family: IPv4}, []Member{{Addr: addr("10.96.0.1")},
		{Addr: addr("10.96.0.2")}}},
	{Set{Name: "KUBE-6-IPVS-IPS", Type: HashIP, Family: IPv6}, []Member{{Addr: addr("fd00:10:96::1")}}},
	{Set{Name: "KUBE-CLUSTER-IP", Type: HashIPPort, Family: IPv4}, []Member{
		{Addr: addr("10.96.0.1"), Proto: tcp, Port: 443}, {Addr: addr("10.96.0.1"), Proto: udp, Port: 443},
		{Addr: addr("10.96.0.1"), Proto: sctp, Port: 443}, {Addr: addr("255.255.255.255"), Proto: tcp, Port: 65535}}},
	{Set{Name: "KUBE-6-CLUSTER-IP", Type: HashIPPort, Family: IPv6},
		[]Member{{Addr: addr("fd00:10:96::1"), Proto: sctp, Port: 7}, {Addr: addr("::1"), Proto: tcp, Port: 1}}},
	{Set{Name: "KUBE-MARK-ANY", Type: HashIPPort, Family: IPv4, SkbInfo: true}, []Member{
		{Addr: addr("10.96.0.1"), Proto: tcp, Port: 1, Mark: 0x80000700, Mask: 0xffffffff},
		{Addr: addr("10.96.0.1"), Proto: tcp, Port: 2, Mark: 0x4000, Mask: 0x4000},
		{Addr: addr("10.96.0.1"), Proto: tcp, Port: 3}, {Addr: addr("10.96.0.1"), Proto: tcp, Port: 4, Mask: 0x4000}}},
	{Set{Name: "KUBE-6-MARK-ANY", Type: HashIPPort, Family: IPv6, SkbInfo: true},
		[]Member{{Addr: addr("fd00::1"), Proto: udp, Port: 53, Mark: 1, Mask: 0xff}}},
	{Set{Name: "KUBE-LOOP-BACK", Type: HashIPPortIP, Family: IPv4}, []Member{
		{Addr: addr("10.1.0.1"), Proto: tcp, Port: 8080, Net: prefix("10.1.0.1/32")},
		{Addr: addr("10.1.0.1"), Proto: sctp, Port: 8080, Net: prefix("10.1.0.1/32")}}},
	{Set{Name: "KUBE-6-LOOP-BACK", Type: HashIPPortIP, Family: IPv6},
		[]Member{{Addr: addr("fd00::1"), Proto: tcp, Port: 8080, Net: prefix("fd00::1/128")}}},
	{Set{Name: "KUBE-LOAD-BALANCER-SOURCE-CIDR", Type: HashIPPortNet, Family: IPv4}, []Member{
		{Addr: addr("192.0.2.7"), Proto: tcp, Port: 80, Net: prefix("10.0.0.0/8")},
		{Addr: addr("192.0.2.7"), Proto: tcp, Port: 80, Net: prefix("198.51.100.7/32")},
		{Addr: addr("192.0.2.7"), Proto: tcp, Port: 81, Net: prefix("0.0.0.0/1")}, {Addr: addr("192.0.2.7"), Proto: tcp,
			Port: 81, Net: prefix("128.0.0.0/1")}}},
	{Set{Name: "KUBE-6-LOAD-BALANCER-SOURCE-CID", Type: HashIPPortNet, Family: IPv6}, []Member{
		{Addr: addr("2001:db8::7"), Proto: tcp, Port: 80, Net: prefix("2001:db8:1::/48")},
		{Addr: addr("2001:db8::7"), Proto: sctp, Port: 80, Net: prefix("8000::/1")}}},
	{Set{Name: "KUBE-NODE-PORT-TCP", Type: BitmapPort}, []Member{{Port: 30000}, {Port: 0}, {Port: 65535}}},
	{Set{Name: "KUBE-NODE-PORT-UDP", Type: BitmapPort, SkbInfo: true}, []Member{{Port: 30000, Mark: 7, Mask: 15}}},
}

// fill creates all sets.
func fill(t *testing.T, c *Conn) {
	t.Helper()
	var ops []Op
	for i := range all {
		must(t, errors.Join(c.Able(t.Context(), all[i].set), c.Create(t.Context(), all[i].set)))
		for _, m := range all[i].members {
			ops = append(ops, Op{Set: &all[i].set, Member: m})
		}
	}
	must(t, c.Do(t.Context(), ops, func(i int, err error) { t.Error(i, err) }))
}

// The program reads what this package writes, and this package reads it back.
func TestMembers(t *testing.T) {
	c := open(t)
	fill(t, c)
	var want bytes.Buffer
	for _, x := range all {
		var got []Member
		h, err := c.Members(t.Context(), x.set.Name, func(m Member) { got = append(got, m) })
		if err != nil || h.Differs(x.set) != "" || int(h.Members) != len(x.members) {
			t.Errorf("%s: %+v, %v, %s", x.set, h, err, h.Differs(x.set))
		}
		if !maps.Equal(set(got), set(x.members)) || len(got) != len(x.members) {
			t.Errorf("%s has %v, want %v", x.set, got, x.members)
		}
		must(t, Save(&want, x.set, x.members))
	}
	expect := strings.Join(inOrder(slices.Collect(strings.Lines(want.String()))), "")
	if got := saved(t); got != expect {
		t.Errorf("the program saves\n%s\nwant\n%s", got, expect)
	}
	// The program restores the output of Save, and then saves the same.
	program(t, "", "destroy")
	program(t, want.String(), "restore")
	if got := saved(t); got != expect {
		t.Errorf("restored, the program saves\n%s\nwant\n%s", got, expect)
	}
	// Sets that the program created equal ours.
	for _, x := range all {
		if made, err := c.Ensure(t.Context(), x.set); made || err != nil {
			t.Errorf("%s: made %t, %v", x.set, made, err)
		}
	}
	for i := range all {
		var ops []Op
		for _, m := range all[i].members {
			ops = append(ops, Op{Set: &all[i].set, Member: m, Delete: true})
		}
		// Deleting a missing member is no error.
		if err := c.Do(t.Context(), append(ops, ops...), nil); err != nil {
			t.Error(err)
		}
	}
	if got := saved(t); strings.Contains(got, "add ") {
		t.Errorf("after all were deleted the program saves\n%s", got)
	}
}

// Has finds what packets would find, in sets of each type and by any prefix, and nothing else.
func TestHas(t *testing.T) {
	c := open(t)
	fill(t, c)
	expect := func(set string, m Member, want bool) {
		t.Helper()
		if has, err := c.Has(t.Context(), set, m); has != want || err != nil {
			t.Errorf("%s in %s: %v, %v", m, set, has, err)
		}
	}
	for _, x := range all {
		for _, m := range x.members {
			expect(x.set.Name, m.Key(), true)
			m = m.Key()
			m.Port = 12345
			if m.Proto == 0 && m.Addr.IsValid() {
				m.Addr, m.Port = m.Addr.Next().Next().Next(), 0
			}
			expect(x.set.Name, m, false)
		}
	}
	ranges := Member{Addr: addr("192.0.2.7"), Proto: tcp, Port: 80, Net: prefix("10.9.9.9/32")}
	expect("KUBE-LOAD-BALANCER-SOURCE-CIDR", ranges, true)
	ranges.Net = prefix("11.9.9.9/32")
	expect("KUBE-LOAD-BALANCER-SOURCE-CIDR", ranges, false)
	if _, err := c.Has(t.Context(), "KUBE-NONE", ranges); !errors.Is(err, ErrNoSet) {
		t.Errorf("no such set: %v", err)
	}
}

func set(members []Member) map[Member]bool {
	s := map[Member]bool{}
	for _, m := range members {
		s[m] = true
	}
	return s
}

// Ensure with an existing set of the same name: the wanted set, the existing one, and the result.
func TestEnsure(t *testing.T) {
	want := Set{Name: "KUBE-CLUSTER-IP", Type: HashIPPort, Family: IPv4}
	for _, x := range []struct {
		what, create string
		inUse        bool // by a rule
		want         Set
		kept         bool // the members
		err          string
	}{
		{"none", "", false, want, false, ""},
		{"upstream's", "hash:ip,port family inet hashsize 1024 maxelem 65536", false, want, true, ""},
		{"upstream's, which rules use", "hash:ip,port family inet maxelem 65536", true, want, true, ""},
		{"without marks", "hash:ip,port family inet maxelem 65536", true, Set{Name: want.Name, Type: HashIPPort,
			Family: IPv4, SkbInfo: true}, true, ""},
		{"with counters and comments, and more room", "hash:ip,port family inet maxelem 8000000 counters comment", true,
			want, true, ""},
		{"another type", "hash:ip family inet", false, want, false, ""},
		{"another type, which rules use", "hash:ip family inet", true, want, false,
			"has type hash:ip and must be KUBE-CLUSTER-IP hash:ip,port family inet"},
		{"a timeout", "hash:ip,port timeout 600", true, want, true, ""},
		{"forceadd", "hash:ip,port forceadd", true, want, true, ""},
		{"the other family", "hash:ip,port family inet6", false, want, false, ""},
		{"a part of the ports", "bitmap:port range 30000-32767", true, Set{Name: want.Name, Type: BitmapPort}, true,
			""},
		{"the other family, which rules use", "hash:ip,port family inet6", true, want, false, "has family inet6"},
		{"all ports", "bitmap:port range 0-65535", true, Set{Name: want.Name, Type: BitmapPort}, true, ""},
	} {
		t.Run(x.what, func(t *testing.T) {
			c := open(t)
			member := "10.96.0.1,tcp:80"
			switch {
			case strings.Contains(x.create, "inet6"):
				member = "fd00::1,tcp:80"
			case strings.HasPrefix(x.create, "hash:ip "):
				member = "10.96.0.1"
			case strings.HasPrefix(x.create, "bitmap"):
				member = "30000"
			}
			if x.create != "" {
				program(t, fmt.Sprintf("create %s %s\nadd %[1]s %[3]s\n", want.Name, x.create, member), "restore")
			}
			if x.inUse { // a set of sets refers to it like a rule
				program(t, fmt.Sprintf("create user list:set\nadd user %s\n", want.Name), "restore")
			}
			for i := range 2 {
				made, err := c.Ensure(t.Context(), x.want)
				if x.err != "" {
					if !errors.Is(err, ErrOther) || !strings.Contains(err.Error(), x.err) ||
						!strings.Contains(err.Error(), "ipset destroy") || made {
						t.Errorf("%t, %v; want %q", made, err, x.err)
					}
					continue
				}
				if err != nil || made != (i == 0 && !x.kept) {
					t.Errorf("made %t, %v", made, err)
				}
				n := 0
				h, err := c.Members(t.Context(), want.Name, func(Member) { n++ })
				if err != nil || h.Differs(x.want) != "" || (n == 1) != x.kept || x.inUse != (h.References == 1) {
					t.Errorf("then it is %+v with %d members, %v", h, n, err)
				}
			}
			if h, err := c.Header(t.Context(), Spare(want.Name)); !errors.Is(err, ErrNoSet) {
				t.Errorf("the spare set is %+v, %v", h, err)
			}
		})
	}
}

// A set grows while rules use it, after a crash left the temporary set.
func TestGrow(t *testing.T) {
	kerneltest.Later(t)
	c := open(t)
	long := Set{Name: "KUBE-6-LOAD-BALANCER-SOURCE-CID", Type: HashIPPort, Family: IPv4, SkbInfo: true}
	program(t, fmt.Sprintf("create %s hash:ip,port\ncreate %s hash:ip\ncreate user list:set\nadd user %[1]s\n",
		long.Name, Spare(long.Name)), "restore")
	var ops []Op
	plain := long
	plain.SkbInfo = false
	for i := range 40_000 {
		ops = append(ops, Op{Set: &plain, Member: Member{Addr: addr("10.0.0.0"), Proto: tcp, Port: uint16(i)}})
		ops[i].Member.Addr = netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
	}
	must(t, c.Do(t.Context(), ops, nil))
	if made, err := c.Ensure(t.Context(), long); made || err != nil {
		t.Fatal(made, err)
	}
	h, err := c.Header(t.Context(), long.Name)
	if err != nil || h.Members != 40_000 || h.References != 1 || h.Differs(long) != "" {
		t.Errorf("%+v, %v", h, err)
	}
}

// Errors name their set and the problem, and can be distinguished.
func TestErrors(t *testing.T) {
	c := open(t)
	ctx := t.Context()
	a := Set{Name: "a", Type: HashIPPort, Family: IPv4, MaxElem: 3}
	must(t, c.Create(ctx, a))
	for what, x := range map[string]struct{ got, want error }{
		"create an existing set":        {c.Create(ctx, a), unix.EEXIST},
		"destroy a missing set":         {c.Destroy(ctx, "b"), ErrNoSet},
		"swap missing sets":             {c.Swap(ctx, "b", "c"), ErrNoSet},
		"describe a missing set":        {only(c.Header(ctx, "b")), ErrNoSet},
		"list members of a missing set": {only(c.Members(ctx, "b", func(Member) {})), ErrNoSet},
		"add to a missing set": {
			c.Do(ctx, []Op{{Set: &Set{Name: "b", Type: HashIP, Family: IPv4}, Member: Member{Addr: addr("10.0.0.1")}}},
				nil), ErrNoSet},
		"an unknown type": {c.Able(ctx, Set{Name: "x", Type: "hash:nothing"}), ErrUnsupported},
	} {
		if !errors.Is(x.got, x.want) {
			t.Errorf("%s: %v, want %v", what, x.got, x.want)
		}
	}
	// The kernel would treat none as all.
	for _, name := range []string{"", strings.Repeat("x", 32), "a\x00b"} {
		if c.Destroy(ctx, name) == nil || c.Create(ctx, Set{Name: name, Type: BitmapPort}) == nil {
			t.Errorf("%q was taken for a name", name)
		}
	}
	program(t, "create user list:set\nadd user a\n", "restore")
	if err := c.Destroy(ctx, "a"); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "destroy ipset a") {
		t.Errorf("destroy a set that is in use: %v", err)
	}
	if err := c.Swap(ctx, "a", "user"); err == nil || !strings.Contains(err.Error(), "different types") {
		t.Errorf("swap sets of two types: %v", err)
	}
}

func only[T any](_ T, err error) error { return err }

// A refused member does not block others, wherever it is, and the error names it.
func TestRefusedMembers(t *testing.T) {
	c := open(t)
	few := Set{Name: "few", Type: HashIPPort, Family: IPv4, MaxElem: 3}
	for _, s := range []Set{few, {Name: "other", Type: HashIPPort, Family: IPv6}, {Name: "ports", Type: BitmapPort}} {
		must(t, c.Create(t.Context(), s))
	}
	m := func(port int) Member { return Member{Addr: addr("10.0.0.1"), Proto: tcp, Port: uint16(port)} }
	taken := few
	taken.Name = "other" // the kernel has another set of that name
	ports := Set{Name: "ports", Type: BitmapPort}
	ops := []Op{
		{Set: &few, Member: m(1)},
		// the family
		{Set: &few, Member: Member{Addr: addr("fd00::1"), Proto: tcp, Port: 1}},
		{Set: &few, Member: Member{Addr: addr("10.0.0.1")}},                                        // no port
		{Set: &few, Member: Member{Addr: addr("10.0.0.1"), Proto: 1, Port: 1}},                     // ICMP
		{Set: &few, Member: Member{Addr: addr("10.0.0.1"), Proto: tcp, Port: 9, Mark: 1, Mask: 1}}, // no marks
		// no prefix
		{Set: &few, Member: Member{Addr: addr("10.0.0.1"), Proto: tcp, Port: 9, Net: prefix("10.0.0.0/8")}},
		{Set: &few, Member: m(2)},
		{Set: &taken, Member: m(3)}, // refused by the kernel
		{Set: &taken, Member: m(4)},
		{Set: &few, Delete: true, Member: m(77)}, // missing
		{Set: &few, Member: m(3)},
		{Set: &few, Member: m(1)}, // a second time
		{Set: &few, Member: m(4)}, // one too many
		{Set: &few, Member: m(5)},
		{Set: &few, Delete: true, Member: m(1)},
		{Set: &ports, Member: Member{Port: 7}},
	}
	failed := map[int]error{}
	err := c.Do(t.Context(), ops, func(i int, err error) {
		if failed[i] != nil {
			t.Errorf("%d is reported twice", i)
		}
		failed[i] = err
	})
	if err == nil || !strings.Contains(err.Error(), "and 8 more of 16 failed") {
		t.Error(err)
	}
	for i := range ops {
		if want := i >= 1 && i <= 5 || i == 7 || i == 8 || i == 12 || i == 13; want != (failed[i] != nil) {
			t.Errorf("%v: %v, failed %t", ops[i], failed[i], want)
		}
	}
	if !errors.Is(failed[12], ErrFull) || !strings.Contains(failed[12].Error(), "10.0.0.1,tcp:4 to ipset few") {
		t.Errorf("a full set: %v", failed[12])
	}
	expect(t, c, "few", m(2), m(3))
	expect(t, c, "ports", Member{Port: 7})
}

// A set with unexpected properties refuses all members, without one message for each.
func TestRefusedByTheSet(t *testing.T) {
	c := open(t)
	if err := errors.Join(c.Create(t.Context(), Set{Name: "ports", Type: BitmapPort}),
		c.Create(t.Context(), Set{Name: "addresses", Type: HashIP, Family: IPv4}),
		c.Create(t.Context(), Set{Name: "six", Type: HashIPPort, Family: IPv6}),
		c.Create(t.Context(), Set{Name: "no marks", Type: HashIPPort, Family: IPv4}),
		c.Create(t.Context(), Set{Name: "small", Type: HashIPPort, Family: IPv4, MaxElem: 10})); err != nil {
		t.Fatal(err)
	}
	for name, there := range map[string]int{"ports": 0, "addresses": 0, "six": 0, "no marks": 0, "small": 10,
		"none": 0} {
		before, failed := c.Counters(), 0
		s := Set{Name: name, Type: HashIPPort, Family: IPv4, SkbInfo: true}
		ops := many(&s, 10_000)
		for i := range ops {
			if name == "no marks" {
				ops[i].Member.Mark, ops[i].Member.Mask = 1, 1
			}
		}
		if err := c.Do(t.Context(), ops, func(int, error) { failed++ }); err == nil || failed != 10_000-there {
			t.Errorf("%s: %v, %d failed", name, err, failed)
		}
		if after := c.Counters(); after.Messages-before.Messages > 20 {
			t.Errorf("%s: %d messages", name, after.Messages-before.Messages)
		}
	}
}

func expect(t *testing.T, c *Conn, name string, want ...Member) {
	t.Helper()
	var got []Member
	if _, err := c.Members(t.Context(), name, func(m Member) { got = append(got, m) }); err != nil ||
		!maps.Equal(set(got), set(want)) {
		t.Errorf("%s has %v, %v; want %v", name, got, err, want)
	}
}

func many(s *Set, n int) (ops []Op) {
	for i := range n {
		ops = append(ops,
			Op{Set: s, Member: Member{Addr: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}).Next(),
				Proto: tcp, Port: 80}})
	}
	return ops
}

// Many members need few messages, and adding one of them is one message at any size.
func TestManyMembers(t *testing.T) {
	c := open(t)
	s := Set{Name: "many", Type: HashIPPort, Family: IPv4, SkbInfo: true}
	must(t, c.Create(t.Context(), s))
	const n = 20_000
	ops := many(&s, n)
	before := c.Counters()
	must(t, c.Do(t.Context(), ops[:10_000], nil))
	after := c.Counters()
	if m, sends, bytes := after.Messages-before.Messages, after.Sends-before.Sends, after.Bytes-before.Bytes; m > 15 ||
		sends > 2 || bytes > 48*10_000 {
		t.Errorf("10,000 members are %d messages of %d bytes in %d system calls", m, bytes, sends)
	}
	must(t, c.Do(t.Context(), ops, nil))
	listed := 0
	h, err := c.Members(t.Context(), s.Name, func(Member) { listed++ })
	if err != nil || listed != n || h.Members != n {
		t.Errorf("%d members, %+v, %v", listed, h, err)
	}
	before = c.Counters()
	for range 10 {
		must(t, c.Do(t.Context(), ops[:1], nil))
	}
	if after := c.Counters(); after.Messages-before.Messages != 10 || after.Sends-before.Sends != 10 ||
		after.Bytes-before.Bytes > 1200 {
		t.Errorf("a member that is one of %d: %+v, then %+v", n, before, after)
	}
	one := ops[:1]
	if allocs := testing.AllocsPerRun(100, func() {
		if err := c.Do(t.Context(), one, nil); err != nil {
			t.Error(err)
		}
	}); allocs > 2 {
		t.Errorf("one member makes %v pieces of garbage", allocs)
	}
}

// transport fails at a chosen message: it is not sent, or its answer is lost.
type transport struct {
	netlink.Transport
	at, n int
	lose  bool
}

func (x *transport) Each(ctx context.Context, messages []byte, outcome func(int, error)) error {
	x.n++
	if x.n != x.at {
		return x.Transport.Each(ctx, messages, outcome)
	}
	if !x.lose {
		return unix.ENOBUFS
	}
	return x.Transport.Each(ctx, messages, func(i int, _ error) { outcome(i, netlink.ErrNoAnswer) })
}

// Do reports every operation that was not done, or whose outcome is unknown.
func TestTransportFails(t *testing.T) {
	netlabConn := open(t)
	x := &transport{Transport: netlabConn.kernel}
	c, err := New(t.Context(), x)
	must(t, err)
	s := Set{Name: "a", Type: HashIPPort, Family: IPv4}
	must(t, c.Create(t.Context(), s))
	ops := many(&s, 12_000) // two system calls
	for _, lose := range []bool{false, true} {
		x.at, x.n, x.lose = 2, 0, lose
		failed := 0
		if err := c.Do(t.Context(), ops, func(int, error) { failed++ }); !errors.Is(err, unix.ENOBUFS) &&
			!errors.Is(err, netlink.ErrNoAnswer) {
			t.Error(err)
		}
		h, err := c.Header(t.Context(), s.Name)
		if err != nil || failed == 0 || failed == len(ops) || !lose && int(h.Members)+failed != len(ops) || lose &&
			int(h.Members) != len(ops) {
			t.Errorf("%d members are there, and %d failed, %v", h.Members, failed, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	failed := 0
	if err := c.Do(ctx, ops, func(int, error) { failed++ }); !errors.Is(err, context.Canceled) || failed != len(ops) {
		t.Errorf("a context that has ended: %v, %d failed", err, failed)
	}
}

// A kernel that speaks other versions of the protocol, and one that speaks none.
func TestProtocol(t *testing.T) {
	for _, x := range []struct {
		kernel kernelThatSpeaks
		want   error
	}{
		{kernelThatSpeaks{oldest: 6, latest: 7}, nil},
		{kernelThatSpeaks{oldest: 6, latest: 9}, nil},
		{kernelThatSpeaks{latest: 7}, nil},
		{kernelThatSpeaks{latest: 6}, ErrUnsupported},
		{kernelThatSpeaks{oldest: 8, latest: 9}, ErrUnsupported},
		{kernelThatSpeaks{}, ErrUnsupported},
		{kernelThatSpeaks{err: &netlink.Error{Errno: unix.EINVAL}}, ErrUnsupported},
		{kernelThatSpeaks{err: &netlink.Error{Errno: unix.EPERM}}, unix.EPERM},
	} {
		if _, err := New(t.Context(), x.kernel); !errors.Is(err, x.want) {
			t.Errorf("%+v: %v", x, err)
		}
	}
}

type kernelThatSpeaks struct {
	netlink.Transport
	oldest, latest uint8
	err            error
}

func (k kernelThatSpeaks) Do(_ context.Context, _ []byte, f func(netlink.Message) error) error {
	if k.err != nil {
		return k.err
	}
	e := netlink.Encoder{B: make([]byte, nfgenmsg)}
	e.U8(attrProtocol, k.latest)
	if k.oldest > 0 {
		e.U8(attrProtocolMin, k.oldest)
	}
	return f(netlink.Message{Body: e.B})
}

func TestNets(t *testing.T) {
	for p, want := range map[string]string{"0.0.0.0/0": "[0.0.0.0/1 128.0.0.0/1]", "::/0": "[::/1 8000::/1]",
		"10.1.2.3/8": "[10.0.0.0/8]", "fd00::1/128": "[fd00::1/128]"} {
		if got := fmt.Sprint(Nets(prefix(p))); got != want {
			t.Errorf("%s: %s, want %s", p, got, want)
		}
	}
}

// FuzzAnswers: no answer makes the readers panic.
func FuzzAnswers(f *testing.F) {
	var e netlink.Encoder
	e.Str(attrSetName, "a")
	e.Str(attrTypeName, "hash:ip,port,net")
	adt := e.Nest(attrADT)
	appendMember(&e, &Member{Addr: addr("10.0.0.1"), Proto: tcp, Port: 80, Net: prefix("10.0.0.0/8"), Mark: 1, Mask: 3},
		1)
	e.EndNest(adt)
	f.Add(e.B)
	f.Fuzz(func(t *testing.T, b []byte) {
		h := parseHeader(b)
		_ = h.Differs(Set{Type: HashIPPort, Family: IPv4}) + h.String()
		parseMembers(b, func(m Member) { _ = m.String() })
		refusedLine(b)
	})
}

// FuzzMembers: reading a written member gives the same member.
func FuzzMembers(f *testing.F) {
	f.Add([]byte{10, 0, 0, 1}, []byte{10, 0, 0, 0}, 8, uint8(tcp), uint16(80), uint32(1), uint32(3))
	f.Fuzz(func(t *testing.T, a, b []byte, bits int, proto uint8, port uint16, mark, mask uint32) {
		m := Member{Proto: proto, Port: port, Mark: mark, Mask: mask}
		m.Addr, _ = netip.AddrFromSlice(a)
		if second, ok := netip.AddrFromSlice(b); ok && bits >= 0 && bits <= second.BitLen() {
			m.Net, _ = second.Prefix(bits)
		}
		for typ := range kinds {
			s := Set{Name: "x", Type: typ, Family: IPv6, SkbInfo: true}
			if m.Addr.Is4() {
				s.Family = IPv4
			}
			if m.check(&s) != nil {
				continue
			}
			var e netlink.Encoder
			appendMember(&e, &m, 1)
			if got := parseMember(netlink.Attribute(e.B, attrData)); got != m {
				t.Errorf("%v is read as %v", m, got)
			}
			if len(e.B) > m.room() {
				t.Errorf("%v takes %d bytes", m, len(e.B))
			}
		}
	})
}

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
