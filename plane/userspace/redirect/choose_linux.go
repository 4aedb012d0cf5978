package redirect

import (
	"errors"
	"fmt"
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
		if c, err = w.make(cfg); err == nil {
			return c, passed, nil
		}
		passed = append(passed, fmt.Errorf("redirect by %s: %w", w.name, err))
	}
	return nil, nil, fmt.Errorf("redirect packets to service addresses: nftables or iptables is needed: %w",
		errors.Join(passed...))
}
