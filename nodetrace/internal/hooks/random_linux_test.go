package hooks

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/seedtest"
)

// Random rules of nftables and of both kinds of iptables × random packets: what Pass predicts is
// what the kernel does, or Pass names the rule that it does not evaluate. KUBE_PROXY_CASES is how
// many packets are sent (NT-15, NT-17).
func TestRandom(t *testing.T) {
	seed := seedtest.Of(t)
	cases := 1500
	if text := os.Getenv("KUBE_PROXY_CASES"); text != "" {
		var err error
		if cases, err = strconv.Atoi(text); err != nil {
			t.Fatalf("KUBE_PROXY_CASES: %v", err)
		}
	}
	for _, family := range []lb.Family{lb.IPv4, lb.IPv6} {
		t.Run(family.String(), func(t *testing.T) {
			j := newJudge(t, family)
			r := &rules{Rand: rand.New(rand.NewPCG(seed, uint64(family))), judge: j}
			doubtful, done, ends := 0, 0, map[string]int{}
			for set := 0; done < cases/2 && !t.Failed(); set++ {
				n, d := r.round(t, set, ends)
				done, doubtful = done+n, doubtful+d
			}
			t.Logf("%d packets; %d met a rule that was not evaluated: %v", done, doubtful, ends)
			if doubtful > done*2/5 || ends["pass"] < done/20 || ends["drop"] < done/20 {
				t.Errorf("the rule sets prove too little")
			}
		})
	}
}

// samples is how many packets a rule set judges.
const samples = 40

// round compares one rule set.
func (r *rules) round(t *testing.T, set int, ends map[string]int) (done, doubtful int) {
	t.Helper()
	texts := r.load(t)
	defer func() {
		if t.Failed() {
			t.Log(strings.Join(texts, "\n"))
		}
	}()
	r.judge.forget()
	var s *Snapshot
	r.judge.on(netlab.Node1, func() { s = opened(t, r.judge.family) })
	var all []*sample
	masked := map[*sample]bool{}
	for range samples {
		p := r.packet()
		r.judge.on(netlab.Node1, func() { masked[p] = r.judge.predict(s, p) })
		all = append(all, p)
	}
	r.judge.send(all)
	for _, p := range all {
		known := !slices.ContainsFunc(p.want, func(o outcome) bool { return o.doubtful })
		if !known {
			doubtful++
		}
		ends[string(p.got.verdict)]++
		if known && !slices.ContainsFunc(p.want, func(o outcome) bool { return o.agrees(p.got, masked[p]) }) {
			t.Errorf("rule set %d: from %s on %s to %s: %s, want one of %v\npath:\n%s", set, p.from,
				p.host, p.to, p.got, p.want, strings.Join(s.Path(), "\n"))
			return len(all), doubtful
		}
	}
	return len(all), doubtful
}

// packet is a random packet, from a port of its own.
func (r *rules) packet() *sample {
	j := r.judge
	host := pick(r, "pod1", "pod1", "pod3", netlab.Node1)
	to := []netip.Addr{j.pods["pod2"], j.pods["pod2"], j.node, r.service()}
	if host == netlab.Node1 {
		to = []netip.Addr{j.pods["pod2"], r.service()}
	}
	j.port++
	if j.port > 60000 {
		j.port = 10000
	}
	return &sample{host: host, from: netip.AddrPortFrom(j.pods[host], j.port),
		to: netip.AddrPortFrom(pick(r, to...), pick(r, served...))}
}

// rules writes random rules.
type rules struct {
	*rand.Rand
	judge *judge
}

func pick[T any](r *rules, all ...T) T { return all[r.IntN(len(all))] }

func (r *rules) service() netip.Addr {
	if r.judge.family == lb.IPv6 {
		return netip.MustParseAddr("fd00:10:96::1")
	}
	return netip.MustParseAddr("10.96.0.1")
}

// ip is the family's name in nftables.
func (r *rules) ip() string {
	if r.judge.family == lb.IPv6 {
		return "ip6"
	}
	return "ip"
}

// hops is the family's name of the hop limit in nftables.
func (r *rules) hops() string {
	if r.judge.family == lb.IPv6 {
		return "ip6 hoplimit"
	}
	return "ip ttl"
}

func (r *rules) addr() string {
	j := r.judge
	return pick(r, j.pods["pod1"], j.pods["pod2"], j.pods["pod3"], j.node, r.service()).String()
}

// prefix is a random prefix around an address.
func (r *rules) prefix() string {
	a := netip.MustParseAddr(r.addr())
	p, _ := a.Prefix(a.BitLen() - pick(r, 0, 1, 2, 3, 5, 8, 16))
	return p.String()
}

func (r *rules) portText() string {
	return pick(r, "53", "80", "443", "8080", "53-80", "80-443", "9000", "100-9000")
}

// load loads rules of one or more kinds into the node, and returns them.
func (r *rules) load(t *testing.T) (texts []string) {
	program := "iptables"
	if r.judge.family == lb.IPv6 {
		program = "ip6tables"
	}
	kinds := pick(r, []string{"nft"}, []string{"nft"}, []string{"nft"}, []string{"xt-nft"},
		[]string{"legacy"}, []string{"nft", "xt-nft"}, []string{"nft", "legacy"})
	r.judge.on(netlab.Node1, func() {
		load(t, "flush ruleset", "nft", "-f", "-")
		load(t, "*raw\nCOMMIT\n*mangle\nCOMMIT\n*nat\nCOMMIT\n"+
			"*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\nCOMMIT\n", program+"-legacy-restore")
		for _, kind := range kinds {
			var text string
			switch kind {
			case "nft":
				text = r.loadNFT(t)
			case "xt-nft":
				text = r.iptables()
				load(t, text, program+"-nft-restore")
			case "legacy":
				text = r.iptables()
				load(t, text, program+"-legacy-restore")
			}
			texts = append(texts, "# "+kind+"\n"+text)
		}
	})
	return texts
}

// refused are the lines that nft does not take.
var refused = regexp.MustCompile(`/dev/stdin:(\d+):`)

// loadNFT loads rules of nftables, without those that nft refuses: some conditions contradict
// another.
func (r *rules) loadNFT(t *testing.T) string {
	t.Helper()
	text := r.nft()
	for range 50 {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(text)
		out, err := cmd.CombinedOutput()
		if err == nil {
			return text
		}
		lines, found := strings.Split(text, "\n"), refused.FindAllSubmatch(out, -1)
		for _, m := range found {
			n, _ := strconv.Atoi(string(m[1]))
			lines[n-1] = ""
		}
		if text = strings.Join(lines, "\n"); len(found) == 0 {
			t.Fatalf("nft: %v\n%s\n%s", err, out, text)
		}
	}
	t.Fatal("nft refuses every rule")
	return ""
}

// Rules that accept the judge's own packets.
const (
	guideNFT = "\t\tudp dport 9 accept\n\t\tudp sport 9 accept\n"
	guideXT  = "-A %[1]s -p udp --dport 9 -j ACCEPT\n-A %[1]s -p udp --sport 9 -j ACCEPT\n"
)

// nft is a rule set for nftables.
func (r *rules) nft() string {
	var b strings.Builder
	for table := range 1 + r.IntN(2) {
		fmt.Fprintf(&b, "table %s t%d {\n%s", pick(r, "inet", r.ip()), table, r.sets())
		const chains = 4
		for c := chains - 1; c >= 0; c-- {
			fmt.Fprintf(&b, "\tchain c%d {\n", c)
			for range r.IntN(4) {
				fmt.Fprintf(&b, "\t\t%s\n", r.rule(c+1, chains, ""))
			}
			b.WriteString("\t}\n")
		}
		for i := range 1 + r.IntN(4) {
			hook := pick(r, "prerouting", "input", "forward", "output", "postrouting", "forward", "prerouting")
			priority, policy := pick(r, -310, -250, -150, -90, 0, 10, 110), pick(r, "accept",
				"accept", "accept", "drop")
			fmt.Fprintf(&b, "\tchain b%d {\n\t\ttype filter hook %s priority %d; policy %s;\n%s", i,
				hook, priority, policy, guideNFT)
			for range r.IntN(6) {
				fmt.Fprintf(&b, "\t\t%s\n", r.rule(0, chains, hook))
			}
			b.WriteString("\t}\n")
		}
		if r.IntN(2) == 0 {
			hook := pick(r, "prerouting", "output", "postrouting", "prerouting")
			fmt.Fprintf(&b, "\tchain n {\n\t\ttype nat hook %s priority %d;\n%s", hook, pick(r, -100, 100, 0), guideNFT)
			for range 1 + r.IntN(3) {
				fmt.Fprintf(&b, "\t\t%s %s\n", r.matches(hook), r.translation(hook))
			}
			b.WriteString("\t}\n")
		}
		b.WriteString("}\n")
	}
	return b.String()
}

// sets are named sets and maps with the elements of each kind.
func (r *rules) sets() string {
	a := "ipv4_addr"
	if r.judge.family == lb.IPv6 {
		a = "ipv6_addr"
	}
	return fmt.Sprintf(`	set plain { type %[1]s; elements = { %[2]s }; }
	set timed { type %[1]s; flags timeout; timeout 1h; elements = { %[2]s }; }
	set wide { type %[1]s; flags interval; auto-merge; elements = { %[3]s, %[4]s }; }
	set pairs { type %[1]s . inet_service; flags interval; elements = { %[3]s . %[5]s }; }
	set exact { type %[1]s . inet_proto . inet_service; elements = { %[2]s . udp . 80 }; }
	set dyn { type %[1]s; flags dynamic,timeout; timeout 1h; size 1000; }
	map marks { type inet_service : mark; elements = { 53 : 1, 80 : 2, 443 : 3 }; }
	map ends { type %[1]s : verdict; elements = { %[2]s : jump c3 }; }
`, a, r.addr(), r.prefix(), r.addr(), r.portText())
}

// translation is a statement of nat.
func (r *rules) translation(hook string) string {
	a := r.judge.pods["pod2"].String()
	if hook == "output" {
		return fmt.Sprintf("meta l4proto udp dnat %s to %s", r.ip(), a)
	}
	if hook == "postrouting" {
		return pick(r, "masquerade", "masquerade", fmt.Sprintf("snat %s to %s", r.ip(), r.judge.node))
	}
	bracketed := a
	if r.judge.family == lb.IPv6 {
		bracketed = "[" + a + "]"
	}
	return pick(r, fmt.Sprintf("dnat %s to %s", r.ip(), a),
		fmt.Sprintf("meta l4proto udp dnat %s to %s:9000", r.ip(), bracketed),
		fmt.Sprintf("udp dport 80 dnat %s to numgen random mod 2 map { 0 : %s, 1 : %s }", r.ip(), a, r.judge.node))
}

func (r *rules) matches(hook string) string {
	var all []string
	for range 1 + r.IntN(2) {
		all = append(all, r.match(hook))
	}
	return strings.Join(all, " ")
}

// rule is a rule of a chain, which may jump to the chains from next on.
func (r *rules) rule(next, chains int, hook string) string {
	ip := r.ip()
	verdicts := []string{"accept", "drop", "reject", "return", "counter", "meta mark set 1",
		"meta mark set meta mark | 0x2", "ct mark set 5", "ct mark set meta mark",
		"ct label set 5", ip + " dscp set cs1", ip + " dscp set ef", r.hops() + " set 9", r.hops() + " set 9 return",
		"meta mark set ct mark", "meta mark set udp dport map @marks",
		"add @dyn { " + r.ip() + " saddr }", "continue", "meta mark set 3 accept", "ip6 hoplimit set 9 accept"}
	verdicts[len(verdicts)-1] = "update @dyn { " + r.ip() + " daddr timeout 1m } return"
	if hook == "prerouting" || hook == "output" {
		verdicts = append(verdicts, "notrack")
		verdicts = slices.DeleteFunc(verdicts, func(v string) bool {
			return v == "reject" && hook == "prerouting"
		})
	}
	if hook == "postrouting" || hook == "" {
		verdicts = slices.DeleteFunc(verdicts, func(v string) bool { return v == "reject" })
	}
	if next < chains {
		to := fmt.Sprintf("c%d", next+r.IntN(chains-next))
		verdicts = append(verdicts, "jump "+to, "goto "+to, "jump "+to)
		if hook != "" {
			verdicts = append(verdicts, fmt.Sprintf("udp dport vmap { 53 : jump %s, 80-90 : drop, 443 : accept }",
				to), r.ip()+" daddr vmap @ends")
		}
	}
	return r.matches(hook) + " " + pick(r, verdicts...)
}

// match is a condition in the language of nft.
func (r *rules) match(hook string) string {
	ip, not := r.ip(), pick(r, "", "", "!= ")
	all := []string{
		fmt.Sprintf("%s saddr %s%s", ip, not, r.addr()), fmt.Sprintf("%s daddr %s%s", ip, not,
			r.prefix()), fmt.Sprintf("%s saddr %s{ %s, %s }", ip, not, r.addr(), r.addr()),
		fmt.Sprintf("%s daddr %s@plain", ip, not), fmt.Sprintf("%s saddr %s@wide", ip,
			not), fmt.Sprintf("%s daddr @timed", ip),
		fmt.Sprintf("%s daddr . udp dport %s@pairs", ip,
			not), fmt.Sprintf("%s daddr . meta l4proto . udp dport @exact", ip),
		"udp dport " + not + r.portText(), "udp dport { 53, 80-100 }", "udp dport >= 443",
		"udp sport 10000-40000", "th dport " + r.portText(),
		"meta mark " + not + pick(r, "1", "2",
			"3"), "meta mark & 0x2 == 0x2", "meta mark and 0x1 != 0", "ct mark 5", "meta mark < 2",
		"ct state " + not + pick(r, "new", "established", "invalid", "untracked", "established,related",
			"{ new, invalid }"), "ct direction " + pick(r, "original", "reply"),
		ip + " dscp " + not + pick(r, "cs0", "cs1", "ef"), ip + " dscp cs1", "ct zone 0", "ct zone 1", "ct label 5",
		pick(r, r.hops()+" < 9", "ct state new", "udp dport 1-9000", "meta mark 0"),
		"ct status dnat", "ct status snat", "meta l4proto " + pick(r, "udp", "tcp",
			"{ tcp, udp }"), "meta nfproto " + pick(r, "ipv4", "ipv6"), "meta protocol " + ip,
		"fib daddr type local", "fib saddr type " + not + pick(r, "unicast",
			"local"), "meta pkttype host", "ct original " + ip + " daddr " + r.addr(),
		"meta l4proto udp ct original proto-dst 80", "ct reply " + ip + " saddr " + r.addr(),
		"meta length < 1", "tcp flags syn", "meta iiftype ether",
	}
	if hook == "prerouting" || hook == "input" || hook == "forward" {
		all = append(all, `iifname "vethpod1"`, `iifname `+not+`"vethpod*"`, "iif "+not+"vethpod2",
			`iifname { "vethpod1", "vethpod3" }`, "fib saddr . iif oif "+pick(r, "missing", "exists"))
	}
	if hook == "forward" || hook == "output" || hook == "postrouting" {
		all = append(all, `oifname "vethpod2"`, "oif "+not+"vethpod1")
	}
	return pick(r, all...)
}

// iptables is a rule set for iptables-restore.
func (r *rules) iptables() string {
	var b strings.Builder
	for _, table := range []struct {
		name  string
		bases []string
	}{
		{"raw", []string{"PREROUTING", "OUTPUT"}}, {"mangle", []string{"PREROUTING", "INPUT", "FORWARD",
			"OUTPUT", "POSTROUTING"}},
		{"nat", []string{"PREROUTING", "OUTPUT", "POSTROUTING"}}, {"filter", []string{"INPUT", "FORWARD", "OUTPUT"}},
	} {
		fmt.Fprintf(&b, "*%s\n", table.name)
		for _, base := range table.bases {
			policy := "ACCEPT"
			if table.name == "filter" && r.IntN(6) == 0 {
				policy = "DROP"
			}
			fmt.Fprintf(&b, ":%s %s [0:0]\n", base, policy)
		}
		b.WriteString(":ONE - [0:0]\n:TWO - [0:0]\n")
		for _, base := range table.bases {
			fmt.Fprintf(&b, guideXT, base)
			for range r.IntN(4) {
				fmt.Fprintf(&b, "-A %s %s %s\n", base, r.options(base), r.target(table.name, base))
			}
		}
		for _, chain := range []string{"ONE", "TWO"} {
			for range r.IntN(3) {
				fmt.Fprintf(&b, "-A %s %s %s\n", chain, r.options(""), r.target(table.name, chain))
			}
		}
		b.WriteString("COMMIT\n")
	}
	return b.String()
}

func (r *rules) options(base string) string {
	var all []string
	for range 1 + r.IntN(2) {
		o := r.option(base)
		if !slices.ContainsFunc(all, func(s string) bool {
			return strings.Fields(strings.TrimPrefix(s, "! "))[0] == strings.Fields(strings.TrimPrefix(o, "! "))[0]
		}) {
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b string) int { // -p comes before matches that need it
		return strings.Compare(strconv.FormatBool(!strings.Contains(a, "-p ")),
			strconv.FormatBool(!strings.Contains(b, "-p ")))
	})
	return strings.Join(all, " ")
}

// option is a condition of iptables.
func (r *rules) option(base string) string {
	not, ports := pick(r, "", "", "! "), strings.ReplaceAll(r.portText(), "-", ":")
	all := []string{
		not + "-s " + r.prefix(), not + "-d " + r.addr(), "-p udp",
		not + "-p tcp", "-p udp -m udp " + not + "--dport " + ports, "-p udp -m udp --sport 10000:30000",
		"-p udp -m multiport " + not + "--dports 53,80:100,9000", "-p udp -m multiport --ports 443,8080",
		"-m mark " + not + "--mark 0x1", "-m mark --mark 0x2/0x2",
		"-m connmark " + not + "--mark 5", "-m conntrack " + not + "--ctstate " + pick(r, "NEW",
			"ESTABLISHED,RELATED", "INVALID", "DNAT", "UNTRACKED,NEW", "SNAT"),
		"-m state --state NEW", "-m addrtype " + not + "--dst-type LOCAL",
		"-m addrtype --src-type " + pick(r, "LOCAL", "UNICAST"),
		"-m iprange --dst-range " + r.judge.pods["pod1"].String() + "-" + r.judge.pods["pod2"].String(),
		`-m comment --comment "a \"b\" c"`,
		"-m conntrack --ctorigdst " + r.addr(), "-m conntrack --ctdir " + pick(r, "ORIGINAL",
			"REPLY"), "-m length --length 1:5", "-m dscp " + not + "--dscp 0x08", "-m tos --tos 0x10",
		map[bool]string{false: "-m ttl --ttl-eq 9", true: "-m hl --hl-eq 9"}[r.judge.family == lb.IPv6],
		"-m conntrack --ctorigdstport 80",
	}
	if base == "PREROUTING" || base == "INPUT" || base == "FORWARD" {
		all = append(all, not+"-i vethpod1", "-i vethpod+")
	}
	if base == "OUTPUT" || base == "FORWARD" || base == "POSTROUTING" {
		all = append(all, not+"-o vethpod2", "-o vethpod+")
	}
	return pick(r, all...)
}

// target is what a rule of iptables does.
func (r *rules) target(table, chain string) string {
	all := []string{"-j ACCEPT", "-j DROP", "-j RETURN", "-j MARK --set-xmark 0x1/0xffffffff",
		"-j MARK --or-mark 0x2", "-j CONNMARK --set-mark 5", "-j CONNMARK --save-mark",
		"-j CONNMARK --restore-mark", ""}
	if table == "raw" {
		all = []string{"-j ACCEPT", "-j DROP", "-j RETURN", "-j CT --notrack", "-j MARK --set-xmark 0x1/0xffffffff", ""}
	}
	if table == "mangle" {
		all = append(all, "-j TOS --set-tos 0x10", "-j MARK --xor-mark 0x3", "-j DSCP --set-dscp 0x08",
			map[bool]string{false: "-j TTL --ttl-set 9", true: "-j HL --hl-set 9"}[r.judge.family == lb.IPv6])
	}
	if table == "nat" {
		all = []string{"-j ACCEPT", "-j RETURN", "-j MARK --set-xmark 0x1/0xffffffff"}
		a := r.judge.pods["pod2"].String()
		switch chain {
		case "PREROUTING", "OUTPUT":
			all = append(all, "-j DNAT --to-destination "+a, "-j DNAT --to-destination "+a,
				"-j DNAT --to-destination "+a+"-"+a) // a range is not evaluated
		case "POSTROUTING":
			all = append(all, "-j MASQUERADE", "-j SNAT --to-source "+r.judge.node.String())
		}
	}
	if table == "filter" {
		all = append(all, "-j REJECT")
	}
	switch chain {
	case "ONE":
		all = append(all, "-j TWO", "-g TWO")
	case "TWO":
	default:
		all = append(all, "-j ONE", "-g TWO", "-j ONE")
	}
	return pick(r, all...)
}
