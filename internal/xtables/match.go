//go:build linux

package xtables

import (
	"net/netip"
	"strconv"
	"strings"

	"kube-proxy/lb"
)

// Source is a match of packets by where they come from. Before goes to the beginning of a rule (see
// [MatchKey]), After behind its other matches.
type Source struct{ Before, After string }

// Sources returns the matches of packets from there: one for each way to recognise pods, none if
// there is no way.
func Sources(from lb.From, pods lb.Detector) (all []Source) {
	switch {
	case from == lb.Host:
		return []Source{{After: "-m addrtype --src-type LOCAL "}}
	case from != lb.Pods:
		return []Source{{}}
	case pods.Interface != "":
		return []Source{{Before: "-i " + pods.Interface + " "}}
	case pods.InterfacePrefix != "":
		return []Source{{Before: "-i " + pods.InterfacePrefix + "+ "}}
	}
	for _, p := range pods.Prefixes {
		all = append(all, Source{Before: FromPrefix(p)})
	}
	return all
}

// FromPrefix matches packets from a prefix; one of no length has all addresses.
func FromPrefix(p netip.Prefix) string {
	if p.Bits() == 0 {
		return ""
	}
	return "-s " + p.String() + " "
}

// MatchKey matches a destination and the beginning of a [Source], in the order of iptables-save: an
// interface comes after the address.
func MatchKey(k lb.Key, source string) string {
	dst := ""
	if !k.IsNodePort() {
		dst = "-d " + netip.PrefixFrom(k.Addr, k.Addr.BitLen()).String() + " "
	}
	if strings.Contains(source, "-i ") {
		dst, source = "", dst+source
	}
	proto := k.Proto.String()
	return source + dst + "-p " + proto + " -m " + proto + " --dport " + strconv.Itoa(int(k.Port)) + " "
}
