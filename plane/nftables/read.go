//go:build linux

package nftables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/nftwire"
	"kube-proxy/internal/nlconn"
	"kube-proxy/plane/diff"
)

// snapshot is what the kernel's table holds, as far as a comparison needs it.
type snapshot struct {
	present bool // there is a table of our name
	ours    bool // it is in force and has all our sets and base chains, as we make them

	chains   map[string]*kernelChain
	foreign  []string // sets that are not ours
	records  [setCount]diff.Records
	verdicts [setCount]map[string]elementVerdict
}

// kernelChain is a chain as the kernel shows it.
type kernelChain struct {
	hook   nftwire.Hook
	digest string
}

// reader reads our table by a socket.
type reader struct {
	family
	sock *socket
	sets *[setCount]setDef
}

func (p *Plane) reader() reader { return reader{p.family, p.sock, p.rules.sets} }

// request builds a message that asks for something of our table.
func (r reader) request(typ, flags uint16, attrs ...any) []byte {
	return nftwire.Request(typ, flags, r.proto, attrs...)
}

// list calls f for what the answer has of our table: old kernels answer with other tables' objects too.
func (r reader) list(ctx context.Context, request []byte, table uint16, f func(body []byte)) error {
	return r.sock.Ask(ctx, request, func(body []byte) {
		if nlconn.CStr(nlconn.Attribute(body, table)) == TableName {
			f(body)
		}
	})
}

// readTable says whether there is a table of our name, and whether its chains are in force.
func (r reader) readTable(ctx context.Context) (present, dormant bool, err error) {
	err = r.sock.Ask(ctx, r.request(unix.NFT_MSG_GETTABLE, 0, unix.NFTA_TABLE_NAME, TableName), func(body []byte) {
		present = true
		dormant = nlconn.BE32(nlconn.Attribute(body, unix.NFTA_TABLE_FLAGS))&tableDormant != 0
	})
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return present, dormant, err
}

// eachSet calls ours for those of our sets that are there as we make them, and others for all else.
func (r reader) eachSet(ctx context.Context, ours func(setIndex), others func(name string)) error {
	return r.list(ctx, r.request(unix.NFT_MSG_GETSET, unix.NLM_F_DUMP, unix.NFTA_SET_TABLE, TableName), unix.NFTA_SET_TABLE, func(body []byte) {
		name := nlconn.CStr(nlconn.Attribute(body, unix.NFTA_SET_NAME))
		i := setIndex(slices.IndexFunc(r.sets[:], func(d setDef) bool { return d.name == name }))
		switch {
		case nlconn.BE32(nlconn.Attribute(body, unix.NFTA_SET_FLAGS))&unix.NFT_SET_ANONYMOUS != 0: // goes with its rule
		case i >= 0 && r.sets[i].matches(body):
			ours(i)
		default:
			others(name)
		}
	})
}

// eachChain calls f for the chains.
func (r reader) eachChain(ctx context.Context, f func(name string, hook nftwire.Hook)) error {
	return r.list(ctx, r.request(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP), unix.NFTA_CHAIN_TABLE, func(body []byte) {
		f(nlconn.CStr(nlconn.Attribute(body, unix.NFTA_CHAIN_NAME)), nftwire.HookOf(body))
	})
}

// eachRule calls f for the rules, those of a chain in their order.
func (r reader) eachRule(ctx context.Context, f func(chain string, body []byte)) error {
	return r.list(ctx, r.request(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, unix.NFTA_RULE_TABLE, TableName), unix.NFTA_RULE_TABLE, func(body []byte) {
		f(nlconn.CStr(nlconn.Attribute(body, unix.NFTA_RULE_CHAIN)), body)
	})
}

// eachElement calls f for the elements of a set.
func (r reader) eachElement(ctx context.Context, i setIndex, f func(el []byte)) error {
	request := r.request(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, unix.NFTA_SET_ELEM_LIST_TABLE, TableName, unix.NFTA_SET_ELEM_LIST_SET, r.sets[i].name)
	return r.sock.Ask(ctx, request, func(body []byte) {
		nlconn.Attributes(nlconn.Attribute(body, unix.NFTA_SET_ELEM_LIST_ELEMENTS), func(_ uint16, el []byte) bool {
			f(el)
			return true
		})
	})
}

// readTable reads our table, with the elements of the sets that which selects, and the generation of the ruleset at the
// beginning. It tries again a few times if somebody changes the ruleset meanwhile.
func (p *Plane) readTable(ctx context.Context, which func(*setDef) bool) (*snapshot, uint32, error) {
	for try := 0; ; try++ {
		gen, err := p.sock.Generation(ctx)
		if err != nil {
			return nil, 0, fmt.Errorf("nftables %s: read the ruleset's generation: %w", p.fam, err)
		}
		s, err := p.readOnce(ctx, which)
		if err == nil {
			return s, gen, nil
		}
		if !errors.Is(err, nlconn.ErrInterrupted) || try == 9 {
			return nil, 0, fmt.Errorf("nftables %s: read the table: %w", p.fam, err)
		}
	}
}

func (p *Plane) readOnce(ctx context.Context, which func(*setDef) bool) (*snapshot, error) {
	s := &snapshot{chains: map[string]*kernelChain{}}
	present, dormant, err := p.reader().readTable(ctx)
	if s.present = present; !present {
		return s, err
	}
	if err == nil {
		err = undisturbed(func() error { s.foreign = nil; return p.readSets(ctx, s) })
	}
	if err == nil {
		err = undisturbed(func() error { clear(s.chains); return p.readChains(ctx, s) })
	}
	s.ours = s.ours && !dormant
	if err == nil && s.ours {
		err = p.readElements(ctx, s, which)
	}
	return s, err
}

// undisturbed reads something small until nobody changes the ruleset meanwhile. It takes so little time that even
// a busy neighbour leaves it a gap.
func undisturbed(read func() error) error {
	var err error
	for range 100 {
		if err = read(); !errors.Is(err, nlconn.ErrInterrupted) {
			return err
		}
	}
	return err
}

// readSets finds out whether the sets are ours.
func (p *Plane) readSets(ctx context.Context, s *snapshot) error {
	matching := 0
	err := p.reader().eachSet(ctx, func(setIndex) { matching++ }, func(name string) {
		if _, known := p.mon.index[name]; !known {
			s.foreign = append(s.foreign, name)
		}
	})
	s.ours = matching == int(setCount)
	return err
}

// matches reports whether the kernel's set is as we make it.
func (d *setDef) matches(body []byte) bool {
	dataType, dataLen := uint32(0), uint32(d.dataLen())
	if d.verdict {
		dataType, dataLen = unix.NFT_DATA_VERDICT, nlconn.BE32(nlconn.Attribute(body, unix.NFTA_SET_DATA_LEN))
	} else if d.data != nil {
		dataType = nftType(d.data)
	}
	return nlconn.BE32(nlconn.Attribute(body, unix.NFTA_SET_FLAGS)) == d.setFlags() &&
		nlconn.BE32(nlconn.Attribute(body, unix.NFTA_SET_KEY_TYPE)) == nftType(d.key) &&
		nlconn.BE32(nlconn.Attribute(body, unix.NFTA_SET_KEY_LEN)) == uint32(d.keyLen()) &&
		nlconn.BE32(nlconn.Attribute(body, unix.NFTA_SET_DATA_TYPE)) == dataType &&
		nlconn.BE32(nlconn.Attribute(body, unix.NFTA_SET_DATA_LEN)) == dataLen
}

// readChains reads the chains of our table, and a digest of their rules.
func (p *Plane) readChains(ctx context.Context, s *snapshot) error {
	err := p.reader().eachChain(ctx, func(name string, hook nftwire.Hook) { s.chains[name] = &kernelChain{hook: hook} })
	if err != nil {
		return err
	}
	for _, c := range p.rules.skeleton() {
		var is nftwire.Hook
		if k := s.chains[c.name]; k != nil {
			is = k.hook
		}
		s.ours = s.ours && is == c.hook
	}
	return p.reader().eachRule(ctx, func(chain string, body []byte) {
		if c := s.chains[chain]; c != nil {
			comment, _ := userdata.GetString(nlconn.Attribute(body, unix.NFTA_RULE_USERDATA), userdata.TypeComment)
			c.digest += comment + "\n"
		}
	})
}

// allSets are the sets whose elements are ours: all but those that packets fill.
func allSets(d *setDef) bool { return !d.dynamic() }

// smallSets are those that grow slowly, if at all, so that each audit reads them.
func smallSets(d *setDef) bool { return d.verdict || d.name == "equal-bytes" || d.name == "reserved" }

func (p *Plane) readElements(ctx context.Context, s *snapshot, which func(*setDef) bool) error {
	for i := range setCount {
		d := &p.rules.sets[i]
		s.records[i].Size = d.recordLen()
		if !which(d) {
			continue
		}
		if i == sBackends {
			big, err := p.readBig(ctx, s)
			if err != nil {
				return fmt.Errorf("elements of %s: %w", d.name, err)
			}
			if big {
				continue
			}
		}
		if d.verdict {
			s.verdicts[i] = map[string]elementVerdict{}
		}
		err := p.reader().eachElement(ctx, i, func(el []byte) { s.element(i, d, el) })
		// Others may change their tables all the time, which does no harm to what we read of ours; and of a change
		// of ours the monitor hears, so that it is looked at again.
		if errors.Is(err, nlconn.ErrInterrupted) && p.mon.silent() {
			err = nil
		}
		if err != nil {
			return fmt.Errorf("elements of %s: %w", d.name, err)
		}
	}
	return nil
}

// element adds one element of the kernel's answer to the snapshot.
func (s *snapshot) element(i setIndex, d *setDef, el []byte) {
	if d.verdict {
		key := nlconn.Attribute(nlconn.Attribute(el, unix.NFTA_SET_ELEM_KEY), unix.NFTA_DATA_VALUE)
		s.verdicts[i][string(key)] = elementVerdict{nftwire.VerdictOf(nlconn.Attribute(el, unix.NFTA_SET_ELEM_DATA))}
		return
	}
	s.records[i].Bytes = d.record(s.records[i].Bytes, el)
}

// record appends an element of the kernel's to b, as a record.
func (d *setDef) record(b, el []byte) []byte {
	value := func(attr uint16) []byte { return nlconn.Attribute(nlconn.Attribute(el, attr), unix.NFTA_DATA_VALUE) }
	b = append(b, value(unix.NFTA_SET_ELEM_KEY)...)
	if d.data != nil {
		b = append(b, value(unix.NFTA_SET_ELEM_DATA)...)
	}
	return b
}
