//go:build linux

package nftables

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// PR-08: Remove deletes our table and upstream's. Other programs' objects stay, whatever their
// names.
func TestRemove(t *testing.T) {
	inNetns(t)
	const theirs = `
table ip filter { chain KUBE-FORWARD { accept; }; chain forward { type filter hook forward priority 0; jump KUBE-FORWARD; }; }
table ip kube-proxy-2 { chain services { drop; }; }
table ip6 kube { set kube-proxy { type ipv6_addr; }; }
table inet kube-proxy { chain services { type nat hook prerouting priority -100; accept; }; }
table bridge kube-proxy { chain services { drop; }; }
table arp kube-proxy { chain services { drop; }; }
`
	runNFT(t, theirs)
	before := runNFT(t, "list ruleset")
	remove := func(fam lb.Family, want bool) {
		t.Helper()
		if removed, err := Remove(t.Context(), fam); removed != want || err != nil {
			t.Errorf("%s: removed %t, want %t: %v", fam, removed, want, err)
		}
	}
	for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
		remove(fam, false)
		w := planetest.World{Family: fam}
		reset(t, newPlane(t, fam), w.Table(300, 3))
		remove(fam, true)
		remove(fam, false)
	}
	runNFT(t, upstreamTable)
	remove(lb.IPv6, false)
	remove(lb.IPv4, true)
	if after := runNFT(t, "list ruleset"); after != before {
		t.Errorf("others had\n%s\nand have\n%s", before, after)
	}
	if _, err := Remove(t.Context(), lb.Family(0)); err == nil {
		t.Error("an unknown family is accepted")
	}
}

// Remove cannot delete a table that another process owns, or any without NET_ADMIN: the error says
// so.
func TestRemoveRefused(t *testing.T) {
	inNetns(t)
	owner, err := wire.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close()
	var e wire.Encoder
	var last uint32
	for _, m := range []struct {
		typ, flags uint16
		res        uint16
		family     byte
	}{{unix.NFNL_MSG_BATCH_BEGIN, 0, unix.NFNL_SUBSYS_NFTABLES, 0}, {wire.MsgType(unix.NFT_MSG_NEWTABLE),
		unix.NLM_F_CREATE | unix.NLM_F_ACK, 0, unix.NFPROTO_IPV4},
		{unix.NFNL_MSG_BATCH_END, 0, unix.NFNL_SUBSYS_NFTABLES, 0}} {
		seq := owner.Next()
		at := e.Netfilter(m.typ, m.flags, m.family, seq, m.res)
		if m.family != 0 {
			last = seq
			e.Str(unix.NFTA_TABLE_NAME, TableName)
			e.U32(unix.NFTA_TABLE_FLAGS, 2) // NFT_TABLE_F_OWNER
		}
		e.EndMessage(at)
	}
	if err := owner.Batch(t.Context(), [][]byte{e.B}, last); err != nil {
		t.Skipf("this kernel has no tables with an owner: %v", err)
	}
	if removed, err := Remove(t.Context(), lb.IPv4); removed || !errors.Is(err, fs.ErrPermission) ||
		!strings.Contains(err.Error(), "owns") {
		t.Errorf("removed %t, %v", removed, err)
	}
}
