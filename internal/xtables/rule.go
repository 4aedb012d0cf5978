//go:build linux

package xtables

import (
	"net/netip"
	"strconv"
	"strings"

	"kube-proxy/lb"
)

// Words splits a rule, as iptables-save prints it, at blanks outside of quotes.
func Words(rule string) []string {
	quoted, escaped := false, false
	return strings.FieldsFunc(rule, func(r rune) bool {
		if r == '"' && !escaped {
			quoted = !quoted
		}
		escaped = r == '\\' && !escaped
		return r == ' ' && !quoted
	})
}

// WithoutComments returns a rule, as iptables-save prints it, without its comments.
func WithoutComments(rule string) string {
	const begin = "-m comment --comment "
	for {
		at := strings.Index(rule, begin)
		if at < 0 {
			return strings.TrimSpace(rule)
		}
		rest := rule[at+len(begin):]
		end := strings.IndexByte(rest, ' ')
		if strings.HasPrefix(rest, `"`) {
			for end = 1; end < len(rest) && rest[end] != '"'; end++ {
				if rest[end] == '\\' {
					end++
				}
			}
			end++
		}
		if end < 0 || end >= len(rest) {
			rest = ""
		} else {
			rest = rest[end+1:]
		}
		rule = rule[:at] + rest
	}
}

// target returns the chain or the verdict that a rule jumps to.
func target(rule string) string {
	fields := Words(rule)
	for i, f := range fields[:max(0, len(fields)-1)] {
		if f == "-j" || f == "-g" {
			return fields[i+1]
		}
	}
	return ""
}

// MatchedKey returns the key that a rule, as iptables-save prints it, matches: the address of a
// destination, if it is a single one, the protocol and the port. It calls each with the other
// options. ok is false if a match is negated, or the rule matches no single port.
func MatchedKey(rule string, each func(option, value string)) (k lb.Key, ok bool) {
	words := Words(rule)
	for i := 0; i+1 < len(words); i++ {
		var err error
		switch value := words[i+1]; words[i] {
		case "!":
			return k, false
		case "-d":
			var p netip.Prefix
			p, err = netip.ParsePrefix(value)
			if err == nil && p.IsSingleIP() {
				k.Addr = p.Addr()
			}
		case "-p":
			k.Proto, err = lb.ParseProto(value)
		case "--dport":
			var n uint64
			n, err = strconv.ParseUint(value, 10, 16)
			k.Port = uint16(n)
		default:
			each(words[i], value)
		}
		if err != nil {
			return k, false
		}
	}
	return k, k.Port != 0
}

// isJump reports whether the rule has the form of a jump from a built-in chain to ours, of any
// version. A rule with another condition belongs to other software.
func isJump(rule string) bool {
	var rest []string
	fields := Words(rule)
	for i := 0; i < len(fields); {
		next := func(n int) string {
			if i+n < len(fields) {
				return fields[i+n]
			}
			return ""
		}
		switch {
		case next(0) == "-m" && next(1) == "comment" && next(2) == "--comment",
			next(0) == "-m" && next(1) == "conntrack" && next(2) == "--ctstate" && next(3) == "NEW",
			next(0) == "-m" && next(1) == "state" && next(2) == "--state" && next(3) == "NEW",
			next(0) == "-m" && next(1) == "addrtype" && next(2) == "--dst-type" && next(3) == "LOCAL":
			i += 4
		default:
			rest = append(rest, next(0))
			i++
		}
	}
	return len(rest) == 2 && rest[0] == "-j"
}

// Comment returns a comment match. Its text always has a character that makes iptables-save print
// quotes.
func Comment(parts ...string) string {
	text := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\\' || r == '\'' {
			return '_'
		}
		return r
	}, strings.Join(parts, ""))
	return `-m comment --comment "` + text[:min(len(text), 250)] + `" `
}
