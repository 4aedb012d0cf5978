package ipset

import (
	"bytes"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"kube-proxy/internal/netlab"
)

// open enters a network namespace and connects to its ipsets.
func open(t testing.TB) *Conn {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	netlab.EnterForTest(t)
	c, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// program runs the program ipset, which is the judge.
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

// saved is what the program saves, without what the kernel chose by itself, and the members of each set in order.
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

// inOrder sorts the runs of members.
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
	{Set{Name: "KUBE-IPVS-IPS", Type: HashIP, Family: IPv4}, []Member{{Addr: addr("10.96.0.1")}, {Addr: addr("10.96.0.2")}}},
	{Set{Name: "KUBE-6-IPVS-IPS", Type: HashIP, Family: IPv6}, []Member{{Addr: addr("fd00:10:96::1")}}},
	{Set{Name: "KUBE-CLUSTER-IP", Type: HashIPPort, Family: IPv4}, []Member{
		{Addr: addr("10.96.0.1"), Proto: tcp, Port: 443}, {Addr: addr("10.96.0.1"), Proto: udp, Port: 443},
		{Addr: addr("10.96.0.1"), Proto: sctp, Port: 443}, {Addr: addr("255.255.255.255"), Proto: tcp, Port: 65535}}},
	{Set{Name: "KUBE-6-CLUSTER-IP", Type: HashIPPort, Family: IPv6}, []Member{{Addr: addr("fd00:10:96::1"), Proto: sctp, Port: 7}, {Addr: addr("::1"), Proto: tcp, Port: 1}}},
	{Set{Name: "KUBE-MARK-ANY", Type: HashIPPort, Family: IPv4, SkbInfo: true}, []Member{
		{Addr: addr("10.96.0.1"), Proto: tcp, Port: 1, Mark: 0x80000700, Mask: 0xffffffff}, {Addr: addr("10.96.0.1"), Proto: tcp, Port: 2, Mark: 0x4000, Mask: 0x4000},
		{Addr: addr("10.96.0.1"), Proto: tcp, Port: 3}, {Addr: addr("10.96.0.1"), Proto: tcp, Port: 4, Mask: 0x4000}}},
	{Set{Name: "KUBE-6-MARK-ANY", Type: HashIPPort, Family: IPv6, SkbInfo: true}, []Member{{Addr: addr("fd00::1"), Proto: udp, Port: 53, Mark: 1, Mask: 0xff}}},
	{Set{Name: "KUBE-LOOP-BACK", Type: HashIPPortIP, Family: IPv4}, []Member{
		{Addr: addr("10.1.0.1"), Proto: tcp, Port: 8080, Net: prefix("10.1.0.1/32")}, {Addr: addr("10.1.0.1"), Proto: sctp, Port: 8080, Net: prefix("10.1.0.1/32")}}},
	{Set{Name: "KUBE-6-LOOP-BACK", Type: HashIPPortIP, Family: IPv6}, []Member{{Addr: addr("fd00::1"), Proto: tcp, Port: 8080, Net: prefix("fd00::1/128")}}},
	{Set{Name: "KUBE-LOAD-BALANCER-SOURCE-CIDR", Type: HashIPPortNet, Family: IPv4}, []Member{
		{Addr: addr("192.0.2.7"), Proto: tcp, Port: 80, Net: prefix("10.0.0.0/8")}, {Addr: addr("192.0.2.7"), Proto: tcp, Port: 80, Net: prefix("198.51.100.7/32")},
		{Addr: addr("192.0.2.7"), Proto: tcp, Port: 81, Net: prefix("0.0.0.0/1")}, {Addr: addr("192.0.2.7"), Proto: tcp, Port: 81, Net: prefix("128.0.0.0/1")}}},
	{Set{Name: "KUBE-6-LOAD-BALANCER-SOURCE-CID", Type: HashIPPortNet, Family: IPv6}, []Member{
		{Addr: addr("2001:db8::7"), Proto: tcp, Port: 80, Net: prefix("2001:db8:1::/48")}, {Addr: addr("2001:db8::7"), Proto: sctp, Port: 80, Net: prefix("8000::/1")}}},
	{Set{Name: "KUBE-NODE-PORT-TCP", Type: BitmapPort}, []Member{{Port: 30000}, {Port: 0}, {Port: 65535}}},
	{Set{Name: "KUBE-NODE-PORT-UDP", Type: BitmapPort, SkbInfo: true}, []Member{{Port: 30000, Mark: 7, Mask: 15}}},
}

// fill makes all.
func fill(t *testing.T, c *Conn) {
	t.Helper()
	var ops []Op
	for i := range all {
		if err := c.Create(t.Context(), all[i].set); err != nil {
			t.Fatal(err)
		}
		for _, m := range all[i].members {
			ops = append(ops, Op{Set: &all[i].set, Member: m})
		}
	}
	if err := c.Do(t.Context(), ops, func(i int, err error) { t.Error(i, err) }); err != nil {
		t.Fatal(err)
	}
}

// What is written is what the program reads, and what is read is what was written.
func TestMembers(t *testing.T) {
	c := open(t)
	if err := c.Able(t.Context(), sets(all)); err != nil {
		t.Fatal(err)
	}
	fill(t, c)
	headers, err := c.Headers(t.Context())
	if err != nil || len(headers) != len(all) {
		t.Fatalf("%d sets, %v; want %d", len(headers), err, len(all))
	}
	var want bytes.Buffer
	for i, x := range all {
		var got []Member
		h, err := c.Members(t.Context(), x.set.Name, func(m Member) { got = append(got, m) })
		if err != nil || h.Differs(x.set) != "" || int(h.Members) != len(x.members) || h.Name != headers[i].Name {
			t.Errorf("%s: %+v, %v, %s", x.set, h, err, h.Differs(x.set))
		}
		if !maps.Equal(set(got), set(x.members)) || len(got) != len(x.members) {
			t.Errorf("%s has %v, want %v", x.set, got, x.members)
		}
		if err := Save(&want, x.set, x.members); err != nil {
			t.Fatal(err)
		}
	}
	expect := strings.Join(inOrder(slices.Collect(strings.Lines(want.String()))), "")
	if got := saved(t); got != expect {
		t.Errorf("the program saves\n%s\nwant\n%s", got, expect)
	}
	// What Save writes the program restores, and then saves the same.
	program(t, "", "destroy")
	program(t, want.String(), "restore")
	if got := saved(t); got != expect {
		t.Errorf("restored, the program saves\n%s\nwant\n%s", got, expect)
	}
	// And what the program made is as if we had.
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
		if err := c.Do(t.Context(), append(ops, ops...), nil); err != nil { // what is not there any more is no error
			t.Error(err)
		}
	}
	if got := saved(t); strings.Contains(got, "add ") {
		t.Errorf("after all were deleted the program saves\n%s", got)
	}
}

func sets(all []content) (s []Set) {
	for _, x := range all {
		s = append(s, x.set)
	}
	return s
}

func set(members []Member) map[Member]bool {
	s := map[Member]bool{}
	for _, m := range members {
		s[m] = true
	}
	return s
}
