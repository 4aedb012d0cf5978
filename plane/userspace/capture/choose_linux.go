package capture

import (
	"errors"
	"fmt"
)

// way is a way to capture.
type way struct {
	name string
	make func(Config) (Capture, error)
}

// ways are tried in this order (DP-40).
var ways = []way{
	{"nftables", func(c Config) (Capture, error) { return made(NewNFTables(c)) }},
	{"iptables", func(c Config) (Capture, error) { return made(NewIPTables(c)) }},
}

// made returns no Capture at all with an error.
func made[C Capture](c C, err error) (Capture, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Choose makes the best capture that this host has and lets this process use: by nftables, or by iptables. It works in the network namespace of the calling thread and changes nothing. passed says what was in the
// way of those that come before the one that it returns.
func Choose(cfg Config) (c Capture, passed []error, err error) {
	for _, w := range ways {
		c, err := w.make(cfg)
		if err == nil {
			return c, passed, nil
		}
		passed = append(passed, err)
	}
	return nil, nil, fmt.Errorf("redirect packets to service addresses: nftables or iptables is needed: %w", errors.Join(passed...))
}
