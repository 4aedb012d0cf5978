//go:build linux

package nftables

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
)

// translating are the chains, ours and upstream's, that choose backends for new connections.
var translating = []string{"nat-prerouting", "nat-prerouting-again", "nat-output", "nat-output-again"}

// Remove deletes the table of a family, ours or upstream's, and reports whether there was one. The chains that translate new
// connections go first, and the rest when no packet is under way between the two: what was translated is masqueraded too.
// A kernel without nf_tables has no table. Connections that are established go on: conntrack keeps their translation.
func Remove(ctx context.Context, fam lb.Family) (removed bool, err error) {
	if fam != lb.IPv4 && fam != lb.IPv6 {
		return false, fmt.Errorf("nftables: remove: family %s: want IPv4 or IPv6", fam)
	}
	s, err := openSocket()
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("nftables: remove: %w", err)
	}
	defer s.Close()
	f := familyOf(fam)
	for _, name := range []string{StandInName, TableName} {
		was, err := s.removeTable(ctx, f, name)
		if err != nil {
			return removed, err
		}
		removed = removed || was
	}
	return removed, nil
}

// removeTable deletes a table, its translating chains first, and reports whether there was one.
func (s *socket) removeTable(ctx context.Context, f family, name string) (removed bool, err error) {
	there, err := s.hasTable(ctx, f.proto, name)
	if err != nil {
		return false, fmt.Errorf("look for table %s of %s: %w", name, f.fam, err)
	}
	if !there {
		return false, nil
	}
	for _, chain := range translating {
		err = s.transact(ctx, f, name, func(t *batch) { t.DeleteChain(chain) })
		if err != nil && !errors.Is(err, unix.ENOENT) {
			break
		}
	}
	if err == nil || errors.Is(err, unix.ENOENT) {
		kernel.AwaitPackets()
		err = s.transact(ctx, f, name, (*batch).DeleteTable)
	}
	if errors.Is(err, unix.ENOENT) { // somebody was faster
		return false, nil
	}
	if errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("%w: run as root, or with CAP_NET_ADMIN; a table that a running process owns goes when that ends", err)
	}
	if err != nil {
		return false, fmt.Errorf("nftables: delete table %s of %s: %w", name, f.fam, err)
	}
	return true, nil
}

// hasTable reports whether the family has a table of that name. To ask does not load nf_tables' families.
func (s *socket) hasTable(ctx context.Context, proto byte, name string) (there bool, err error) {
	var e wire.Encoder
	at := e.Message(unix.NFT_MSG_GETTABLE, unix.NLM_F_ACK, proto, 0)
	e.Str(unix.NFTA_TABLE_NAME, name)
	e.EndMessage(at)
	err = s.Ask(ctx, e.B, func([]byte) { there = true })
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return false, nil // no table, no such family, or no nf_tables
	case err != nil:
		return false, probeError(err)
	}
	return there, nil
}

// transact runs a transaction about a table of the family.
func (s *socket) transact(ctx context.Context, f family, table string, stage func(t *batch)) error {
	t := (&ruleset{family: f}).newBatch(table)
	stage(t)
	bufs, last := t.buffers()
	return s.Commit(ctx, bufs, last)
}
