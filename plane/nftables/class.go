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

// class is the shape of a frontend's treatment, without its names and backends: the action for each
// kind of source, and the lengths of its source ranges. Frontends of one class share their chains;
// a cluster has a handful of classes. The number derives from the routes alone, so it means the
// same after a restart.
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

// chain returns the chain that does it: in the nat hooks if the action balances, else in the filter
// hooks.
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

// eighths returns a bit for each eighth of an address in which source ranges end.
func (c class) eighths() uint32 { return uint32(c >> eighthsShift) }

// eighths returns which prefix lengths the ranges of a list have. Bit i stands for the lengths in
// the i-th eighth of an address. Lengths are multiples of [ranges.Stride], so an eighth has one
// length for IPv4 and four for IPv6.
func eighths(sources []netip.Prefix) uint32 {
	var e uint32
	for _, p := range sources {
		e |= 1 << (max(0, p.Bits()-1) * 8 / p.Addr().BitLen())
	}
	return e
}

// lengths returns the prefix lengths in the eighths, longest first.
func lengths(ip rule.IP, eighths uint32) []int {
	var all []int
	for n := ip.AddrLen * 8; n > 0; n -= ranges.Stride {
		if eighths>>((n-1)/ip.AddrLen)&1 != 0 {
			all = append(all, n)
		}
	}
	return all
}

// sourcesChain returns the chain that drops sources outside the source ranges.
func (c class) sourcesChain() string { return "sources." + c.String() }

// String returns the class as chain names contain it:
// "pods-cluster.host-cluster-masq.any-local.ranges-68", where the ranges end in the sixth and in
// the last eighth of the address.
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

// simple reports whether all sources are treated alike.
func (c class) simple() bool { return c&^7 == 0 }

// valid reports whether a frontend may have this class: any program with root can write a number
// into a map.
func (c class) valid() bool {
	for _, f := range []lb.From{lb.Pods, lb.Host, lb.Anywhere} {
		if int(c.at(f)) >= len(actionNames) {
			return false
		}
	}
	return c.at(lb.Anywhere) != actionNone && c>>(eighthsShift+8) == 0
}

// classOf derives the class of a frontend that [lb.Check] has accepted.
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

// shape determines the chains that serve a set: by its scope, size and affinity. Sets of one shape
// share them.
//
// A set with affinity has two chains: one chooses a backend, the other remembers it for a time. So
// there are never more chains than sizes plus timeouts, whatever tenants write. The parts of a
// shape stand for these chains.
type shape struct {
	scope   lb.Scope
	size    uint32 // as roundSize returns; 0 in the part that remembers
	sticky  bool
	seconds uint32 // affinity timeout, as roundSeconds returns; 0 in the part that chooses
}

// parts returns one shape for each chain that serves s.
func (s shape) parts() []shape {
	if !s.sticky {
		return []shape{s}
	}
	return []shape{{s.scope, s.size, true, 0}, {s.scope, 0, true, s.seconds}}
}

// timeSteps are the units to which roundSeconds rounds. Each is used for times above sixteen times
// itself, so no time grows by a sixteenth or more. Times up to 80 s are exact.
var timeSteps = []uint32{3600, 900, 300, 60, 15, 5}

// roundSeconds rounds a session affinity timeout up, so that few values are in use, although
// tenants may choose among 86,400. It keeps common values: all minutes up to 80, five minutes up to
// four hours, quarters up to 16 hours, and whole hours.
func roundSeconds(n uint32) uint32 {
	for _, step := range timeSteps {
		if n > 16*step {
			return (n + step - 1) / step * step
		}
	}
	return n
}

// exactSizes is the size up to which each number of slots has its own balancer.
const exactSizes = 16

// roundSize returns the size of the balancer that serves a set of n slots: n, or a little more. So
// there are few balancers, whatever endpoint counts exist or existed. The kernel checks all of them
// when one is added.
func roundSize(n uint32) uint32 {
	step := sizeStep(n)
	return (n + step - 1) / step * step
}

// wholeSize returns the minimum number of slots of the sets that the balancer of that size serves.
func wholeSize(size uint32) uint32 { return size - sizeStep(size) + 1 }

// sizeStep returns the distance between sizes near n: n/8 or less.
func sizeStep(n uint32) uint32 {
	if n <= exactSizes {
		return 1
	}
	return 1 << (bits.Len32(n-1) - bits.Len32(exactSizes-1))
}

// pickTries is how often a balancer draws a slot that may be empty. For at most one in 700
// connections all draws are empty; those use the slots that always exist.
const pickTries = 3

// picks returns the numbers of slots that a balancer draws from, in order, until it finds a
// backend.
func (s shape) picks() []uint32 {
	if wholeSize(s.size) == s.size {
		return []uint32{s.size}
	}
	return append(slices.Repeat([]uint32{s.size}, pickTries), wholeSize(s.size))
}

func (s shape) compare(o shape) int {
	return cmp.Or(cmp.Compare(s.scope, o.scope), cmp.Compare(s.number(), o.number()))
}

// chain returns the name of the chain of a part: "cluster-10", or with affinity "cluster-10-sticky"
// and "cluster-sticky-10800".
func (s shape) chain() string {
	switch {
	case !s.sticky:
		return fmt.Sprintf("%s-%d", s.scope, s.size)
	case s.seconds == 0:
		return fmt.Sprintf("%s-%d-sticky", s.scope, s.size)
	}
	return fmt.Sprintf("%s-sticky-%d", s.scope, s.seconds)
}

// verdict returns the verdict that sends packets to the chain of a part. The chains of sets with
// affinity return, see [ruleset.scope].
func (s shape) verdict() wire.Verdict {
	if s.sticky {
		return wire.Jump(s.chain())
	}
	return wire.GoTo(s.chain())
}

// shapesOf returns the map from shapes of that scope to chains.
func shapesOf(s lb.Scope) setIndex {
	if s == lb.Local {
		return sLocalShapes
	}
	return sClusterShapes
}

// number returns the shape's encoding in maps: the size alone, or with affinity bit 31, the seconds
// in bits 14 to 30 and the size below.
func (s shape) number() uint32 {
	if !s.sticky {
		return s.size
	}
	return 1<<31 | s.seconds<<14 | s.size
}

// valid reports whether a set, or a part of one, may have this shape.
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

// The bits that each of the two parts keeps of the number of a shape with affinity.
const (
	sizePart = 1<<31 + 1<<14 - 1
	timePart = 1<<32 - 1<<14
)

// The maximum number of backends of a set, without and with affinity. If a set with affinity has
// more, each node serves a selection of that size, see stickable.
const (
	maxSlots       = 1 << 24
	maxStickySlots = 15 << 10
)

func seconds(d time.Duration) uint32 { return uint32(d / time.Second) }
