//go:build linux

package nftables

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/plane/selfwrites"
)

// translating lists the chains, ours and upstream's, that choose backends for new connections.
var translating = []string{"nat-prerouting", "nat-prerouting-again", "nat-output", "nat-output-again"}

// Remove deletes the table of a family, ours or upstream's, and reports whether one existed. It
// removes the chains that translate new connections first, and the rest when no packet can be
// between the two: translated connections are still masqueraded. Without nf_tables in the kernel,
// it has no table to remove. Established connections go on, because conntrack keeps their
// translation.
func Remove(ctx context.Context, fam lb.Family) (removed bool, err error) {
	if fam != lb.IPv4 && fam != lb.IPv6 {
		return false, fmt.Errorf("nftables: remove: family %s: want IPv4 or IPv6", fam)
	}
	s, err := wire.Open()
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("nftables: remove: %w", err)
	}
	defer s.Close()
	ip := rule.IPOf(fam)
	for _, name := range []string{standInName, TableName} {
		was, err := removeTable(ctx, s, ip, name)
		if err != nil {
			return removed, err
		}
		removed = removed || was
	}
	return removed, nil
}

// removeTable deletes a table, its translating chains first, and reports whether it existed.
func removeTable(ctx context.Context, s *wire.Socket, ip rule.IP, name string) (removed bool, err error) {
	there, err := hasTable(ctx, s, ip, name)
	if err != nil || !there {
		return false, err
	}
	for _, chain := range translating {
		err = transact(ctx, s, ip, name, func(t *wire.Transaction) { t.DeleteChain(chain) })
		if err != nil && !errors.Is(err, unix.ENOENT) {
			break
		}
	}
	if err == nil || errors.Is(err, unix.ENOENT) {
		kernel.AwaitPackets()
		err = transact(ctx, s, ip, name, (*wire.Transaction).DeleteTable)
	}
	if errors.Is(err, unix.ENOENT) { // another program was faster
		return false, nil
	}
	if errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("%w; a table that a running process owns goes when that ends", err)
	}
	if err != nil {
		return false, fmt.Errorf("nftables: delete table %s of %s: %w", name, ip.Family, err)
	}
	return true, nil
}

// hasTable reports whether the family has a table of that name. The query does not load nf_tables'
// families.
func hasTable(ctx context.Context, s *wire.Socket, ip rule.IP, name string) (bool, error) {
	there, _, err := wire.Table{Socket: s, Family: ip.Proto, Name: name}.State(ctx)
	switch {
	case errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return false, nil // no such family, or no nf_tables
	case err != nil:
		return false, fmt.Errorf("look for table %s of %s: %w", name, ip.Family, probeError(err))
	}
	return there, nil
}

// transact runs a transaction on a table.
func transact(ctx context.Context, s *wire.Socket, ip rule.IP, table string, stage func(t *wire.Transaction)) error {
	t := wire.NewTransaction(ip.Proto, table, nil)
	stage(t)
	_, err := s.Commit(ctx, &selfwrites.Ledger{}, t)
	return err
}
