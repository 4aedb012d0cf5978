package ipset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
)

// Conn is a connection to the ipsets of one network namespace. Only one goroutine may use it at a
// time.
type Conn struct {
	kernel netlink.Transport
	bulk   netlink.Bulk
	batch  batch
}

// protocol is the supported version of the protocol, which kernels since 4.20 have.
const protocol = 7

// Open connects in the calling thread's network namespace. The kernel loads a module if it has one;
// see [Loaded]. The error wraps [ErrUnsupported] without ipsets, and unix.EPERM without
// CAP_NET_ADMIN.
func Open() (*Conn, error) {
	kernel, err := netlink.Open(netlink.Config{Protocol: unix.NETLINK_NETFILTER, ReceiveBuffer: receiveBuffer})
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, fmt.Errorf("ipset: netfilter's netlink is missing (CONFIG_NETFILTER_NETLINK): %w", ErrUnsupported)
	}
	if err != nil {
		return nil, fmt.Errorf("ipset: %w", err)
	}
	c, err := New(context.Background(), kernel)
	if err != nil {
		kernel.Close()
		return nil, err
	}
	return c, nil
}

// New returns a connection over a transport, which Close closes; if New fails, the caller must
// close it.
func New(ctx context.Context, kernel netlink.Transport) (*Conn, error) {
	c := &Conn{kernel: kernel, bulk: netlink.Bulk{Piece: messagesAtOnce}}
	var oldest, latest uint8
	err := c.ask(ctx, cmdProtocol, 0, nil, func(attrs []byte) error {
		latest = netlink.U8(netlink.Attribute(attrs, attrProtocol))
		oldest = cmp.Or(netlink.U8(netlink.Attribute(attrs, attrProtocolMin)), latest)
		return nil
	})
	switch {
	// Netfilter lacks this subsystem.
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return nil, fmt.Errorf("ipset: the kernel has no ipsets (CONFIG_IP_SET, the module ip_set): %w", ErrUnsupported)
	case err != nil:
		return nil, fmt.Errorf("ipset: query the protocol version: %w", err)
	case latest < protocol || oldest > protocol:
		return nil, fmt.Errorf("ipset: the kernel speaks versions %d to %d of the protocol, and this program version "+
			"%d: %w", oldest, latest, protocol, ErrUnsupported)
	}
	return c, nil
}

// Loaded reports whether the kernel has ipsets, without loading them; true if /sys does not show
// it.
func Loaded() bool {
	if _, err := os.Stat("/sys/module"); err != nil {
		return true
	}
	_, err := os.Stat("/sys/module/ip_set")
	return err == nil
}

// Close closes the connection.
func (c *Conn) Close() error { return c.kernel.Close() }

// Counters returns the totals of sent messages.
func (c *Conn) Counters() netlink.Counters { return c.bulk.Counters }

// begin begins a message.
func begin(e *netlink.Encoder, cmd, flags uint16) (at int) {
	at = e.Netfilter(unix.NFNL_SUBSYS_IPSET<<8|cmd, flags, unix.AF_INET, 0, 0)
	e.U8(attrProtocol, protocol)
	return at
}

// ask sends a request with the attributes that build appends, and calls f with the attributes of
// each answer.
func (c *Conn) ask(ctx context.Context, cmd, flags uint16, build func(*netlink.Encoder),
	f func(attrs []byte) error) error {
	e := &c.bulk.Out
	e.B = e.B[:0]
	at := begin(e, cmd, flags)
	if build != nil {
		build(e)
	}
	e.EndMessage(at)
	c.bulk.Sent(1, len(e.B))
	return c.kernel.Do(ctx, e.B, func(m netlink.Message) error {
		if f == nil || len(m.Body) < nfgenmsg {
			return nil
		}
		return f(m.Body[nfgenmsg:])
	})
}

// nfgenmsg is the length of struct nfgenmsg, with which bodies begin.
const nfgenmsg = 4

// command sends a request for a change.
func (c *Conn) command(ctx context.Context, cmd, flags uint16, doing string, build func(*netlink.Encoder)) error {
	if err := c.ask(ctx, cmd, unix.NLM_F_ACK|flags, build, nil); err != nil {
		return fmt.Errorf("%s: %w", doing, explain(err))
	}
	return nil
}

// Able returns an error that wraps [ErrUnsupported] if the kernel does not have the set's type. It
// creates no set; the kernel may load a module.
func (c *Conn) Able(ctx context.Context, s Set) error {
	err := c.ask(ctx, cmdType, 0, func(e *netlink.Encoder) {
		e.Str(attrTypeName, string(s.Type))
		e.U8(attrFamily, uint8(s.family()))
	}, nil)
	if errors.Is(err, unix.EEXIST) || errors.Is(err, errFindType) {
		return s.noType()
	}
	if err != nil {
		return fmt.Errorf("query ipsets of type %s: %w", s.Type, explain(err))
	}
	return nil
}

func (s Set) noType() error {
	module := strings.NewReplacer(":", "_", ",", "").Replace(string(s.Type))
	return fmt.Errorf("the kernel has no ipsets of type %s, %s (the module ip_set_%s): %w", s.Type, s.family(), module,
		ErrUnsupported)
}

// family returns the family for the kernel.
func (s Set) family() Family {
	if s.Type == BitmapPort {
		return 0
	}
	return s.Family
}

// Create makes a set. The error wraps unix.EEXIST if the name is in use, and [ErrUnsupported] if
// the kernel cannot have the set.
func (c *Conn) Create(ctx context.Context, s Set) error { return c.create(ctx, s, s.family()) }

func (c *Conn) create(ctx context.Context, s Set, family Family) error {
	if err := s.check(); err != nil {
		return err
	}
	err := c.command(ctx, cmdCreate, unix.NLM_F_CREATE|unix.NLM_F_EXCL, "create ipset "+s.String(),
		func(e *netlink.Encoder) {
			e.Str(attrSetName, s.Name)
			e.Str(attrTypeName, string(s.Type))
			e.U8(attrRevision, kinds[s.Type].revision)
			e.U8(attrFamily, uint8(family))
			data := e.Nest(attrData)
			if s.Type == BitmapPort {
				e.U16(attrPort|unix.NLA_F_NET_BYTEORDER, 0)
				e.U16(attrPortTo|unix.NLA_F_NET_BYTEORDER, 65535)
			} else {
				e.U32(attrHashSize|unix.NLA_F_NET_BYTEORDER, hashSize)
				e.U32(attrMaxElem|unix.NLA_F_NET_BYTEORDER, s.maxElem())
			}
			if s.SkbInfo {
				e.U32(attrCADTFlags|unix.NLA_F_NET_BYTEORDER, flagWithSkbInfo)
			}
			e.EndNest(data)
		})
	if errors.Is(err, ErrUnsupported) {
		return fmt.Errorf("create ipset %s: %w", s.Name, s.noType())
	}
	return err
}

// Ensure creates a set unless it exists. It replaces another set of that name. It replaces one of
// the same type and family atomically, with its members, also if rules use it. It replaces any
// other with an empty set if no rule uses it; otherwise the error wraps [ErrOther], and says what
// to do. created reports that the set has no earlier members.
func (c *Conn) Ensure(ctx context.Context, s Set) (created bool, err error) {
	if err := s.check(); err != nil {
		return false, err
	}
	for range 3 { // another program may do the same
		have, err := c.Header(ctx, s.Name)
		if errors.Is(err, ErrNoSet) {
			err = c.Create(ctx, s)
			if errors.Is(err, unix.EEXIST) {
				continue
			}
			return err == nil, err
		}
		if err != nil {
			return false, err
		}
		differs := have.Differs(s)
		switch {
		case differs == "":
			return false, nil
		case have.sameKind(s):
			return false, c.replace(ctx, have, s)
		case have.References > 0:
			return false, c.other(have, s, differs)
		}
		err = c.Destroy(ctx, s.Name)
		if errors.Is(err, ErrInUse) {
			return false, c.other(have, s, differs)
		} else if err != nil && !errors.Is(err, ErrNoSet) {
			return false, err
		}
	}
	return false, fmt.Errorf("ipset %s: another program creates and destroys it", s.Name)
}

func (c *Conn) other(have Header, want Set, differs string) error {
	return fmt.Errorf("ipset %s has %s and must be %s; %d rules use it, so that it cannot be replaced: "+
		"remove those (iptables-save | grep %s shows them), then run ipset destroy %s: %w", want.Name, differs, want,
		have.References, want.Name, want.Name, ErrOther)
}

// sameKind reports whether the kernel can swap the sets while rules use them.
func (h Header) sameKind(want Set) bool {
	return h.Type == want.Type && (h.Type == BitmapPort || h.Family == want.Family)
}

// Spare is the name of the temporary set of a replacement; a crash may leave it behind.
func Spare(name string) string { return name[:min(len(name), MaxName-4)] + "-new" }

// replace replaces a set of the same type and family that differs, for example in size or timeout,
// by want with its members.
func (c *Conn) replace(ctx context.Context, have Header, want Set) error {
	spare := want
	spare.Name = Spare(want.Name)
	if err := c.Destroy(ctx, spare.Name); err != nil && !errors.Is(err, ErrNoSet) {
		return err
	}
	if err := c.create(ctx, spare, have.Family); err != nil {
		return err
	}
	var ops []Op
	_, err := c.Members(ctx, want.Name, func(m Member) { ops = append(ops, Op{Set: &spare, Member: m}) })
	if err == nil {
		err = c.Do(ctx, ops, nil)
	}
	if err == nil {
		err = c.Swap(ctx, spare.Name, want.Name)
	}
	if gone := c.Destroy(ctx, spare.Name); err == nil {
		err = gone
	}
	return err
}

// Destroy destroys a set. The error wraps [ErrNoSet] if it does not exist, and [ErrInUse] if rules
// use it.
func (c *Conn) Destroy(ctx context.Context, name string) error {
	if err := checkName(name); err != nil { // without a name it would mean all sets
		return err
	}
	// Newer kernels report a missing set only with NLM_F_EXCL; older ones always do.
	return c.command(ctx, cmdDestroy, unix.NLM_F_EXCL, "destroy ipset "+name, func(e *netlink.Encoder) {
		e.Str(attrSetName, name)
	})
}

// Swap exchanges two sets of one type and family atomically, for rules too.
func (c *Conn) Swap(ctx context.Context, a, b string) error {
	if err := cmp.Or(checkName(a), checkName(b)); err != nil {
		return err
	}
	return c.command(ctx, cmdSwap, 0, fmt.Sprintf("swap ipset %s and %s", a, b), func(e *netlink.Encoder) {
		e.Str(attrSetName, a)
		e.Str(attrSetName2, b)
	})
}

// Header describes a set, without its members. The error wraps [ErrNoSet] if it does not exist.
func (c *Conn) Header(ctx context.Context, name string) (Header, error) {
	return c.list(ctx, name, flagListHeader, nil)
}

// Members calls f with each member of a set. It may miss members that others add or delete
// meanwhile. The error wraps [ErrNoSet] if the set does not exist.
func (c *Conn) Members(ctx context.Context, name string, f func(Member)) (Header, error) {
	return c.list(ctx, name, 0, f)
}

// Has reports whether a packet with the member's values matches the set; a HashIPPortNet matches by
// any prefix. Its cost does not grow with the set. The error wraps [ErrNoSet] if the set does not
// exist.
func (c *Conn) Has(ctx context.Context, name string, m Member) (bool, error) {
	if err := checkName(name); err != nil {
		return false, err
	}
	err := c.ask(ctx, cmdTest, unix.NLM_F_ACK, func(e *netlink.Encoder) {
		e.Str(attrSetName, name)
		data := e.Nest(attrData)
		appendParts(e, &m)
		e.EndNest(data)
	}, nil)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, errExist):
		return false, nil
	}
	return false, fmt.Errorf("look for %s in ipset %s: %w", m, name, explain(err))
}

// list lists a set, with its members if member is not nil.
func (c *Conn) list(ctx context.Context, name string, flags uint32, member func(Member)) (header Header, err error) {
	if err := checkName(name); err != nil {
		return header, err
	}
	err = c.ask(ctx, cmdList, unix.NLM_F_DUMP, func(e *netlink.Encoder) {
		e.Str(attrSetName, name)
		if flags != 0 {
			e.U32(attrFlags|unix.NLA_F_NET_BYTEORDER, flags)
		}
	}, func(attrs []byte) error {
		// A large set comes in parts; only the first has the header.
		if h := parseHeader(attrs); h.Type != "" {
			header = h
		}
		if member != nil {
			parseMembers(attrs, member)
		}
		return nil
	})
	if err == nil && header.Name == "" {
		err = unix.ENOENT
	}
	if err != nil {
		return Header{}, fmt.Errorf("list ipset %s: %w", name, explain(err))
	}
	return header, nil
}
