//go:build linux

package nftables

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/plane/internal/ranges"
)

// Render returns the objects that a plane on an empty machine writes for the table, in the language
// of nft(8): nft -f loads it. It needs no kernel and changes nothing. It leaves out frontends that
// cannot be written and names them in its error, which comes with the rest of the text. Equal
// tables give equal text.
//
// A plane that is reset to the same table on top of the loaded text finds no difference: sets,
// elements, chains and comments of rules are its own. The rules have the same meaning in other
// words, because the language cannot express all that the kernel can:
//
//   - The value of a map that is part of the key of another map is in a register, which the
//     language cannot name. The text stores it in ct mark, with session affinity also in meta
//     priority. So loaded text leaves a number in the connection's mark and in the priority of its
//     first packet, which the plane does not.
//   - A rule that translates first matches the protocols that have ports. All frontends have one.
//   - With session affinity a client's entry gets a new timeout before the rule knows whether its
//     backend still exists. If it does not, the next rule still deletes the entry.
//   - The seed of the client hash, which the plane draws at random, is constant.
func Render(cfg Config, want *lb.Table) ([]byte, error) {
	p, err := offline(cfg)
	if err != nil {
		return nil, err
	}
	return p.render(want)
}

func (p *Plane) render(want *lb.Table) ([]byte, error) {
	for _, name := range []string{want.Node.Pods.Interface, want.Node.Pods.InterfacePrefix} {
		if strings.ContainsAny(name, `"\*`) || strings.Map(printable, name) != name {
			return nil, fmt.Errorf("nftables %s: interface name %q has characters that nft cannot express", p.ip.Family,
				name)
		}
	}
	p.rules.node, p.rules.seed = want.Node, 1
	st, refused := p.desired(&snapshot{}, want, slices.Values(want.Sorted()))
	d := &document{change: p.newChange(st), about: newAbout(wanted{st: st, defs: p.rules.sets})}
	d.records()
	chains, verdicts := d.structure()
	d.line(0, "# The rules of kube-proxy in mode nftables for %s. The answer of a map that is part of the key of "+
		"another is", p.ip.Family)
	d.line(0, "# held in a register by the rules in the kernel; here ct mark and meta priority stand for it.")
	d.line(0, "table %s %s {", p.ip.Name(), TableName)
	for i := range setCount {
		d.set(i, verdicts[i])
	}
	for _, c := range chains {
		d.chain(c)
	}
	d.line(0, "}")
	return d.text.Bytes(), refused.err
}

// document is the text under construction.
type document struct {
	*change
	about    about
	text     bytes.Buffer
	elements [setCount][][]byte // records
}

func (d *document) line(indent int, format string, args ...any) {
	for range indent {
		d.text.WriteByte('\t')
	}
	fmt.Fprintf(&d.text, format, args...)
	d.text.WriteByte('\n')
}

// records sorts the elements.
func (d *document) records() {
	d.st.records(func(i setIndex, rec []byte) { d.elements[i] = append(d.elements[i], bytes.Clone(rec)) })
	for i := range d.elements {
		slices.SortFunc(d.elements[i], inOrder(&d.sets[i]))
	}
}

// inOrder returns a comparison of a set's records in numerical order.
func inOrder(d *wire.Set) func(a, b []byte) int {
	return func(a, b []byte) int {
		for _, f := range d.Key {
			c := bytes.Compare(a[:f.Size], b[:f.Size])
			if f.Number {
				c = cmp.Compare(netlink.Order.Uint32(a), netlink.Order.Uint32(b))
			}
			if c != 0 {
				return c
			}
			a, b = a[f.Size:], b[f.Size:]
		}
		return bytes.Compare(a, b)
	}
}

func (d *document) set(i setIndex, verdicts map[string]wire.Verdict) {
	def := &d.sets[i]
	d.text.WriteByte('\n')
	d.line(1, "%s {", def)
	d.line(2, "%s", types(def))
	if def.Size != 0 {
		d.line(2, "size %d", def.Size)
	}
	if def.Dynamic() && def.Flags&unix.NFT_SET_TIMEOUT == 0 {
		d.line(2, "flags dynamic")
	} else if def.Dynamic() {
		d.line(2, "flags dynamic, timeout")
	}
	d.line(2, "comment %q", def.Comment)
	if len(d.elements[i])+len(verdicts) > 0 {
		d.line(2, "elements = {")
		if i == sEqualBytes {
			d.equalBytes()
		} else {
			for _, rec := range d.elements[i] {
				d.element(recordText(def, rec), d.about.record(i, rec))
			}
		}
		order := inOrder(def)
		for _, key := range slices.SortedFunc(maps.Keys(verdicts),
			func(a, b string) int { return order([]byte(a), []byte(b)) }) {
			d.element(fmt.Sprintf("%s : %s", def.Key.Text([]byte(key)), verdicts[key]),
				aboutVerdict(i, []byte(key), verdicts[key]))
		}
		d.line(2, "}")
	}
	d.line(1, "}")
}

// equalBytes writes the constant elements in a few lines.
func (d *document) equalBytes() {
	for line := range slices.Chunk(d.elements[sEqualBytes], 16) {
		var all []string
		for _, rec := range line {
			all = append(all, recordText(&d.sets[sEqualBytes], rec))
		}
		d.element(strings.Join(all, ", "), "")
	}
}

func (d *document) element(text, about string) {
	if about != "" {
		about = " # " + strings.Map(printable, about)
	}
	d.line(3, "%s,%s", text, about)
}

func (d *document) chain(c rule.Chain) {
	d.text.WriteByte('\n')
	d.line(1, "chain %s {", c.Name)
	if h := c.Hook; c.IsBase() {
		d.line(2, "%s; policy accept;", h)
	}
	for _, ru := range c.Rules {
		d.line(2, "%s", ru.Text())
	}
	d.line(1, "}")
}

// types returns the types of the set's elements.
func types(d *wire.Set) string {
	word, name := "type ", func(f wire.Field) string { return f.Type.Name }
	if d.ByExpression() {
		word, name = "typeof ", func(f wire.Field) string { return f.Expression.Text }
	}
	text := word + d.Key.Join(name)
	if d.Verdict {
		return text + " : verdict"
	} else if d.Data != nil {
		return text + " : " + d.Data.Join(name)
	}
	return text
}

// recordText formats a record.
func recordText(d *wire.Set, rec []byte) string {
	text := d.Key.Text(rec)
	if d.Data != nil {
		text += " : " + d.Data.Text(rec[d.KeyLen():])
	}
	return text
}

// about finds the objects that an element belongs to, for comments.
type about struct {
	wanted
	services map[netip.Addr]string // by cluster IP
	lists    map[uint32]string     // by number: a Service that uses the list
}

func newAbout(w wanted) about {
	a := about{w, map[netip.Addr]string{}, map[uint32]string{}}
	for _, r := range w.st.rows {
		if isClusterIP(r.front) {
			keepLeast(a.services, r.front.Key.Addr, lb.OwnerOf(r.front.Service), strings.Compare)
		}
		if r.list != nil {
			keepLeast(a.lists, r.list.Number, r.front.Service, strings.Compare)
		}
	}
	return a
}

func (a *about) record(i setIndex, rec []byte) string {
	k, _ := rowKey(i, rec, a.defs[i].Key[0].Size)
	switch i {
	case sSourceRanges:
		list, p := ranges.ParseKey(rec)
		return fmt.Sprintf("%s: %s", a.lists[list], p)
	case sServices, sNodePorts:
		return a.frontend(k, true)
	case sSourceLists:
		return a.frontend(k, false)
	case sClusterSets, sLocalSets, sNodePortClusterSets, sNodePortLocalSets:
		return a.set(netlink.Order.Uint32(rec[len(rec)-4:])).source.ID.String()
	case sSetShapes:
		s := a.set(numberIn(i, rec))
		text := fmt.Sprintf("%s: %d backends", s.source.ID, s.held.Len())
		if s.held.Len() == 1 {
			text = strings.TrimSuffix(text, "s")
		}
		if s.seconds > 0 {
			text += fmt.Sprintf(", clients stay for %d s", s.seconds)
		}
		return text
	case sBackends, sMembers, sMemberBackends:
		return a.set(numberIn(i, rec)).source.ID.String()
	case sClusterIPs:
		return a.services[wire.ParseAddr(rec)]
	}
	return ""
}

func (a *about) frontend(k lb.Key, withClass bool) string {
	r := a.st.rows[k]
	text := r.front.Service + " " + r.front.Kind.String()
	if withClass {
		text += ": " + r.class.String()
	}
	return text
}

// aboutVerdict names the class, unless the chain's name contains it.
func aboutVerdict(i setIndex, key []byte, v wire.Verdict) string {
	name := class(netlink.Order.Uint32(key)).String()
	if i != sFilterClasses && i != sNATClasses || strings.HasSuffix(v.Chain, "."+name) {
		return ""
	}
	return name
}

// printable replaces characters that would end a comment.
func printable(r rune) rune {
	if !unicode.IsPrint(r) {
		return '?'
	}
	return r
}
