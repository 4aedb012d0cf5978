package redirect

import (
	"errors"
	"fmt"
)

// way is a way to redirect.
type way struct {
	name string
	make func(Config) (Redirector, error)
}

// ways are tried in this order (DP-40).
var ways = []way{
	{"nftables", func(c Config) (Redirector, error) { return made(NewNFTables(c)) }},
	{"iptables", func(c Config) (Redirector, error) { return made(NewIPTables(c)) }},
}

// made returns no Redirector at all with an error.
func made[C Redirector](c C, err error) (Redirector, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Choose makes the best redirector that this host has and lets this process use: by nftables, or by iptables. It works in the network namespace of the calling thread and changes nothing. passed says what was in the
// way of those that come before the one that it returns.
func Choose(cfg Config) (c Redirector, passed []error, err error) {
	for _, w := range ways {
		c, err := w.make(cfg)
		if err == nil {
			return c, passed, nil
		}
		passed = append(passed, err)
	}
	return nil, nil, fmt.Errorf("redirect packets to service addresses: nftables or iptables is needed: %w", errors.Join(passed...))
}
