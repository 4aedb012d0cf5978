//go:build linux

package nftables

import (
	"cmp"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/plane/internal/ranges"
)

// class is the shape of a frontend's treatment without its names and backends: what each kind of source
// meets, and how long the source ranges are. Frontends of one class share their chains; a cluster has a
// handful. The number is derived from the routes alone, so it means the same after a restart.
//
//	bits 0-2 route from anywhere, 3-5 from the host, 6-8 from pods (0: no such route), 9-16 the lengths of the
//	source ranges, see [eighths] (0: open to all)
type class uint32

// action is what one route does.
type action uint32

const (
	actionNone action = iota
	actionReject
	actionDrop
	actionCluster
	actionClusterMasq
	actionLocal
	actionLocalMasq
)

const eighthsShift = 9

var actionNames = [...]string{"", "reject", "drop", "cluster", "cluster-masq", "local", "local-masq"}

func (a action) balances() bool { return a >= actionCluster }

// chain is the chain that does it, in the nat hooks for those that balance, else in the filter hooks.
func (a action) chain() string {
	if a == actionReject {
		return "no-backend" // "reject" is a word of the nft language
	}
	return actionNames[a]
}

func (a action) verdict() wire.Verdict {
	if a == actionDrop {
		return wire.Drop
	}
	return wire.GoTo(a.chain())
}

func (c class) at(f lb.From) action { return action(c>>shiftOf(f)) & 7 }

func shiftOf(f lb.From) int {
	switch f {
	case lb.Pods:
		return 6
	case lb.Host:
		return 3
	}
	return 0
}

// eighths has a bit for each eighth of an address in which source ranges end.
func (c class) eighths() uint32 { return uint32(c >> eighthsShift) }

// eighths says which lengths the ranges of a list have: bit i stands for those in the i-th eighth of an address, of
// which there is one for IPv4 and there are four for IPv6.
func eighths(sources []netip.Prefix) uint32 {
	var e uint32
	for _, p := range sources {
		e |= 1 << (max(0, p.Bits()-1) * 8 / p.Addr().BitLen())
	}
	return e
}

// lengths are the lengths of ranges in the eighths, the longest first.
func lengths(ip rule.IP, eighths uint32) []int {
	var all []int
	for n := ip.AddrLen * 8; n > 0; n -= ranges.Stride {
		if eighths>>((n-1)/ip.AddrLen)&1 != 0 {
			all = append(all, n)
		}
	}
	return all
}

// sourcesChain is the chain that drops whom the source ranges leave out.
func (c class) sourcesChain() string { return "sources." + c.String() }

// String returns the class as it stands in chain names, "pods-cluster.host-cluster-masq.any-local.ranges-68": the ranges
// end in the sixth and in the last eighth of the address.
func (c class) String() string {
	var parts []string
	for i, f := range []lb.From{lb.Pods, lb.Host, lb.Anywhere} {
		if a := c.at(f); a != actionNone {
			parts = append(parts, [...]string{"pods-", "host-", "any-"}[i]+actionNames[a])
		}
	}
	if e := c.eighths(); e != 0 {
		ranges := "ranges-"
		for i := range 8 {
			if e>>i&1 != 0 {
				ranges += strconv.Itoa(i + 1)
			}
		}
		parts = append(parts, ranges)
	}
	return strings.Join(parts, ".")
}

// simple reports whether every source is treated alike.
func (c class) simple() bool { return c&^7 == 0 }

// valid reports whether the class is one that a frontend may have: anybody can write a number into a map.
func (c class) valid() bool {
	for _, f := range []lb.From{lb.Pods, lb.Host, lb.Anywhere} {
		if int(c.at(f)) >= len(actionNames) {
			return false
		}
	}
	return c.at(lb.Anywhere) != actionNone && c>>(eighthsShift+8) == 0
}

// classOf derives the class of a frontend that [lb.Check] has found right.
func classOf(f *lb.Frontend) class {
	c := class(eighths(f.Sources)) << eighthsShift
	for _, r := range f.Routes {
		c |= class(actionOf(r)) << shiftOf(r.From)
	}
	return c
}

func actionOf(r lb.Route) action {
	switch r.Do {
	case lb.Reject:
		return actionReject
	case lb.Drop:
		return actionDrop
	}
	a := actionCluster
	if r.To.ID.Scope == lb.Local {
		a = actionLocal
	}
	if r.Masq {
		a++
	}
	return a
}

// shape is what decides by which chains a set is served: its scope, size and affinity. Sets of one shape share them.
//
// Those with affinity have two, so that there are no more chains than sizes and times together, whatever tenants write: one
// chooses a backend, the other remembers it for a time. The parts of a shape stand for them.
type shape struct {
	scope   lb.Scope
	size    uint32 // that of roundSize; 0 in the part that remembers
	sticky  bool
	seconds uint32 // of affinity, those of roundSeconds; 0 in the part that chooses
}

// parts returns a shape for each chain that serves s.
func (s shape) parts() []shape {
	if !s.sticky {
		return []shape{s}
	}
	return []shape{{s.scope, s.size, true, 0}, {s.scope, 0, true, s.seconds}}
}

// timeSteps are what roundSeconds rounds to. Each is used for times above sixteen times itself, so no time becomes longer by a
// sixteenth or more. Up to 80 s each second counts.
var timeSteps = []uint32{3600, 900, 300, 60, 15, 5}

// roundSeconds rounds a time of session affinity up, so that few times are in use, though tenants may choose among 86,400.
// What people choose stays: all minutes up to 80, five minutes up to four hours, quarters up to 16 hours, and whole hours.
func roundSeconds(n uint32) uint32 {
	for _, step := range timeSteps {
		if n > 16*step {
			return (n + step - 1) / step * step
		}
	}
	return n
}

// exactSizes is the size up to which each number of slots has a balancer of its own.
const exactSizes = 16

// roundSize returns the size of the balancer that serves a set of n slots: n, or a little more, so that there are few
// balancers, whatever numbers of endpoints there are and have been. The kernel looks at all of them when one comes.
func roundSize(n uint32) uint32 {
	step := sizeStep(n)
	return (n + step - 1) / step * step
}

// wholeSize returns a number of slots that each set served by that balancer has.
func wholeSize(size uint32) uint32 { return size - sizeStep(size) + 1 }

// sizeStep is the distance of the sizes about n: an eighth of n at most.
func sizeStep(n uint32) uint32 {
	if n <= exactSizes {
		return 1
	}
	return 1 << (bits.Len32(n-1) - bits.Len32(exactSizes-1))
}

// pickTries is how often a balancer draws a slot that may not be there. Once in 700 connections at most none is there;
// those then go to the slots that are there for certain.
const pickTries = 3

// picks are the numbers of slots that a balancer draws from, one after the other until there is a backend.
func (s shape) picks() []uint32 {
	if wholeSize(s.size) == s.size {
		return []uint32{s.size}
	}
	return append(slices.Repeat([]uint32{s.size}, pickTries), wholeSize(s.size))
}

func (s shape) compare(o shape) int {
	return cmp.Or(cmp.Compare(s.scope, o.scope), cmp.Compare(s.number(), o.number()))
}

// chain is the name of the chain of a part: "cluster-10", or with affinity "cluster-10-sticky" and "cluster-sticky-10800".
func (s shape) chain() string {
	switch {
	case !s.sticky:
		return fmt.Sprintf("%s-%d", s.scope, s.size)
	case s.seconds == 0:
		return fmt.Sprintf("%s-%d-sticky", s.scope, s.size)
	}
	return fmt.Sprintf("%s-sticky-%d", s.scope, s.seconds)
}

// verdict leads to the chain of a part. Those of sets with affinity return, see [ruleset.scope].
func (s shape) verdict() wire.Verdict {
	if s.sticky {
		return wire.Jump(s.chain())
	}
	return wire.GoTo(s.chain())
}

// shapes is the map from shapes of that scope to chains.
func shapesOf(s lb.Scope) setIndex {
	if s == lb.Local {
		return sLocalShapes
	}
	return sClusterShapes
}

// number is the shape as it stands in maps: the size alone, or with affinity bit 31, the seconds in bits 14
// to 30 and the size below.
func (s shape) number() uint32 {
	if !s.sticky {
		return s.size
	}
	return 1<<31 | s.seconds<<14 | s.size
}

// valid reports whether a set, or a part of one, may have the shape.
func (s shape) valid() bool {
	if !s.sticky {
		return s.size > 0 && s.size <= roundSize(maxSlots) && s.size == roundSize(s.size)
	}
	return (s.size == 0) != (s.seconds == 0) && s.size <= roundSize(maxStickySlots) && s.size == roundSize(s.size)
}

// parseShape is the inverse of number.
func parseShape(scope lb.Scope, number uint32) shape {
	if number>>31 == 0 {
		return shape{scope: scope, size: number}
	}
	return shape{scope: scope, sticky: true, size: number & (1<<14 - 1), seconds: number >> 14 & (1<<17 - 1)}
}

// What the numbers of the two parts have of that of a shape with affinity.
const (
	sizePart = 1<<31 + 1<<14 - 1
	timePart = 1<<32 - 1<<14
)

// The most backends of a set, without and with affinity. Where a set with affinity has more, each node serves so many of them,
// see stickable.
const (
	maxSlots       = 1 << 24
	maxStickySlots = 15 << 10
)

func seconds(d time.Duration) uint32 { return uint32(d / time.Second) }
