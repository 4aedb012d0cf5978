//go:build linux

package xtables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/pause"
	"kube-proxy/lb"
)

// legacyHolding asks x_tables for whole tables, for it hands out nothing less; of these it reads the chains that are asked for. That takes
// no lock of iptables, and none of the work that its programs do with a table (docs/adr/0056).
type legacyHolding struct {
	Info   *tableInfo
	family lb.Family
	there  map[string]bool // tables; to ask for another would make it
	blobs  map[Table]*blob

	// who asks: until when, and since when, so that what was read before is too old.
	ctx   context.Context
	since time.Time
	// pace bounds how much of the time tables are read, for the kernel lets nobody write one meanwhile; nil for no bound.
	pace *pacer
}

func OpenLegacy(f lb.Family, pace *pacer) (*legacyHolding, error) {
	info, err := newTableInfo(f)
	if err != nil {
		return nil, err
	}
	return &legacyHolding{Info: info, family: f, blobs: map[Table]*blob{}, pace: pace}, nil
}

// asked begins a question.
func (h *legacyHolding) asked(ctx context.Context, since time.Time) error {
	h.ctx, h.since, h.there = ctx, since, map[string]bool{}
	if h.pace != nil {
		h.pace.spent = 0
	}
	names, err := os.ReadFile("/proc/thread-self/net/" + strings.Replace(BaseName(h.family), "tables", "_tables_names", 1))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("list the tables of iptables: %w", err)
	}
	for name := range strings.FieldsSeq(string(names)) {
		h.there[name] = true
	}
	return nil
}

// pacer has who reads tables pause before the next question.
type pacer struct {
	until time.Time
	spent time.Duration // with tables, for the question of now
	Reads int
}

// How many times as long as tables were read for one question nobody reads one: more often, a reading that takes long would be in every
// writer's way.
const (
	shortPauses, longPauses = 3, 9
	longReading             = 10 * time.Millisecond
)

// read calls f. If it is the first of a question, not before the pause after the one before is over.
func (p *pacer) read(ctx context.Context, f func() error) error {
	if p == nil {
		return f()
	}
	if left := time.Until(p.until); left > 0 && p.spent == 0 {
		if !pause.For(ctx, left) {
			return ctx.Err()
		}
	}
	p.Reads++
	began := time.Now()
	err := f()
	now := time.Now()
	p.spent += now.Sub(began)
	pauses := time.Duration(shortPauses)
	if p.spent > longReading {
		pauses = longPauses
	}
	p.until = now.Add(pauses * p.spent)
	return err
}

func (h *legacyHolding) Close() {
	for _, b := range h.blobs {
		b.Free()
	}
	h.Info.Close()
}

// generation is 0: nothing tells of a rule that was exchanged for another.
func (h *legacyHolding) generation() (uint32, error) { return 0, nil }

// table returns a table, nil if there is none.
func (h *legacyHolding) table(t Table) (*blob, error) {
	b := h.blobs[t]
	if b != nil && b.begun.Before(h.since) {
		delete(h.blobs, t)
		b.Free()
		b = nil
	}
	if b != nil || !h.there[t.String()] {
		return b, nil
	}
	began := time.Time{}
	err := h.pace.read(h.ctx, func() (err error) {
		began = time.Now()
		b, err = h.Info.Read(h.family, t)
		return err
	})
	if err != nil {
		return nil, err
	}
	b.begun = began
	h.blobs[t] = b
	return b, nil
}

func (h *legacyHolding) Names(t Table) (map[string]bool, error) {
	b, err := h.table(t)
	if err != nil || b == nil {
		return nil, err
	}
	if err := b.index(); err != nil {
		return nil, fmt.Errorf("read table %s: %w", t, err)
	}
	if b.names == nil {
		b.names = make(map[string]bool, len(b.chains)+len(builtIn))
		for name := range b.chains {
			b.names[name] = true
		}
		for hook, name := range builtIn {
			b.names[name] = b.valid>>hook&1 == 1
		}
	}
	return b.names, nil
}

func (h *legacyHolding) Chain(id ChainID) (*ChainState, error) {
	b, err := h.table(id.Table)
	if err != nil || b == nil {
		return nil, err
	}
	c, err := b.chain(id.Name)
	if err != nil {
		return nil, fmt.Errorf("read chain %s of table %s: %w", id.Name, id.Table, err)
	}
	return c, nil
}

// blob is a table of x_tables: entries one after the other, in the form of struct ipt_entry, or ip6t_entry. A chain begins after an entry
// with the target ERROR, which has its name, and ends with an entry that has no conditions, and what becomes of packets that come there.
type blob struct {
	memory  []byte // all of it, from the system
	Entries []byte
	family  lb.Family
	form    entryForm
	hooks   [5]uint32 // where the built-in chains begin, by NF_INET_*
	valid   uint32    // which of them there are
	chains  map[string]uint32
	indexed bool
	names   map[string]bool // of all chains, once they were asked for
	begun   time.Time       // when it was read
}

// entryForm says where things are in an entry.
type entryForm struct{ address, ifaces, proto, flags, inverted, target, next, matches int }

var entryForms = map[lb.Family]entryForm{
	lb.IPv4: {address: 4, ifaces: 16, proto: 80, flags: 82, inverted: 83, target: 88, next: 90, matches: 112},
	lb.IPv6: {address: 16, ifaces: 64, proto: 128, flags: 131, inverted: 132, target: 140, next: 142, matches: 168},
}

// extensionHead is the size of struct xt_entry_match and xt_entry_target, without what follows.
const extensionHead = 32

// errGarbled is the error of a table that is not in the form in which the kernel hands them out.
var errGarbled = errors.New("the kernel's table is not in the form that is known")

// Read has the kernel copy a table. It has to be told the size, which may change before it copies. The memory is there before the kernel begins,
// which lets nobody write the table until it ends.
func (t *tableInfo) Read(f lb.Family, which Table) (*blob, error) {
	const getInfo, getEntries, head, tries = 64, 65, 40, 10 // IPT_SO_GET_*, IP6T_SO_GET_*; struct ipt_get_entries
	get := func(option uintptr, into unsafe.Pointer, size uint32) error {
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(t.fd), uintptr(t.level), option, uintptr(into), uintptr(unsafe.Pointer(&size)), 0)
		if errno != 0 {
			return errno
		}
		return nil
	}
	for try := 1; ; try++ {
		var info getinfo
		copy(info.name[:], which.String())
		if err := get(getInfo, unsafe.Pointer(&info), uint32(unsafe.Sizeof(info))); err != nil {
			return nil, fmt.Errorf("ask for the size of table %s: %w", which, err)
		}
		memory, err := unix.Mmap(-1, 0, head+int(info.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_POPULATE)
		if err != nil {
			return nil, fmt.Errorf("get %d bytes for table %s: %w", info.size, which, err)
		}
		copy(memory, info.name[:])
		native.PutUint32(memory[32:], info.size)
		err = get(getEntries, unsafe.Pointer(&memory[0]), uint32(len(memory)))
		if err == nil {
			return &blob{memory: memory, Entries: memory[head:], family: f, form: entryForms[f], hooks: info.entry, valid: info.hooks, chains: map[string]uint32{}}, nil
		}
		unix.Munmap(memory)
		if !errors.Is(err, unix.EAGAIN) || try == tries { // its size has changed
			return nil, fmt.Errorf("read table %s: %w", which, err)
		}
	}
}

func (b *blob) Free() { unix.Munmap(b.memory) }

// entry returns the entry at an offset, with where its target is, and the next entry.
func (b *blob) entry(at uint32) (e []byte, target int, next uint32, err error) {
	if int(at)+b.form.matches > len(b.Entries) {
		return nil, 0, 0, errGarbled
	}
	e = b.Entries[at:]
	target = int(native.Uint16(e[b.form.target:]))
	size := int(native.Uint16(e[b.form.next:]))
	if target < b.form.matches || size < target+extensionHead+4 || size > len(e) {
		return nil, 0, 0, errGarbled
	}
	return e[:size], target, at + uint32(size), nil
}

// name returns the name of the chain whose first rule is at an offset.
func (b *blob) name(at uint32) (string, error) {
	size := uint32(b.form.matches + 64) // struct xt_error_target, with its padding
	if at < size {
		return "", errGarbled
	}
	e, target, next, err := b.entry(at - size)
	if err != nil || next != at {
		return "", errGarbled
	}
	name, head := headOf(e, target)
	if !head {
		return "", errGarbled
	}
	b.chains[name] = at
	return name, nil
}

// headOf returns the name of the chain that begins after an entry, if one does.
func headOf(e []byte, target int) (name string, head bool) {
	if cstr(e[target+2:target+31]) != "ERROR" {
		return "", false
	}
	return cstr(e[target+extensionHead:]), true
}

// find returns where a chain begins: where a rule leads to it, or by a look at all entries.
func (b *blob) find(name string) (at uint32, hooked, there bool, err error) {
	for hook, n := range builtIn {
		if n == name {
			return b.hooks[hook], true, b.valid>>hook&1 == 1, nil
		}
	}
	if at, there = b.chains[name]; !there {
		if err := b.index(); err != nil {
			return 0, false, false, err
		}
		at, there = b.chains[name]
	}
	return at, false, there, nil
}

// index finds where all chains begin that are not built in.
func (b *blob) index() error {
	if b.indexed {
		return nil
	}
	for at := uint32(0); int(at) < len(b.Entries); {
		e, target, next, err := b.entry(at)
		if err != nil {
			return err
		}
		if name, head := headOf(e, target); head && int(next) < len(b.Entries) { // the last one ends the table
			b.chains[name] = next
		}
		at = next
	}
	b.indexed = true
	return nil
}

func (b *blob) chain(name string) (*ChainState, error) {
	at, hooked, there, err := b.find(name)
	if err != nil || !there {
		return nil, err
	}
	c := &ChainState{Hooked: hooked}
	for {
		e, target, next, err := b.entry(at)
		if err != nil {
			return nil, err
		}
		if b.ends(next) {
			c.drops = int32(native.Uint32(e[target+extensionHead:])) == -1 // -NF_DROP - 1
			return c, nil
		}
		r, err := b.rule(e, target)
		if err != nil {
			return nil, err
		}
		c.Rules = append(c.Rules, r)
		at = next
	}
}

// ends reports whether no entry of the same chain begins at an offset.
func (b *blob) ends(at uint32) bool {
	for hook, start := range b.hooks {
		if b.valid>>hook&1 == 1 && start == at {
			return true
		}
	}
	e, target, _, err := b.entry(at)
	if err != nil {
		return true
	}
	_, head := headOf(e, target)
	return head
}

// What the flags of an entry say, and which of its conditions are turned round.
const (
	notIn, notOut, notSource, notDestination, notProto = 1, 2, 8, 16, 64
	understoodInverted                                 = notIn | notOut | notSource | notDestination | notProto
)

// rule reads an entry.
func (b *blob) rule(e []byte, target int) (Rule, error) {
	r := &ruleBuilder{}
	form, inverted := b.form, e[b.form.inverted]
	goTo, strange := byte(2), e[form.flags]&^2
	if b.family == lb.IPv6 {
		goTo, strange = 4, e[form.flags]&^5 // the protocol is asked for
	}
	if strange != 0 || inverted&^understoodInverted != 0 {
		r.cannot("flags")
	}
	n := form.address
	for i, source := range []bool{true, false} {
		addr, mask := e[i*n:(i+1)*n], e[(2+i)*n:(3+i)*n]
		no := inverted&notDestination != 0
		if source {
			no = inverted&notSource != 0
		}
		p, ok := prefixOf(addr, mask)
		switch {
		case !ok:
			r.cannot("mask of an address")
		case p.Bits() > 0 || no:
			r.between(p, source, no)
		}
	}
	for i, in := range []bool{true, false} {
		name, mask := cstr(e[form.ifaces+16*i:form.ifaces+16*i+16]), e[form.ifaces+32+16*i:form.ifaces+48+16*i]
		length := len(mask) - len(bytes.TrimLeft(mask, "\xff"))
		if length > 0 { // one that covers no more than the letters is for all names that begin so
			r.through(in, name[:min(length, len(name))], length <= len(name), inverted&map[bool]byte{true: notIn, false: notOut}[in] != 0)
		}
	}
	if proto := native.Uint16(e[form.proto:]); proto != 0 {
		r.protocol(uint8(proto), inverted&notProto != 0)
	}
	for at := form.matches; at < target; {
		size := int(native.Uint16(e[at:]))
		if size < extensionHead || at+size > target {
			return Rule{}, errGarbled
		}
		m := e[at : at+size]
		r.readMatch(b.family, cstr(m[2:31]), m[31], m[extensionHead:])
		at += size
	}
	name, revision, info := cstr(e[target+2:target+31]), e[target+31], e[target+extensionHead:]
	if name != "" {
		r.readTarget(b.family, name, revision, info)
		return r.done(), nil
	}
	switch v := int32(native.Uint32(info)); {
	case v >= 0 && b.follows(e, uint32(v)): // without a target
	case v >= 0:
		chain, err := b.name(uint32(v))
		if err != nil {
			return Rule{}, err
		}
		r.leads(chain, e[form.flags]&goTo != 0)
	case v == -1, v == -2:
		r.ends(v == -2)
	case v == -5: // XT_RETURN
		r.returns()
	default:
		r.cannot("verdict")
	}
	return r.done(), nil
}

// follows reports whether the entry after e is at an offset.
func (b *blob) follows(e []byte, at uint32) bool {
	return uintptr(unsafe.Pointer(&b.Entries[0]))+uintptr(at) == uintptr(unsafe.Pointer(&e[0]))+uintptr(len(e))
}
