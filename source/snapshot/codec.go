package snapshot

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"slices"
	"time"
	"unique"

	"kube-proxy/cluster"
)

// format is the number of the encoding below. Every change of it, and of a type that it encodes,
// needs the next one.
const format = 1

// coder writes values, or reads them. One function describes each type for both directions, so that
// these cannot differ. When writing it changes no value: the store shares them. After an error it
// does nothing.
type coder struct {
	out *bufio.Writer // nil when reading
	in  []byte        // what is left to read
	err error

	// Words are texts that occur often, such as namespaces and nodes: each is spelled once.
	spelled []string          // when reading
	numbers map[string]uint64 // when writing
	places  map[cluster.Place]unique.Handle[cluster.Place]
	scratch []cluster.Endpoint
}

var errMalformed = errors.New("its content is malformed")

func newReader(content []byte) *coder {
	return &coder{in: content, places: map[cluster.Place]unique.Handle[cluster.Place]{}}
}

func newWriter(to io.Writer) *coder {
	return &coder{out: bufio.NewWriterSize(to, 64<<10), numbers: map[string]uint64{}}
}

func (c *coder) reading() bool { return c.out == nil }

// take returns the next n bytes of the input.
func (c *coder) take(n uint64) []byte {
	if n > uint64(len(c.in)) {
		c.err, c.in = errMalformed, nil
		return nil
	}
	b := c.in[:n]
	c.in = c.in[n:]
	return b
}

func (c *coder) put(b []byte) {
	if c.err == nil {
		_, c.err = c.out.Write(b)
	}
}

type integers interface {
	~int | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint64
}

func integer[T integers](c *coder, v *T) {
	if !c.reading() {
		c.put(binary.AppendUvarint(c.out.AvailableBuffer(), uint64(*v)))
		return
	}
	u, n := binary.Uvarint(c.in)
	if n <= 0 || uint64(T(u)) != u {
		c.err, c.in = errMalformed, nil
		return
	}
	c.in, *v = c.in[n:], T(u)
}

// flags are up to eight booleans in one byte.
func (c *coder) flags(all ...*bool) {
	var b uint8
	for i, f := range all {
		if *f {
			b |= 1 << i
		}
	}
	integer(c, &b)
	if c.reading() {
		for i, f := range all {
			*f = b>>i&1 == 1
		}
	}
}

func (c *coder) text(s *string) {
	n := uint64(len(*s))
	integer(c, &n)
	if c.reading() {
		*s = string(c.take(n))
	} else if c.err == nil {
		_, c.err = c.out.WriteString(*s)
	}
}

// word is a text by its number; a number that is new is followed by its text.
func (c *coder) word(s *string) {
	if !c.reading() {
		n, known := c.numbers[*s]
		if !known {
			n = uint64(len(c.numbers))
			c.numbers[*s] = n
		}
		integer(c, &n)
		if !known {
			c.text(s)
		}
		return
	}
	var n uint64
	integer(c, &n)
	if n == uint64(len(c.spelled)) && c.err == nil {
		var spelled string
		c.text(&spelled)
		c.spelled = append(c.spelled, spelled)
	}
	if n >= uint64(len(c.spelled)) {
		c.err, c.in = errMalformed, nil
		return
	}
	*s = c.spelled[n]
}

func (c *coder) name(n *cluster.Name) { c.word(&n.Namespace); c.text(&n.Name) }

func (c *coder) addr(a *netip.Addr) {
	n := uint64(a.BitLen() / 8)
	integer(c, &n)
	if c.reading() {
		var ok bool
		if *a, ok = netip.AddrFromSlice(c.take(n)); !ok && n != 0 {
			c.err = errMalformed
		}
		return
	}
	all := a.As16()
	c.put(append(c.out.AvailableBuffer(), all[len(all)-int(n):]...))
}

func (c *coder) addrPort(a *netip.AddrPort) {
	addr, port := a.Addr(), a.Port()
	c.addr(&addr)
	integer(c, &port)
	if c.reading() {
		*a = netip.AddrPortFrom(addr, port)
	}
}

func (c *coder) prefix(p *netip.Prefix) {
	addr, bits := p.Addr(), uint8(p.Bits())
	c.addr(&addr)
	integer(c, &bits)
	if c.reading() {
		if *p = netip.PrefixFrom(addr, int(bits)); !p.IsValid() {
			c.err = errMalformed
		}
	}
}

// list is a number of items, each of at least the bytes least: so no input makes room for more than
// it has.
func list[T any](c *coder, least int, all *[]T, item func(*coder, *T)) {
	n := len(*all)
	integer(c, &n)
	if c.reading() {
		if n < 0 || n > len(c.in)/least {
			c.err, c.in = errMalformed, nil
			return
		}
		*all = slices.Grow(*all, n)[:n]
		clear(*all)
	}
	for i := range *all {
		if c.err != nil {
			return
		}
		item(c, &(*all)[i])
	}
}

func (c *coder) service(s *cluster.Service) {
	c.name(&s.Name)
	integer(c, &s.Created)
	integer(c, &s.Type)
	list(c, 1, &s.ClusterIPs, (*coder).addr)
	list(c, 1, &s.ExternalIPs, (*coder).addr)
	list(c, 1, &s.LoadBalancerIPs, (*coder).addr)
	list(c, 2, &s.SourceRanges, (*coder).prefix)
	integer(c, &s.InternalPolicy)
	integer(c, &s.ExternalPolicy)
	integer(c, &s.AffinitySeconds)
	integer(c, &s.HealthCheckNodePort)
	c.flags(&s.PreserveDestination)
	list(c, 4, &s.Ports, func(c *coder, p *cluster.ServicePort) {
		c.word(&p.Name)
		integer(c, &p.Protocol)
		integer(c, &p.Port)
		integer(c, &p.NodePort)
	})
}

// slice leaves out the Service, which the caller knows, and the trigger: a restart makes no old
// change new (SV-35).
func (c *coder) slice(s *cluster.Slice) {
	c.name(&s.Name)
	c.flags(&s.IPv6)
	list(c, 3, &s.Ports, func(c *coder, p *cluster.SlicePort) {
		c.word(&p.Name)
		integer(c, &p.Protocol)
		integer(c, &p.Port)
	})
	c.scratch = c.scratch[:0]
	if !c.reading() {
		c.scratch = slices.AppendSeq(c.scratch, s.Endpoints.All())
	}
	list(c, 4, &c.scratch, (*coder).endpoint)
	if c.reading() {
		s.Endpoints = cluster.EndpointsOf(c.scratch...)
	}
}

func (c *coder) endpoint(e *cluster.Endpoint) {
	c.addr(&e.Addr)
	hinted := e.Hints != nil
	c.flags(&e.Ready, &e.Serving, &e.Terminating, &hinted)
	place := e.Place()
	c.word(&place.Node)
	c.word(&place.Zone)
	if c.reading() {
		where, known := c.places[place]
		if !known {
			where = cluster.At(place.Node, place.Zone)
			c.places[place] = where
		}
		e.Where = where
	}
	if !hinted {
		return
	}
	if e.Hints == nil {
		e.Hints = &cluster.Hints{}
	}
	list(c, 1, &e.Hints.Zones, (*coder).word)
	list(c, 1, &e.Hints.Nodes, (*coder).word)
}

func (c *coder) node(n *cluster.Node) {
	c.text(&n.Name)
	list(c, 1, &n.Addrs, (*coder).addr)
	c.text(&n.Zone)
	list(c, 2, &n.PodCIDRs, (*coder).prefix)
	c.flags(&n.Leaving)
}

// origin is what a snapshot says of itself.
func (c *coder) origin(o *Origin) {
	c.text(&o.Node)
	at := o.Written.UnixNano()
	integer(c, &at)
	if c.reading() {
		o.Written = time.Unix(0, at)
	}
	c.text(&o.Boot)
	c.text(&o.Mode)
}

func (c *coder) facts(f *cluster.Facts) {
	known := f.Node != nil
	c.flags(&known, &f.NodeGone)
	if known {
		if f.Node == nil {
			f.Node = &cluster.Node{}
		}
		c.node(f.Node)
	}
	list(c, 2, &f.CIDRs, (*coder).prefix)
	list(c, 2, &f.APIServers, (*coder).addrPort)
}

// service and its slices are one entry. more is false after the last one.
func (c *coder) entry(more *bool, s *cluster.Service, of *[]*cluster.Slice) {
	c.flags(more)
	if !*more {
		return
	}
	c.service(s)
	list(c, 5, of, func(c *coder, sl **cluster.Slice) {
		if c.reading() {
			*sl = &cluster.Slice{Service: s.Name}
		}
		c.slice(*sl)
	})
}

// snapshot reads all; what it returns counts if there is no error.
func (c *coder) snapshot() *Snapshot {
	s := &Snapshot{}
	c.origin(&s.Origin)
	c.facts(&s.facts)
	for c.err == nil {
		var more bool
		var of []*cluster.Slice
		service := &cluster.Service{}
		if c.entry(&more, service, &of); !more {
			break
		}
		s.services, s.slices = append(s.services, service), append(s.slices, of...)
	}
	if c.err == nil && len(c.in) > 0 {
		c.err = errMalformed
	}
	return s
}
