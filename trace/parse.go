package trace

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"kube-proxy/lb"
)

// Source is who sends, as people write it: "10.1.1.11", "10.1.1.11:40000", "[fd00::1]:40000", or
// "node" for this node itself.
type Source struct {
	// Addr is the address, not valid for this node; its port is 0 where none was said.
	Addr netip.AddrPort
	// Node: this node sends.
	Node bool
}

// Target is where it sends to, as people write it: an address, a Service or a NodePort, then
// ":PORT" and "/PROTO", which may be left out.
type Target struct {
	// Addr is an address; not valid for a Service or a NodePort.
	Addr netip.Addr
	// Service is "ns/name", or "name" where the namespace was left out; "" for the others.
	Service string
	// NodePort: Port is one of this node ("nodeport:30080").
	NodePort bool
	// Port is the port's number, 0 where none was said, and PortName the name of a Service's port,
	// "" for none. Not both are there.
	Port     uint16
	PortName string
	// Proto is the protocol, or [ICMPv4] for a ping of either family; 0 where none was said.
	Proto lb.Proto
}

// longest is how much a part of a question may have, in bytes: more than the longest name of a
// Service with namespace, port and protocol.
const longest = 512

// Parse reads a question: who sends, and where to. An error names the part and says what is wanted.
// It asks nothing about what there is, see [Target.Find].
func Parse(src, dst string) (Source, Target, error) {
	from, err := parseSource(src)
	if err != nil {
		return Source{}, Target{}, fmt.Errorf("source %s: %w", quoted(src), err)
	}
	to, err := parseTarget(dst)
	if err != nil {
		return Source{}, Target{}, fmt.Errorf("destination %s: %w", quoted(dst), err)
	}
	if from.Addr.IsValid() && to.Addr.IsValid() && from.Addr.Addr().Is4() != to.Addr.Is4() {
		return Source{}, Target{}, fmt.Errorf("source %s and destination %s are of different address families",
			quoted(src), quoted(dst))
	}
	return from, to, nil
}

// quoted is a part of a question in an error, not too long.
func quoted(s string) string {
	if len(s) > 80 {
		return strconv.Quote(s[:80]) + "…"
	}
	return strconv.Quote(s)
}

func parseSource(s string) (Source, error) {
	if s == "node" {
		return Source{Node: true}, nil
	}
	if err := short(s); err != nil {
		return Source{}, err
	}
	host, port, err := splitPort(s)
	if err != nil {
		return Source{}, err
	}
	a, err := parseAddr(host)
	if err != nil {
		return Source{}, fmt.Errorf(`want an address such as 10.1.1.11 or [fd00::1]:40000, "node" for this node, or `+
			`pod/NAMESPACE/NAME: %w`, err)
	}
	n := uint16(0)
	if port != "" {
		n, err = parsePort(port)
		if err != nil {
			return Source{}, err
		}
	}
	return Source{Addr: netip.AddrPortFrom(a, n)}, nil
}

func parseTarget(s string) (Target, error) {
	var t Target
	if err := short(s); err != nil {
		return t, err
	}
	rest, err := t.cutProto(s)
	if err != nil {
		return t, err
	}
	host, port, err := splitPort(rest)
	if err != nil {
		return t, err
	}
	a, addrErr := parseAddr(host)
	switch {
	case addrErr == nil:
		t.Addr = a
	case host == "nodeport":
		t.NodePort = true
	default:
		t.Service, err = serviceName(host)
		if err != nil && addrErr != errNoAddress {
			return t, addrErr
		} else if err != nil {
			return t, err
		}
	}
	if t.Proto == ICMPv4 && port != "" {
		return t, errors.New("a ping has no port: want ADDRESS/icmp")
	}
	if t.Proto == ICMPv4 && t.NodePort || t.NodePort && port == "" {
		return t, errors.New("want nodeport:PORT, such as nodeport:30080")
	}
	return t, t.setPort(port)
}

// setPort takes the port's number or, of a Service, name.
func (t *Target) setPort(s string) error {
	if s == "" {
		return nil
	}
	n, err := parsePort(s)
	if err != nil && t.Service != "" && strings.Trim(s, "0123456789") != "" {
		if !isLabel(s) {
			return fmt.Errorf("port %s: want a number or the name of a port of the Service", quoted(s))
		}
		t.PortName = s
		return nil
	}
	t.Port = n
	return err
}

// short refuses what is longer than any question.
func short(s string) error {
	switch {
	case s == "":
		return errors.New("it is empty")
	case len(s) > longest:
		return fmt.Errorf("it has %d bytes: want at most %d", len(s), longest)
	}
	return nil
}

// protos are the protocols by the names that people write.
var protos = map[string]lb.Proto{"tcp": lb.TCP, "udp": lb.UDP, "sctp": lb.SCTP, "icmp": ICMPv4}

// cutProto takes "/PROTO" from the end. In "shop/udp", which could be either, the last part is the
// name of a Service.
func (t *Target) cutProto(s string) (string, error) {
	i := strings.LastIndexByte(s, '/')
	if i < 0 {
		return s, nil
	}
	head, word := s[:i], s[i+1:]
	if _, err := parseAddr(head); err != nil && !strings.ContainsAny(head, "/:") {
		return s, nil
	}
	if strings.ContainsRune(word, ':') {
		return s, nil // shop/x/web:80 is no name, which serviceName says
	}
	p, ok := protos[strings.ToLower(word)]
	if !ok {
		return "", fmt.Errorf("protocol %s: want tcp, udp, sctp or icmp", quoted(word))
	}
	t.Proto = p
	return head, nil
}

// splitPort cuts ":PORT" off, which an IPv6 address must be in brackets for.
func splitPort(s string) (host, port string, err error) {
	if _, err := parseAddr(s); err != errNoAddress {
		return s, "", err
	}
	if strings.HasPrefix(s, "[") {
		host, rest, closed := strings.Cut(s, "]")
		port, colon := strings.CutPrefix(rest, ":")
		switch {
		case !closed:
			return "", "", errors.New(`"[" without "]"`)
		case rest == "":
			return s, "", nil
		case !colon || port == "":
			return "", "", errors.New(`want ":PORT" behind "]"`)
		}
		return host + "]", port, nil
	}
	host, port, found := strings.Cut(s, ":")
	if found && port == "" {
		return "", "", errors.New(`there is no port behind ":"`)
	}
	if strings.ContainsRune(port, ':') {
		return "", "", errors.New(`too many ":"; an IPv6 address with a port stands in brackets, such as [fd00::1]:80`)
	}
	return host, port, nil
}

var (
	errNoAddress = errors.New("it is no IP address")
	errNoName    = errors.New("it is neither an IP address nor the name of a Service (NAMESPACE/NAME)")
)

func parseAddr(s string) (netip.Addr, error) {
	bare := s
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		bare = s[1 : len(s)-1]
	}
	a, err := netip.ParseAddr(bare)
	switch {
	case err != nil:
		return netip.Addr{}, errNoAddress
	case a.Zone() != "":
		return netip.Addr{}, errors.New("a service address has no zone")
	case bare != s && a.Is4():
		return netip.Addr{}, errors.New("an IPv4 address stands without brackets")
	}
	return a.Unmap(), nil
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || s[0] == '0' {
		return 0, fmt.Errorf("port %s: want a number from 1 to 65535", quoted(s))
	}
	return uint16(n), nil
}

// serviceName reads ns/name, name, or the name that DNS has for it: name.ns, name.ns.svc,
// name.ns.svc.cluster.local.
func serviceName(s string) (string, error) {
	ns, name, qualified := strings.Cut(s, "/")
	if !qualified {
		var domain string
		var more bool
		name, ns, qualified = strings.Cut(s, ".")
		ns, domain, more = strings.Cut(ns, ".")
		if more && domain != "svc" && !strings.HasPrefix(domain, "svc.") {
			return "", errNoName
		}
	}
	switch {
	case !isLabel(name) || qualified && !isLabel(ns):
		return "", errNoName
	case !qualified:
		return name, nil
	}
	return ns + "/" + name, nil
}

// isLabel reports whether s may be the name of a Service or namespace: of lower-case letters,
// digits and dashes.
func isLabel(s string) bool {
	return s != "" && len(s) <= 63 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}
