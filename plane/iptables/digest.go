//go:build linux

package iptables

import "hash/maphash"

// digest stands for the content of a chain.
type digest struct {
	sum   uint64 // 0 where comments were not to be read
	bare  uint64 // without comments
	rules int32
}

// alike reports whether a chain that was read may be one that was written so.
func (read digest) alike(written digest) bool {
	return read.rules == written.rules && (read.sum == written.sum || read.sum == 0 && read.bare == written.bare)
}

var seed = maphash.MakeSeed()

func digestOf(rules []string) digest {
	c := newContent()
	for _, r := range rules {
		c.add(r, true)
	}
	return c.digest()
}

// empty is the digest of a chain without rules.
var empty = digestOf(nil)

// content is a chain while its rules are read.
type content struct {
	all, bare maphash.Hash
	rules     int32
	lacks     bool // comments
}

func newContent() *content {
	c := &content{}
	c.all.SetSeed(seed)
	c.bare.SetSeed(seed)
	return c
}

// add adds a rule, which has its comments, or where nothing shows them has none.
func (c *content) add(rule string, comments bool) {
	c.all.WriteString(rule)
	c.all.WriteByte('\n')
	c.bare.WriteString(WithoutComments(rule))
	c.bare.WriteByte('\n')
	c.rules++
	c.lacks = c.lacks || !comments
}

func (c *content) digest() digest {
	d := digest{c.all.Sum64(), c.bare.Sum64(), c.rules}
	if c.lacks {
		d.sum = 0
	}
	return d
}

// print is a chain as it was written, and as iptables-save prints that.
type print struct{ written, printed digest }
