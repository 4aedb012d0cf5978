package report

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// Redactor replaces names of objects and nodes, hosts of URLs, and addresses by pseudonyms. Make
// one with [NewRedactor]. First [Redactor.Learn] reads all answers, then [Redactor.JSON] redacts
// each.
//
// Two addresses with a common prefix have pseudonyms with a common prefix of the same length, so a
// range still contains its addresses; the first byte stays. Names that every cluster has stay, and
// so do names of ports.
type Redactor struct {
	key   [32]byte
	names map[string]string // pseudonyms by name
	count map[string]int    // by kind
	addrs map[netip.Addr]netip.Addr
}

// NewRedactor returns a Redactor with a random key.
func NewRedactor() *Redactor {
	r := &Redactor{names: map[string]string{}, count: map[string]int{}, addrs: map[netip.Addr]netip.Addr{}}
	rand.Read(r.key[:]) // it never fails
	return r
}

// common are names that identify no cluster.
var common = []string{"", "default", "kube-system", "kube-public", "kube-node-lease", "kubernetes", "kube-dns", "node"}

// kinds are the fields whose value is a name, with the kind of that name.
var kinds = map[string]string{"namespace": "namespace", "name": "service", "node": "node", "elsewhere": "node",
	"hostnameOverride": "node", "zone": "zone", "forZones": "zone", "forNodes": "node", "pod": "pod"}

// keptFields have values of a fixed set, or of this program.
var keptFields = []string{"state", "severity", "type", "kind", "protocol", "proto", "family", "do", "mode",
	"configuredMode", "version", "apiVersion", "internalTrafficPolicy", "externalTrafficPolicy"}

// Learn finds the names in an answer.
func (r *Redactor) Learn(answer json.RawMessage) error {
	value, err := decode(answer)
	if err != nil {
		return err
	}
	walk("", value, func(field, text string) string {
		switch kind := kinds[field]; {
		case kind != "":
			r.learn(kind, text)
		case field == "service" || field == "services" || field == "object":
			namespace, service, found := strings.Cut(text, "/")
			if found {
				r.learn("namespace", namespace)
				service, _, _ = strings.Cut(service, ":")
				r.learn("service", service)
			}
		}
		return text
	})
	return nil
}

func (r *Redactor) learn(kind, name string) {
	if slices.Contains(common, name) || r.names[name] != "" {
		return
	}
	r.count[kind]++
	r.names[name] = fmt.Sprintf("%s-%d", kind, r.count[kind])
}

// JSON returns an answer with pseudonyms, indented.
func (r *Redactor) JSON(answer json.RawMessage) ([]byte, error) {
	value, err := decode(answer)
	if err != nil {
		return nil, err
	}
	value = walk("", value, func(field, text string) string {
		if slices.Contains(keptFields, field) {
			return text
		}
		return r.Text(text)
	})
	return json.MarshalIndent(value, "", "  ")
}

// decode keeps the digits of numbers.
func decode(raw json.RawMessage) (value any, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	err = d.Decode(&value)
	return value, err
}

// walk returns value with each string in it replaced by the result of f, which receives the name of
// the innermost field that holds the string. Names of fields stay.
func walk(field string, value any, f func(field, text string) string) any {
	switch v := value.(type) {
	case string:
		return f(field, v)
	case []any:
		for i := range v {
			v[i] = walk(field, v[i], f)
		}
	case map[string]any:
		for name := range v {
			v[name] = walk(name, v[name], f)
		}
	}
	return value
}

var (
	addressText = regexp.MustCompile(`(?:\d{1,3}(?:\.\d{1,3}){3}|` +
		`[0-9A-Fa-f]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*)(?:/\d{1,3})?`)
	hostText = regexp.MustCompile(`(https?://)([A-Za-z0-9.-]*[A-Za-z][A-Za-z0-9.-]*)`)
	nameText = regexp.MustCompile(`[a-z0-9A-Z](?:[a-z0-9A-Z.-]*[a-z0-9A-Z])?`)
)

// Text returns a text with pseudonyms.
func (r *Redactor) Text(s string) string {
	s = hostText.ReplaceAllStringFunc(s, func(url string) string {
		m := hostText.FindStringSubmatch(url)
		r.learn("host", m[2])
		return m[1] + m[2]
	})
	// Names first: pseudonyms of addresses contain no names.
	s = nameText.ReplaceAllStringFunc(s, r.name)
	return addressText.ReplaceAllStringFunc(s, r.address)
}

// name returns the pseudonym of a word, or of the parts between its dots, as in web.shop.svc.
func (r *Redactor) name(word string) string {
	if to := r.names[word]; to != "" {
		return to
	}
	if _, err := netip.ParseAddr(word); err == nil {
		return word
	}
	parts := strings.Split(word, ".")
	for i, part := range parts {
		if to := r.names[part]; to != "" {
			parts[i] = to
		}
	}
	return strings.Join(parts, ".")
}

func (r *Redactor) address(text string) string {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return netip.PrefixFrom(r.Addr(prefix.Addr()), prefix.Bits()).Masked().String()
	}
	bare, rest, _ := strings.Cut(text, "/")
	end := strings.TrimRight(bare, ".:") // the end of a sentence
	addr, err := netip.ParseAddr(end)
	if err != nil {
		return text
	}
	if bare = r.Addr(addr).String() + bare[len(end):]; rest != "" {
		bare += "/" + rest
	}
	return bare
}

// Addr returns the pseudonym of an address. Addresses with a meaning of their own stay: the
// unspecified, loopback, link-local and multicast ones.
func (r *Redactor) Addr(a netip.Addr) netip.Addr {
	if a.IsUnspecified() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() {
		return a
	}
	if a.Is4In6() {
		return netip.AddrFrom16(r.Addr(a.Unmap()).As16())
	}
	if to, known := r.addrs[a]; known {
		return to
	}
	from := a.AsSlice()
	to := slices.Clone(from)
	// The first byte stays, so that no pseudonym becomes a loopback or multicast address. Whether
	// another bit changes depends on the bits before it alone: equal prefixes stay equal.
	for bit := 8; bit < 8*len(from); bit++ {
		mac := hmac.New(sha256.New, r.key[:])
		mac.Write([]byte{byte(len(from)), byte(bit)})
		head, _ := a.WithZone("").Prefix(bit) // bit is in range
		mac.Write(head.Addr().AsSlice())
		to[bit/8] ^= mac.Sum(nil)[0] & 1 << (7 - bit%8)
	}
	out, _ := netip.AddrFromSlice(to) // 4 or 16 bytes
	r.addrs[a] = out
	return out
}
