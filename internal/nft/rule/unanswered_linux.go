package rule

import (
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
)

// Bits of a connection's status, as nf_conntrack_common.h has them.
const (
	statusSeenReply = 1 << 1 // IPS_SEEN_REPLY
	statusConfirmed = 1 << 3 // IPS_CONFIRMED
)

// Matches for packets of unanswered connections.
var (
	// Retransmitted matches packets of a connection whose first packet has passed all rules before,
	// and which nothing has answered.
	Retransmitted = Statement{"ct status & (seen-reply | confirmed) == confirmed", match("",
		ctStatus.And(statusSeenReply|statusConfirmed), expr.CmpOpEq, wire.AppendNumber(nil, statusConfirmed)).exprs}
	// Starting matches packets that may belong to an unanswered connection: those before its first
	// answer, and ICMP errors. It costs other packets least.
	Starting = Statement{"ct state new,related",
		NotZero(ctState.And(expr.CtStateBitNEW | expr.CtStateBitRELATED)).exprs}
	// ErrorOf matches ICMP errors about a connection.
	ErrorOf     = Statement{"ct state related", NotZero(ctState.And(expr.CtStateBitRELATED)).exprs}
	Established = Statement{"ct state established", NotZero(ctState.And(expr.CtStateBitESTABLISHED)).exprs}
	// Untracked hides a packet from conntrack, and so from all translations.
	Untracked = Statement{"notrack", []expr.Any{&expr.Notrack{}}}
)

// Unreachable returns the matches for ICMP errors that say that the network or the host is
// unreachable: one list of statements for each.
func (ip IP) Unreachable() (all [][]Statement) {
	name, proto, typ, codes := "icmp", byte(unix.IPPROTO_ICMP), byte(3), []byte{0, 1} // NET_UNREACH, HOST_UNREACH
	if ip.Family == lb.IPv6 {
		name, proto, typ, codes = "icmpv6", unix.IPPROTO_ICMPV6, 1, []byte{0, 3} // NOROUTE, ADDR_UNREACH
	}
	kind := payload(name+" type . "+name+" code", expr.PayloadBaseTransportHeader, 0, 2)
	for _, code := range codes {
		text := fmt.Sprintf("%[1]s type destination-unreachable %[1]s code %[2]d", name, code)
		all = append(all, []Statement{Is(L4Proto, name, []byte{proto}),
			match(text, kind, expr.CmpOpEq, []byte{typ, code})})
	}
	return all
}

// Sequence matches TCP segments with that sequence number.
func Sequence(n uint32) Statement {
	o := payload("tcp sequence", expr.PayloadBaseTransportHeader, 4, 4)
	return Is(o, fmt.Sprint(n), []byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// Limited matches the packets of each key within a rate, which a set that packets fill keeps. If
// the set is full, a new key does not match.
func Limited(set *wire.Set, perSecond, burst uint32, key ...Operand) Statement {
	x, text := load(nil, set, key, freshKey)
	return Statement{fmt.Sprintf("update @%s { %s limit rate %d/second burst %d packets }", set.Name, text, perSecond,
		burst),
		append(x, &expr.Dynset{SrcRegKey: freshKey, SetName: set.Name, Operation: unix.NFT_DYNSET_OP_UPDATE,
			Exprs: []expr.Any{&expr.Limit{Type: expr.LimitTypePkts, Rate: uint64(perSecond),
				Unit: expr.LimitTimeSecond, Burst: burst}}})}
}

// LogTo sends a copy of the packet, with a prefix, to the program that listens to a group of
// nfnetlink_log.
func LogTo(group uint16, prefix string) Statement {
	return Statement{fmt.Sprintf("log prefix %q group %d", prefix, group), []expr.Any{&expr.Log{
		Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_PREFIX, Group: group, Data: []byte(prefix)}}}
}
