//go:build linux

package iptables

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
	"kube-proxy/plane"
)

// extension is a match of the kernel's x_tables, or a target.
type extension struct {
	name   string
	target bool
}

func (e extension) String() string {
	if e.target {
		return "target " + e.name
	}
	return "match " + e.name
}

// needed are the extensions without which no Service works, whatever it asks for. The nft back end has others of its own
// in some versions, and asks the kernel for some of x_tables in all. The match recent is not among them: without it rows
// with session affinity are refused, and all others work.
var needed = map[Backend][]extension{
	NFT: {{"comment", false}, {"conntrack", false}, {"addrtype", false}, {"statistic", false}, {"DNAT", true}, {"MASQUERADE", true}},
	Legacy: {{"comment", false}, {"conntrack", false}, {"addrtype", false}, {"statistic", false}, {"DNAT", true}, {"MASQUERADE", true},
		{"mark", false}, {"MARK", true}, {"tcp", false}, {"udp", false}, {"REJECT", true}},
}

// asker asks the kernel for an extension. The kernel loads its module if it can. The error is that of the kernel: ENOENT if
// there is none.
type asker func(extension) error

// lacking says what of the extensions the kernel lacks.
func lacking(b Backend, all []extension, ask asker) error {
	for _, e := range all {
		err := ask(e)
		switch {
		case err == nil, errors.Is(err, unix.EPROTONOSUPPORT): // it is there; iptables picks the revision itself
		case errors.Is(err, unix.ENOENT):
			return fmt.Errorf("this kernel has no %s for iptables of the %s back end: load the module xt_%s", e, b, e.name)
		case b == NFT && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)): // no such subsystem
			return errors.New("this kernel cannot use matches of iptables in nf_tables: load the module nft_compat (CONFIG_NFT_COMPAT)")
		default:
			return fmt.Errorf("ask the kernel for the %s: %w", e, err)
		}
	}
	return nil
}

// askCompat asks nft_compat, as iptables-nft does.
func askCompat(nf *kernel.Netfilter, f lb.Family) asker {
	return func(e extension) error {
		const get, name, revision, typ = unix.NFNL_SUBSYS_NFT_COMPAT << 8, 1, 2, 3 // NFNL_MSG_COMPAT_GET, NFTA_COMPAT_*
		kind := uint32(0)
		if e.target {
			kind = 1
		}
		_, err := nf.Ask(get, unix.NLM_F_ACK, nfproto(f), func(ae *netlink.AttributeEncoder) {
			ae.String(name, e.name)
			ae.Uint32(revision, 0)
			ae.Uint32(typ, kind)
		})
		return err
	}
}

// asker asks x_tables, as iptables-legacy does.
func (t *tableInfo) asker() asker {
	return func(e extension) error {
		option := uintptr(66) // IPT_SO_GET_REVISION_MATCH
		if t.level == unix.SOL_IPV6 {
			option = 68
		}
		if e.target {
			option++
		}
		var q struct { // xt_get_revision
			name     [29]byte
			revision uint8
		}
		copy(q.name[:], e.name)
		size := uint32(unsafe.Sizeof(q))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(t.fd), uintptr(t.level), option,
			uintptr(unsafe.Pointer(&q)), uintptr(unsafe.Pointer(&size)), 0)
		if errno != 0 {
			return errno
		}
		return nil
	}
}

// Have reports whether the kernel has matches and targets that another mode writes rules with, beside those that all need. It
// changes nothing. The error says which one is missing, and wraps plane.ErrUnsupported.
func (p *Programs) Have(matches, targets []string) error {
	ask, done, err := p.tables(context.Background())
	if err != nil {
		return fmt.Errorf("iptables: look for extensions of %s: %w", p.program, err)
	}
	defer done()
	var all []extension
	for _, name := range matches {
		all = append(all, extension{name, false})
	}
	for _, name := range targets {
		all = append(all, extension{name, true})
	}
	if err := lacking(p.backend, all, ask); err != nil {
		return fmt.Errorf("iptables: %w: %w", err, plane.ErrUnsupported)
	}
	return nil
}
