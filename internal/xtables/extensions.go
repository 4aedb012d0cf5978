//go:build linux

package xtables

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	"kube-proxy/internal/netlink"
	"kube-proxy/lb"
	"kube-proxy/plane"
)

// Extension is a match or a target of the kernel's x_tables.
type Extension struct {
	Name   string
	Target bool
}

func (e Extension) String() string {
	if e.Target {
		return "target " + e.Name
	}
	return "match " + e.Name
}

// Needed are the extensions that every Service needs. The nft back end implements some itself,
// depending on the version, and needs others from the kernel. The match recent is not needed:
// without it only Services with session affinity are refused.
var Needed = map[Backend][]Extension{
	NFT: {{"comment", false}, {"conntrack", false}, {"addrtype", false}, {"statistic", false}, {"DNAT", true},
		{"MASQUERADE", true}},
	Legacy: {{"comment", false}, {"conntrack", false}, {"addrtype", false}, {"statistic", false}, {"DNAT", true},
		{"MASQUERADE", true}, {"mark", false}, {"MARK", true}, {"tcp", false}, {"udp", false}, {"REJECT", true}},
}

// prober queries the kernel for an extension; the kernel may load its module. The error is the
// kernel's: ENOENT if the extension is missing.
type prober func(Extension) error

// lacking names the extensions that the kernel lacks.
func lacking(b Backend, all []Extension, probe prober) error {
	for _, e := range all {
		err := probe(e)
		switch {
		case err == nil, errors.Is(err, unix.EPROTONOSUPPORT): // it exists; iptables picks the revision itself
		case errors.Is(err, unix.ENOENT):
			return fmt.Errorf("this kernel has no %s for iptables of the %s back end: load the module xt_%s", e, b,
				e.Name)
		case b == NFT && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)): // no such subsystem
			return errors.New("this kernel cannot use matches of iptables in nf_tables: load the module nft_compat " +
				"(CONFIG_NFT_COMPAT)")
		default:
			return fmt.Errorf("query the kernel for the %s: %w", e, err)
		}
	}
	return nil
}

// probeCompat queries nft_compat, as iptables-nft does.
func probeCompat(nf *kernel.Netfilter, f lb.Family) prober {
	return func(e Extension) error {
		const get, name, revision, typ = unix.NFNL_SUBSYS_NFT_COMPAT << 8, 1, 2, 3 // NFNL_MSG_COMPAT_GET, NFTA_COMPAT_*
		kind := uint32(0)
		if e.Target {
			kind = 1
		}
		_, err := nf.Ask(get, unix.NLM_F_ACK, nfproto(f), func(to *netlink.Encoder) {
			to.Str(name, e.Name)
			to.U32(revision, 0)
			to.U32(typ, kind)
		})
		return err
	}
}

// prober queries x_tables, as iptables-legacy does.
func (t *tableInfo) prober() prober {
	return func(e Extension) error {
		option := 66 // IPT_SO_GET_REVISION_MATCH
		if t.level == unix.SOL_IPV6 {
			option = 68
		}
		if e.Target {
			option++
		}
		var q struct { // xt_get_revision
			name     [29]byte
			revision uint8
		}
		copy(q.name[:], e.Name)
		return ask(t, option, &q)
	}
}

// Have checks that the kernel has the matches and targets of another mode. It changes nothing. The
// error names the missing one and wraps plane.ErrUnsupported.
func (t *Tool) Have(matches, targets []string) error {
	probe, done, err := t.tables(context.Background())
	if err != nil {
		return fmt.Errorf("iptables: look for extensions of %s: %w", t.Program, err)
	}
	defer done()
	var all []Extension
	for _, name := range matches {
		all = append(all, Extension{name, false})
	}
	for _, name := range targets {
		all = append(all, Extension{name, true})
	}
	if err := lacking(t.Backend, all, probe); err != nil {
		return fmt.Errorf("iptables: %w: %w", err, plane.ErrUnsupported)
	}
	return nil
}
