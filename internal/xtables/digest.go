//go:build linux

package xtables

import "hash/maphash"

// Digest identifies the content of a chain.
type Digest struct {
	sum   uint64 // 0 if comments could not be read
	Bare  uint64 // without comments
	Rules int32
}

// alike reports whether a chain that was read may equal the written one.
func (read Digest) alike(written Digest) bool {
	return read.Rules == written.Rules && (read.sum == written.sum || read.sum == 0 && read.Bare == written.Bare)
}

var seed = maphash.MakeSeed()

func DigestOf(rules []string) Digest {
	c := NewContent()
	for _, r := range rules {
		c.Add(r, true)
	}
	return c.Digest()
}

// Empty is the digest of a chain without rules.
var Empty = DigestOf(nil)

// Content collects the digest of a chain while its rules are read.
type Content struct {
	all, bare maphash.Hash
	rules     int32
	lacks     bool // comments
}

func NewContent() *Content {
	c := &Content{}
	c.all.SetSeed(seed)
	c.bare.SetSeed(seed)
	return c
}

// Add adds a rule, without comments if its source does not show them.
func (c *Content) Add(rule string, comments bool) {
	c.all.WriteString(rule)
	c.all.WriteByte('\n')
	c.bare.WriteString(WithoutComments(rule))
	c.bare.WriteByte('\n')
	c.rules++
	c.lacks = c.lacks || !comments
}

func (c *Content) Digest() Digest {
	d := Digest{c.all.Sum64(), c.bare.Sum64(), c.rules}
	if c.lacks {
		d.sum = 0
	}
	return d
}
