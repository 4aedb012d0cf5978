package redirect

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/selfwrites"
)

// way is a kind of Redirector.
type way struct {
	name string
	make func(Config) (Redirector, error)
}

// ways are tried in this order (DP-40).
var ways = []way{
	{"nftables", func(c Config) (Redirector, error) { return NewNFTables(c) }},
	{"iptables", func(c Config) (Redirector, error) { return NewIPTables(c) }},
}

// Choose returns the best Redirector that this host and the rights of the process allow, in the
// network namespace of the calling thread. It changes nothing. passed has the errors of the better
// ways.
func Choose(cfg Config) (c Redirector, passed []error, err error) {
	for _, w := range ways {
		c, err = w.make(cfg)
		if err == nil {
			return c, passed, nil
		}
		passed = append(passed, fmt.Errorf("redirect by %s: %w", w.name, err))
	}
	return nil, nil, fmt.Errorf("redirect packets to service addresses: nftables or iptables is needed: %w",
		errors.Join(passed...))
}

// Remove removes the rules of previous processes, of all redirectors except the named one; ""
// excepts none. It works in the network namespace of the calling thread.
func Remove(ctx context.Context, families []lb.Family, except string) (report mode.Report, err error) {
	var errs []error
	for _, fam := range families {
		if except != "nftables" {
			removed, err := removeTable(ctx, fam)
			errs = append(errs, err)
			if removed {
				report.Removed = append(report.Removed, fmt.Sprintf("the nftables table %s of %s", TableName, fam))
			}
		}
		if except != "iptables" {
			r, err := xtables.RemoveKept(ctx, layoutOf(Config{Family: fam}), "userspace")
			errs = append(errs, err)
			report.Removed, report.Left = append(report.Removed, r.Removed...), append(report.Left, r.Left...)
		}
	}
	return report, errors.Join(errs...)
}

// removeTable deletes our table of nftables, and reports whether it existed. A kernel without
// nf_tables has none.
func removeTable(ctx context.Context, fam lb.Family) (bool, error) {
	s, err := wire.Open()
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("remove table %s of %s: %w", TableName, fam, err)
	}
	defer s.Close()
	t := wire.NewTransaction(rule.IPOf(fam).Proto, TableName, nil)
	t.DeleteTable()
	_, err = s.Commit(ctx, &selfwrites.Ledger{}, t)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EINVAL),
		errors.Is(err, unix.EOPNOTSUPP):
		return false, nil // no table, no such family, or no nf_tables
	}
	return false, fmt.Errorf("remove table %s of %s: %w", TableName, fam, err)
}
