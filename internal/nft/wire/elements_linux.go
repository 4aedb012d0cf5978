package wire

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
)

// ElementsAtOnce is the number of elements in one request; the answers, one message each, must fit
// the socket's receive buffer.
const ElementsAtOnce = 256

// Elements reads elements of a set by their keys, ElementsAtOnce in a request, and calls found for
// each that exists, in the order of the keys. A missing set has no elements.
func (t Table) Elements(ctx context.Context, set string, keys [][]byte, found func(el []byte)) error {
	for len(keys) > 0 {
		some, answered := keys[:min(len(keys), ElementsAtOnce)], 0
		t.request = elementsRequest(t.request[:0], t.Family, t.Name, set, some)
		err := t.Ask(ctx, t.request, func(body []byte) {
			ElementsIn(body, func(el []byte) {
				answered++
				found(el)
			})
		})
		switch {
		case err == nil:
			answered = len(some)
		case errors.Is(err, unix.ENOENT) && answered < len(some):
			// The kernel stops at the first missing one; the following ones are requested again.
			answered++
		default:
			return err
		}
		keys = keys[answered:]
	}
	return nil
}

// ElementsIn calls f for the elements in the body of a message about them.
func ElementsIn(body []byte, f func(el []byte)) {
	netlink.Attributes(netlink.Attribute(body, unix.NFTA_SET_ELEM_LIST_ELEMENTS), func(_ uint16, el []byte) bool {
		f(el)
		return true
	})
}

// CatchAll reads the catch-all element of a set, which exists since Linux 5.13, and calls found if
// the set has one.
func (t Table) CatchAll(ctx context.Context, set string, found func(el []byte)) error {
	err := t.Ask(ctx, elementsRequest(nil, t.Family, t.Name, set, [][]byte{nil}), func(body []byte) {
		ElementsIn(body, found)
	})
	// Older kernels do not have such elements.
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// elementCatchAll is NFT_SET_ELEM_CATCHALL.
const elementCatchAll = 2

// elementsRequest appends to b a request for the elements of keys; a nil key means the catch-all
// element.
func elementsRequest(b []byte, family byte, table, set string, keys [][]byte) []byte {
	var e Encoder
	e.B = slices.Grow(b, 128+24*len(keys))
	at := e.Message(unix.NFT_MSG_GETSETELEM, unix.NLM_F_ACK, family, 0)
	e.Str(unix.NFTA_SET_ELEM_LIST_TABLE, table)
	e.Str(unix.NFTA_SET_ELEM_LIST_SET, set)
	list := e.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	for _, k := range keys {
		n := e.Nest(unix.NFTA_LIST_ELEM)
		if k == nil {
			e.U32(unix.NFTA_SET_ELEM_FLAGS, elementCatchAll)
		} else {
			key := e.Nest(unix.NFTA_SET_ELEM_KEY)
			e.Bytes(unix.NFTA_DATA_VALUE, k)
			e.EndNest(key)
		}
		e.EndNest(n)
	}
	e.EndNest(list)
	e.EndMessage(at)
	return e.B
}

// Verdict ends a rule, or continues in another chain. It is also the data of an element of a
// verdict map.
type Verdict struct {
	Kind  expr.VerdictKind
	Chain string // of a jump or goto
}

// The verdicts without a chain.
var (
	Drop   = Verdict{Kind: expr.VerdictDrop}
	Accept = Verdict{Kind: expr.VerdictAccept}
	Return = Verdict{Kind: expr.VerdictReturn}
)

// Jump goes through another chain, and GoTo does not come back.
func Jump(chain string) Verdict { return Verdict{expr.VerdictJump, chain} }
func GoTo(chain string) Verdict { return Verdict{expr.VerdictGoto, chain} }

// VerdictOf reads the verdict in the data of an element or of an expression (NFTA_DATA_VERDICT).
func VerdictOf(data []byte) Verdict {
	v := netlink.Attribute(data, unix.NFTA_DATA_VERDICT)
	return Verdict{
		Kind:  expr.VerdictKind(int32(netlink.BE32(netlink.Attribute(v, unix.NFTA_VERDICT_CODE)))),
		Chain: netlink.CStr(netlink.Attribute(v, unix.NFTA_VERDICT_CHAIN)),
	}
}

// String formats the verdict as the nft program does.
func (v Verdict) String() string {
	switch v.Kind {
	case expr.VerdictAccept:
		return "accept"
	case expr.VerdictDrop:
		return "drop"
	case expr.VerdictContinue:
		return "continue"
	case expr.VerdictReturn:
		return "return"
	case expr.VerdictJump:
		return "jump " + v.Chain
	case expr.VerdictGoto:
		return "goto " + v.Chain
	}
	return fmt.Sprintf("verdict %d %s", v.Kind, v.Chain)
}
