package hooks

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/trace"
)

// foreign is a table of another program with so many rules in one chain. None matches.
func foreign(n int) string {
	var b strings.Builder
	b.WriteString("table inet fw {\n\tchain f {\n\t\ttype filter hook forward priority 0\n")
	for i := range n {
		fmt.Fprintf(&b, "\t\tip daddr 203.0.%d.%d tcp dport 80 drop\n", i/250%250, i%250)
	}
	b.WriteString("\t}\n}\n")
	return b.String()
}

var web = Packet{Proto: lb.TCP, From: netip.MustParseAddrPort("10.0.0.1:999"),
	To: netip.MustParseAddrPort("10.1.1.1:80"), In: "lo", Out: "lo"}

// 5,000 rules of others are evaluated. Of a chain with 21,000 the answer says: too many.
func TestManyRules(t *testing.T) {
	for _, c := range []struct {
		rules  int
		doubts string
	}{{5000, ""}, {21_000, "table inet fw, chain f is not evaluated"}} {
		t.Run(fmt.Sprint(c.rules), func(t *testing.T) {
			netlab.EnterForTest(t)
			load(t, foreign(c.rules), "nft", "-f", "-")
			s := opened(t, lb.IPv4)
			ways, err := s.Pass(t.Context(), Forward, web)
			if err != nil || len(ways) != 1 || ways[0].Verdict != "" {
				t.Fatalf("%v, %v", describe(ways), err)
			}
			if c.doubts == "" && ways[0].NotEvaluated != nil || c.doubts != "" &&
				(len(ways[0].NotEvaluated) != 1 || ways[0].NotEvaluated[0].String() != c.doubts) {
				t.Errorf("not evaluated: %v", ways[0].NotEvaluated)
			}
			if len(s.Notes()) > 0 != (c.doubts != "") {
				t.Errorf("notes: %q", s.Notes())
			}
		})
	}
}

// Jumps to a chain are not its rules: a chain that each of 25,000 rules jumps to is evaluated, as
// the chains of mode iptables with many Services are (NT-19).
func TestManyJumps(t *testing.T) {
	netlab.EnterForTest(t)
	load(t, "table inet fw {\n\tchain marks {\n\t\ttcp dport 80 drop\n\t}\n\tchain other {\n"+
		strings.Repeat("\t\tjump marks\n", 25_000)+"\t}\n\tchain f {\n\t\ttype filter hook forward priority 0\n"+
		"\t\tjump marks\n\t}\n}\n", "nft", "-f", "-")
	ways, err := opened(t, lb.IPv4).Pass(t.Context(), Forward, web)
	want := `drop by table inet fw, chain marks, rule 1 "tcp dport 80 drop"`
	if got := describe(ways); err != nil || len(got) != 1 || got[0] != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}

// Rules that cannot be evaluated double the ways; of a chain with many the answer says so, and does
// not say that it drops the packet (NT-19).
func TestManyDoubts(t *testing.T) {
	netlab.EnterForTest(t)
	var b strings.Builder
	b.WriteString("table inet fw {\n\tchain f {\n\t\ttype filter hook forward priority 0; policy drop\n")
	for i := range 31 {
		fmt.Fprintf(&b, "\t\tlimit rate 1/second meta mark set meta mark | 0x%x\n", 1<<i)
	}
	b.WriteString("\t}\n}\n")
	load(t, b.String(), "nft", "-f", "-")
	ways, err := opened(t, lb.IPv4).Pass(t.Context(), Forward, web)
	if err != nil || len(ways) != 1 || ways[0].Verdict != "" || len(ways[0].NotEvaluated) != 1 || ways[0].If[0] != "" {
		t.Errorf("%+v, %v", ways, err)
	}
}

// TestRareRules has rules that the random rules do not have (NT-14, NT-18).
func TestRareRules(t *testing.T) {
	for _, c := range []struct {
		name, rules string
		command     string // loads the rules: nft, or a shell
		hook        Hook
		packet      Packet
		want        string
	}{
		{"ingress", "table netdev d { chain i { type filter hook ingress device d0 priority 0; tcp dport 80 drop;\n} }",
			"nft", Prerouting, from("d0"), `drop by table netdev d, chain i, rule 1 "tcp dport 80 drop"`},
		{"ingress of another device",
			"table netdev d { chain i { type filter hook ingress device d1 priority 0; tcp dport 80 drop;\n} }",
			"nft", Prerouting, from("d0"), "to 10.1.1.1:80"},
		{"bridge", "table bridge b { chain i { type filter hook input priority 0; meta protocol ip " +
			"ip daddr 10.1.1.1 drop;\n} }", "nft", Prerouting, from("br0"),
			`drop by table bridge b, chain i, rule 1 "ip daddr 10.1.1.1 drop"`},
		{"a port of the bridge, of many", "table bridge b { chain i { type filter hook prerouting priority 0; " +
			"iifname d2 drop;\n} }", "nft", Prerouting, from("br0"),
			`to 10.1.1.1:80, not evaluated: table bridge b, chain i, rule 1 "iifname \"d2\" drop"`},
		{"the port of the bridge", "table bridge b { chain i { type filter hook prerouting priority 0; " +
			"iifname d2 drop;\n} }", "nft", Prerouting, fromPort("br0", "d2"),
			`drop by table bridge b, chain i, rule 1 "iifname \"d2\" drop"`},
		{"another port of the bridge", "table bridge b { chain i { type filter hook prerouting priority 0; " +
			"iifname d2 drop;\n} }", "nft", Prerouting, fromPort("br0", "d3"), "to 10.1.1.1:80"},
		{"the port of the bridge to leave by", "table bridge b { chain i { type filter hook output priority 0; " +
			"oif d2 drop;\n} }", "nft", Postrouting, to("br0"),
			`to 10.1.1.1:80, not evaluated: table bridge b, chain i, rule 1 "oif \"d2\" drop"`},
		{"a device of netdev", "table netdev d { chain i { type filter hook ingress device d2 priority 0; " +
			"iifname d2 drop;\n} }", "nft", Prerouting, fromPort("br0", "d2"),
			`drop by table netdev d, chain i, rule 1 "iifname \"d2\" drop"`},
		{"ingress of a port of the bridge, of many",
			"table netdev d { chain i { type filter hook ingress device d2 priority 0; tcp dport 80 drop;\n} }",
			"nft", Prerouting, from("br0"),
			`to 10.1.1.1:80, not evaluated: table netdev d, chain i, rule 1 "tcp dport 80 drop"`},
		{"ingress of a port of the bridge, for others",
			"table netdev d { chain i { type filter hook ingress device d2 priority 0; tcp dport 81 drop;\n} }",
			"nft", Prerouting, from("br0"), "to 10.1.1.1:80"},
		{"ingress of the port of the bridge",
			"table netdev d { chain i { type filter hook ingress device d2 priority 0; tcp dport 80 drop;\n} }",
			"nft", Prerouting, fromPort("br0", "d2"), `drop by table netdev d, chain i, rule 1 "tcp dport 80 drop"`},
		{"ingress of another port of the bridge",
			"table inet d { chain i { type filter hook ingress device d2 priority 0; tcp dport 80 drop;\n} }",
			"nft", Prerouting, fromPort("br0", "d3"), "to 10.1.1.1:80"},
		{"egress of a port of the bridge",
			"table netdev d { chain e { type filter hook egress device d2 priority 0; tcp dport 80 drop;\n} }",
			"nft", Postrouting, to("br0"),
			`to 10.1.1.1:80, not evaluated: table netdev d, chain e, rule 1 "tcp dport 80 drop"`},
		{"no bridge", "table bridge b { chain i { type filter hook input priority 0; drop;\n} }", "nft",
			Prerouting, from("d0"), "to 10.1.1.1:80"},
		{"dormant table", "table inet x { flags dormant; chain i { type filter hook forward priority 0; drop;\n} }",
			"nft", Forward, web, "to 10.1.1.1:80"},
		{"limit", "table inet x { chain i { type filter hook forward priority 0; " +
			"limit rate 1/second drop;\n} }", "nft", Forward, web,
			`to 10.1.1.1:80, not evaluated: table inet x, chain i, rule 1 "limit rate 1/second burst 5 packets drop"`},
		{"limit without consequence",
			"table inet x { chain i { type filter hook forward priority 0; limit rate 1/second accept;\n} }",
			"nft", Forward, web, "to 10.1.1.1:80"},
		{"unknown, but another condition fails",
			"table inet x { chain i { type filter hook forward priority 0; ip ttl 3 tcp dport 81 drop;\n} }",
			"nft", Forward, web, "to 10.1.1.1:80"},
		{"limited element", "table inet x { set s { type ipv4_addr; size 10; flags dynamic; }; " +
			"chain i { type filter hook forward priority 0; " +
			"add @s { ip saddr limit rate over 1/second } drop;\n} }", "nft", Forward, web,
			`to 10.1.1.1:80, not evaluated: table inet x, chain i, rule 1 "add @s { ip saddr limit } drop"`},
		{"catch-all element",
			"table inet x { map m { type ipv4_addr : verdict; elements = { 10.9.9.9 : accept, * : drop }; }; " +
				"chain i { type filter hook forward priority 0; ip daddr vmap @m;\n} }", "nft", Forward, web,
			`drop by table inet x, chain i, rule 1 "ip daddr vmap @m"`},
		{"bridge, after the rules of IP",
			"table bridge b { chain i { type filter hook input priority 0; tcp dport 80 drop;\n} }\n" +
				"table ip x { chain p { type nat hook prerouting priority -100; " +
				"tcp dport 80 dnat to 10.1.1.2:8080;\n} }",
			"nft", Prerouting, calls(), "to 10.1.1.2:8080"},
		{"user of a connection",
			"table inet x { chain i { type filter hook input priority 0; meta skuid 0 drop;\n} }", "nft",
			Input, established(), `to 10.1.1.1:80, not evaluated: table inet x, chain i, rule 1 "meta skuid 0 drop"`},
		{"user of a new connection",
			"table inet x { chain i { type filter hook input priority 0; meta skuid 0 drop;\n} }",
			"nft", Input, from("d0"), "to 10.1.1.1:80"},
		{"two filters of one priority", "iptables-nft -A FORWARD -p tcp -j DROP; " +
			"iptables-legacy -A FORWARD -p tcp -j REJECT", "sh", Forward, web,
			`drop by table ip filter, chain FORWARD, rule 1 "meta l4proto tcp counter drop", ` +
				"not evaluated: table ip filter, chain FORWARD and table filter of iptables-legacy, chain FORWARD, " +
				"stop the packet at one prior…"},
		{"two filters of one priority, alike", "iptables-nft -A FORWARD -p tcp -j DROP; " +
			"iptables-legacy -A FORWARD -p tcp -j DROP", "sh", Forward, web,
			`drop by table ip filter, chain FORWARD, rule 1 "meta l4proto tcp counter drop"`},
		{"a reset", "iptables-legacy -A FORWARD -p tcp --syn -j DROP", "sh", Forward, reset(), "to 10.1.1.1:80"},
		{"a reset acknowledges", "iptables-legacy -A FORWARD -p tcp --tcp-flags RST,ACK RST,ACK -j DROP", "sh",
			Forward, reset(), "drop by table filter of iptables-legacy, chain FORWARD, rule 1 " +
				`"-p tcp -m tcp --tcp-flags RST,ACK RST,ACK -j DROP"`},
		{"hostile names",
			"table inet x { chain i { type filter hook forward priority 0; drop comment \"\x1b[31m red\";\n} }",
			"nft", Forward, web, `drop by table inet x, chain i, rule 1 "drop comment \"\\x1b[31m red\""`},
		{"ipset", "ipset create s hash:net,port; ipset add s 10.1.1.0/24,tcp:80; " +
			"iptables-nft -A FORWARD -m set --match-set s dst,dst -j DROP", "sh", Forward, web,
			`drop by table ip filter, chain FORWARD, rule 1 "-m set --match-set s dst,dst -j DROP"`},
		{"ipset with marks", "ipset create s hash:ip,port skbinfo; ipset add s 10.1.1.1,tcp:80 skbmark 0x7/0xff; " +
			"iptables-legacy -t mangle -A INPUT -j SET --map-set s dst,dst --map-mark", "sh", Input, from("d0"),
			"to 10.1.1.1:80 mark 7"},
		{"ipset of prefixes with marks", "ipset create s hash:net skbinfo; ipset add s 10.1.1.0/24 skbmark 0x7/0xff; " +
			"iptables-legacy -t mangle -A INPUT -j SET --map-set s dst --map-mark", "sh", Input, from("d0"),
			`to 10.1.1.1:80, not evaluated: table mangle of iptables-legacy, chain INPUT, rule 1 ` +
				`"-j SET --map-set s dst --map-mark"`},
		{"ipset of masked addresses with marks", "ipset create s hash:ip netmask 24 skbinfo; " +
			"ipset add s 10.1.1.0 skbmark 0x7/0xff; " +
			"iptables-legacy -t mangle -A INPUT -j SET --map-set s dst --map-mark", "sh", Input, from("d0"),
			`to 10.1.1.1:80, not evaluated: table mangle of iptables-legacy, chain INPUT, rule 1 ` +
				`"-j SET --map-set s dst --map-mark"`},
		{"ipset without the port", "ipset create s hash:net,port; ipset add s 10.1.1.0/24,tcp:81; " +
			"iptables-legacy -A FORWARD -m set --match-set s dst,dst -j DROP", "sh", Forward, web, "to 10.1.1.1:80"},
		{"strange ipset",
			"ipset create s list:set; iptables-legacy -A FORWARD -m set --match-set s src -j DROP", "sh", Forward, web,
			`to 10.1.1.1:80, not evaluated: table filter of iptables-legacy, chain FORWARD, rule 1 ` +
				`"-m set --match-set s src -j DROP"`},
		{"reverse path", "iptables-legacy -t raw -A PREROUTING -m rpfilter --invert -j DROP", "sh",
			Prerouting, from("d0"),
			`drop by table raw of iptables-legacy, chain PREROUTING, rule 1 "-m rpfilter --invert -j DROP"`},
		{"reverse path from where it leads", "iptables-legacy -t raw -A PREROUTING -m rpfilter --invert -j DROP",
			"sh", Prerouting, from("d1"), "to 10.1.1.1:80"},
		{"unknown match", "iptables-nft -A FORWARD -m time --timestart 01:00 -j DROP", "sh", Forward, web,
			`to 10.1.1.1:80, not evaluated: table ip filter, chain FORWARD, rule 1 ` +
				`"-m time --timestart 01:00:00 --timestop 23:59:59 --datestop 2038-01-19T03:14:07 -j DROP"`},
		{"unknown target", "iptables-nft -A FORWARD -p tcp -j NFQUEUE --queue-num 3", "sh", Forward, web,
			`to 10.1.1.1:80, not evaluated: table ip filter, chain FORWARD, rule 1 ` +
				`"-p tcp -j NFQUEUE --queue-num 3"`},
		{"owner", "iptables-nft -N cali-FORWARD; iptables-nft -A FORWARD -j cali-FORWARD; " +
			"iptables-nft -A cali-FORWARD -j DROP", "sh", Forward, web,
			`drop by table ip filter, chain cali-FORWARD, rule 1 "counter drop" (of Calico)`},
	} {
		t.Run(c.name, func(t *testing.T) {
			netlab.EnterForTest(t)
			load(t, `set -e; ip link set lo up; ip link add d0 type veth peer name e0; `+
				`ip link add d1 type veth peer name e1; ip link set e0 up; ip link set e1 up; `+
				`ip link add br0 type bridge; ip link set d0 up; ip link set d1 up
				ip addr add 10.0.0.2/24 dev d1; for i in 2 3; do ip link add d$i master br0 type veth peer name e$i; done`, "sh")
			if c.command == "nft" {
				load(t, strings.ReplaceAll(c.rules, "\n} }", "\n}\n}"), "nft", "-f", "-")
			} else {
				load(t, "set -e; "+c.rules, "sh")
			}
			s := opened(t, lb.IPv4)
			ways, err := s.Pass(t.Context(), c.hook, c.packet)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(describe(ways), "\n"); got != c.want {
				t.Errorf("%s\nwant\n%s\npath %q notes %q", got, c.want, s.Path(), s.Notes())
			}
		})
	}
}

func from(in string) Packet {
	p := web
	p.In, p.Out = in, ""
	return p
}

// calls comes from a bridge whose frames meet the rules of IP.
func calls() Packet {
	p := from("br0")
	p.Calls = true
	return p
}

// established is a later packet of a connection.
func established() Packet {
	p := from("d0")
	p.Flow.State = Established
	return p
}

// reset refuses a connection.
func reset() Packet {
	p := web
	p.Flow.State, p.Flow.Reply = Related, true
	return p
}

func fromPort(bridge, port string) Packet {
	p := from(bridge)
	p.Port = port
	return p
}

func to(out string) Packet {
	p := web
	p.In, p.Out = "", out
	return p
}

// Conntrack translates a flow that it knows, whatever the nat chains say. A later packet of it is
// no first one.
func TestEstablished(t *testing.T) {
	netlab.EnterForTest(t)
	load(t, `table inet x {
		chain n {
			type nat hook prerouting priority -100
			dnat ip to 10.9.9.9
		}
		chain f {
			type filter hook forward priority 0
			ct state new drop
			ct state established ct direction reply ip saddr 10.1.1.7 accept
		}
	}`, "nft", "-f", "-")
	s := opened(t, lb.IPv4)
	client, service := netip.MustParseAddrPort("10.0.0.1:999"), netip.MustParseAddrPort("10.96.0.1:80")
	pod := netip.MustParseAddrPort("10.1.1.7:8080")
	flow := Flow{State: Established, Orig: Tuple{client, service}, Reverse: Tuple{pod, client}}
	there := Packet{Proto: lb.TCP, From: client, To: service, In: "lo", Flow: flow}
	flow.Reply = true
	back := Packet{Proto: lb.TCP, From: pod, To: client, In: "lo", Out: "lo", Flow: flow}
	for _, c := range []struct {
		hook     Hook
		packet   Packet
		from, to netip.AddrPort
	}{{Prerouting, there, client, pod}, {Forward, back, pod, client}, {Postrouting, back, service, client}} {
		ways, err := s.Pass(t.Context(), c.hook, c.packet)
		if err != nil || len(ways) != 1 || ways[0].Verdict != "" || ways[0].To != c.to || ways[0].From != c.from {
			t.Errorf("%s: %v, %v", c.hook, ways, err)
		}
	}
	first := there
	first.Flow = Flow{}
	if ways, err := s.Pass(t.Context(), Forward, first); err != nil || len(ways) != 1 || ways[0].Verdict != trace.Drop {
		t.Errorf("the first packet: %v, %v", ways, err)
	}
}

// openedWithoutRaw opens a snapshot with the capabilities of the chart's pod in mode ebpf: without
// NET_RAW, which the programs of iptables-legacy need.
func openedWithoutRaw(t *testing.T, f lb.Family) (s *Snapshot) {
	t.Helper()
	here, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	done := make(chan error)
	go func() { // its thread ends with it, because it cannot regain privileges
		runtime.LockOSThread()
		err := unix.Setns(int(here.Fd()), unix.CLONE_NEWNET)
		head, caps := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
		err = errors.Join(err, unix.Capget(&head, &caps[0]))
		for _, set := range []*uint32{&caps[0].Effective, &caps[0].Permitted, &caps[0].Inheritable} {
			*set &^= 1 << unix.CAP_NET_RAW
		}
		err = errors.Join(err, unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_NET_RAW, 0, 0, 0),
			unix.Capset(&head, &caps[0]))
		if err == nil {
			s, err = Open(t.Context(), f)
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Rules of iptables-legacy that cannot be read may do anything at their hooks (NT-06).
func TestUnreadLegacy(t *testing.T) {
	for f, six := range map[lb.Family]string{lb.IPv4: "", lb.IPv6: "6"} {
		t.Run(f.String(), func(t *testing.T) {
			netlab.EnterForTest(t)
			program := "ip" + six + "tables-legacy"
			load(t, "", program, "-t", "raw", "-A", "OUTPUT", "-j", "DROP")
			load(t, "", program, "-t", "filter", "-P", "INPUT", "DROP")
			load(t, "", program, "-t", "filter", "-N", "FORWARDED")
			load(t, "table inet fw { chain f { type filter hook forward priority 0; tcp dport 80 drop; }; }",
				"nft", "-f", "-")
			s := openedWithoutRaw(t, f)
			for h, doubt := range map[Hook]string{Forward: "", Prerouting: "",
				Output: "table raw of iptables-legacy, chain OUTPUT is not evaluated",
				Input:  "table filter of iptables-legacy, chain INPUT is not evaluated"} {
				p := web
				if f == lb.IPv6 {
					p.From, p.To = netip.MustParseAddrPort("[fd00::1]:1"), netip.MustParseAddrPort("[fd00::2]:80")
				}
				said := len(s.Notes())
				ways, err := s.Pass(t.Context(), h, p)
				if err != nil || len(ways) != 1 || (len(ways[0].NotEvaluated) != 0) != (doubt != "") ||
					doubt != "" && ways[0].NotEvaluated[0].String() != doubt || doubt == "" && len(s.Notes()) != said {
					t.Errorf("%s: %v, %v, %v", h, describe(ways), err, s.Notes())
				}
			}
		})
	}
}
