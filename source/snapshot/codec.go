package snapshot

import (
	"cmp"
	"encoding"
	"encoding/binary"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"unique"

	"kube-proxy/cluster"
)

// format is the number of the encoding below. Every change of it, and of a type that it encodes,
// needs the next one.
const format = 2

// coder writes values, or reads them, as their types say. One function has both directions, so that
// these cannot differ. When writing it changes no value: the store shares them. After an error it
// does nothing.
type coder struct {
	b       []byte // written, or left to read
	reading bool
	err     error // of reading

	// Words are texts that occur often, such as namespaces and nodes: each is spelled once.
	words   []string
	numbers map[string]uint64 // when writing

	binary    []byte // scratch
	endpoints []cluster.Endpoint
}

var errMalformed = errors.New("its content is malformed")

// take returns the next n bytes of the input.
func (c *coder) take(n uint64) []byte {
	if n > uint64(len(c.b)) {
		c.err, c.b = errMalformed, nil
		return nil
	}
	b := c.b[:n]
	c.b = c.b[n:]
	return b
}

// number writes n, or reads another number; it returns the number.
func (c *coder) number(n uint64) uint64 {
	if !c.reading {
		c.b = binary.AppendUvarint(c.b, n)
		return n
	}
	n, size := binary.Uvarint(c.b)
	size = cmp.Or(size, -1)
	c.take(uint64(size)) // of a negative one there is not so much
	return n
}

func (c *coder) text(s *string) {
	n := c.number(uint64(len(*s)))
	if c.reading {
		*s = string(c.take(n))
	} else {
		c.b = append(c.b, *s...)
	}
}

// word is a text by its number; a number that is new is followed by its text.
func (c *coder) word(s *string) {
	next := uint64(len(c.words))
	n, known := c.numbers[*s]
	if !known {
		n = next
	}
	switch n = c.number(n); {
	case n == next:
		c.text(s)
		if c.words = append(c.words, *s); !c.reading {
			c.numbers[*s] = n
		}
	case n > next:
		c.err = errMalformed
	case c.reading:
		*s = c.words[n]
	}
}

// takeBack removes what was written since there were so many words.
func (c *coder) takeBack(words int) {
	for _, w := range c.words[words:] {
		delete(c.numbers, w)
	}
	c.b, c.words = c.b[:0], c.words[:words]
}

// binaryType is a type of the standard library that has an encoding: addresses, times.
type binaryType interface {
	encoding.BinaryAppender
	encoding.BinaryUnmarshaler
}

// special codes the types that have no exported fields, or that occur often.
func (c *coder) special(to any) bool {
	switch v := to.(type) {
	case *cluster.Name:
		c.word(&v.Namespace)
		c.text(&v.Name)
	case *unique.Handle[cluster.Place]:
		var place cluster.Place
		if *v != (unique.Handle[cluster.Place]{}) {
			place = v.Value()
		}
		c.word(&place.Node)
		c.word(&place.Zone)
		if c.reading {
			*v = cluster.At(place.Node, place.Zone)
		}
	case *cluster.Endpoints:
		c.endpoints = slices.AppendSeq(c.endpoints[:0], v.All())
		c.code(&c.endpoints)
		if c.reading {
			*v = cluster.EndpointsOf(c.endpoints...)
		}
	case binaryType:
		if !c.reading {
			c.binary, _ = v.AppendBinary(c.binary[:0]) // these types never fail
			c.number(uint64(len(c.binary)))
			c.b = append(c.b, c.binary...)
			break
		}
		err := v.UnmarshalBinary(c.take(c.number(0)))
		if p, ok := to.(*netip.Prefix); err != nil || ok && !p.IsValid() {
			c.err = errMalformed
		}
	default:
		return false
	}
	return true
}

// code writes or reads the value that to points to.
func (c *coder) code(to any) { c.value(reflect.ValueOf(to).Elem()) }

func (c *coder) value(v reflect.Value) {
	if c.err != nil {
		return
	}
	switch kind := v.Kind(); kind {
	case reflect.Struct:
		if c.special(v.Addr().Interface()) {
			return
		}
		for i := range v.NumField() {
			c.value(v.Field(i))
		}
	case reflect.Slice:
		n := int(c.number(uint64(v.Len())))
		if c.reading {
			v.SetLen(0)
		}
		for i := 0; i < n && c.err == nil; i++ {
			if c.reading {
				if i == v.Cap() {
					v.Grow(min(n-i, 64+i)) // memory follows what was read
				}
				v.SetLen(i + 1)
				v.Index(i).SetZero()
			}
			c.value(v.Index(i))
		}
	case reflect.Pointer:
		if !c.there(!v.IsNil()) {
			break
		}
		if c.reading {
			v.Set(reflect.New(v.Type().Elem()))
		}
		c.value(v.Elem())
	case reflect.String:
		c.word(v.Addr().Interface().(*string))
	case reflect.Bool:
		if c.there(v.Bool()) && c.reading {
			v.SetBool(true)
		}
	default:
		c.integer(v)
	}
}

// there writes a boolean, or reads another one.
func (c *coder) there(is bool) bool {
	n := uint64(0)
	if is {
		n = 1
	}
	return c.number(n) == 1
}

func (c *coder) integer(v reflect.Value) {
	if v.CanInt() {
		n := int64(c.number(uint64(v.Int())))
		if !c.reading {
			return
		}
		if v.OverflowInt(n) {
			c.err = errMalformed
		}
		v.SetInt(n)
		return
	}
	n := c.number(v.Uint())
	if !c.reading {
		return
	}
	if v.OverflowUint(n) {
		c.err = errMalformed
	}
	v.SetUint(n)
}
