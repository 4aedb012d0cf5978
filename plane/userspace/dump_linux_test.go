package userspace

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"kube-proxy/lb"
	"kube-proxy/plane/userspace/redirect"
)

// Dump returns everything that decides about packets: the rules or addresses in the kernel, and the
// backends of the listeners. It prints names of listeners in place of their ports, which differ
// between processes.
func (p *Plane) Dump() (string, error) {
	var lines []string
	for _, s := range p.services {
		for _, set := range s.sets {
			if set.door != nil {
				lines = append(lines, fmt.Sprintf("listener %s\n", p.nameOf(set.door.port())))
			}
			lines = append(lines, fmt.Sprintf("set %s affinity %v: %v\n", set.now.ID,
				set.turns.State(netip.Addr{}).Affinity, set.turns.Backends()))
		}
	}
	if p.addresses != nil {
		p.at.Range(func(_, d any) bool {
			lines = append(lines, fmt.Sprintf("listener %s\n", d.(*door).at))
			return true
		})
		for _, r := range p.rows {
			line := fmt.Sprintf("row %s sources %v", r.f.Key, r.f.Sources)
			for _, to := range r.f.Routes {
				line += fmt.Sprintf(" %s %s", to.From, to.Do)
				if to.To != nil {
					line += " " + to.To.ID.String()
				}
			}
			lines = append(lines, line+"\n")
		}
	}
	slices.Sort(lines)
	var text string
	var err error
	switch c := p.redirect.(type) {
	case interface {
		dump(func(port) string) string
	}:
		text = c.dump(p.nameOf)
	default:
		dump := map[string]func(lb.Family, func(port) string) (string, error){"nftables": dumpNFTables,
			"iptables": dumpIPTables}[c.Name()]
		text, err = dump(p.cfg.Family, p.nameOf)
	}
	return strings.Join(lines, "") + text, err
}

// elementsOf matches a set or map as nft lists it: its name, and its elements.
var elementsOf = regexp.MustCompile(`(?s)\t(?:set|map) (\S+) \{[^}]*?elements = \{ ([^}]*) \}`)

// dumpNFTables returns the table. It identifies source lists by their ranges, because their numbers
// depend on the order of changes.
func dumpNFTables(f lb.Family, name func(port) string) (string, error) {
	text, err := run("nft", "-n", "list", "table", nftFamily(f), redirect.TableName)
	if err != nil {
		return "", err
	}
	listener := func(proto, number string) string {
		p, _ := strconv.ParseUint(proto, 10, 8)
		n, _ := strconv.ParseUint(number, 10, 16)
		return name(port{lb.Proto(p), uint16(n)})
	}
	const lengthBits = 8 // of a mark of source-ranges: the prefix length, after the number of the list
	number := func(mark string) uint64 {
		n, _ := strconv.ParseUint(mark, 0, 32)
		return n >> lengthBits
	}
	sets := map[string][]string{}
	for _, set := range elementsOf.FindAllStringSubmatch(text, -1) {
		for element := range strings.SplitSeq(set[2], ",") {
			sets[set[1]] = append(sets[set[1]], strings.TrimSpace(element))
		}
	}
	ranges := map[uint64][]string{}
	for _, element := range sets["source-ranges"] {
		mark, prefix, _ := strings.Cut(element, " . ")
		length, _ := strconv.ParseUint(mark, 0, 32)
		ranges[number(mark)] = append(ranges[number(mark)], fmt.Sprintf("%s/%d", prefix, length%(1<<lengthBits)))
	}
	var lines []string
	for set, elements := range sets {
		for _, element := range elements {
			key, data, _ := strings.Cut(element, " : ")
			fields := strings.Split(key, " . ")
			switch {
			case set == "node-addresses" || set == "source-ranges":
				continue
			case set == "listeners":
				key = listener(fields[0], fields[1])
			case set == "source-lists":
				slices.Sort(ranges[number(data)])
				data = strings.Join(ranges[number(data)], ",")
			case strings.HasPrefix(set, "services-") || strings.HasPrefix(set, "nodeports-"):
				data = listener(fields[len(fields)-2], data)
			}
			lines = append(lines, fmt.Sprintf("%s %s %s\n", set, key, data))
		}
	}
	slices.Sort(lines)
	_, chains, _ := strings.Cut(text, "\tchain ")
	return chains + strings.Join(slices.Compact(lines), ""), nil
}

// dumpIPTables returns the rules of the chains that redirect. Of the guard it returns the
// listeners, because its branches depend on their ports.
func dumpIPTables(f lb.Family, name func(port) string) (string, error) {
	var out, guards []string
	for _, table := range []string{"nat", "filter"} {
		text, err := run(iptables(f), "-t", table, "-S")
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(text) {
			words := strings.Fields(line)
			if words[0] != "-A" || !strings.HasPrefix(words[1], "KUBE-PORTALS-") && !strings.HasPrefix(words[1],
				"KUBE-NODEPORT-") {
				continue
			}
			listener := func(number string) string {
				p, _ := lb.ParseProto(words[slices.Index(words, "-p")+1])
				n, _ := strconv.ParseUint(number, 10, 16)
				return name(port{p, uint16(n)})
			}
			guard := words[1] == "KUBE-NODEPORT-NON-LOCAL" || strings.HasPrefix(words[1], "KUBE-NODEPORT-L-")
			if i := slices.Index(words, "--dport"); guard && i > 0 && slices.Contains(words, "REJECT") {
				guards = append(guards, "guard "+listener(words[i+1])+"\n")
			} else if !guard {
				if i := slices.Index(words, "--to-destination"); i > 0 {
					at := strings.LastIndexByte(words[i+1], ':')
					words[i+1] = words[i+1][:at+1] + listener(words[i+1][at+1:])
				}
				out = append(out, table+" "+strings.Join(words[1:], " ")+"\n")
			}
		}
	}
	slices.Sort(guards)
	return strings.Join(out, "") + strings.Join(slices.Compact(guards), ""), nil
}
