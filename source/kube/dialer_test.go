package kube

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// Where the API server is becomes known before it is connected to, by address and by name (TN-66).
func TestWhereTheAPIServerIs(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "localhost"} {
		t.Run(host, func(t *testing.T) {
			r := newRig(t)
			cfg := r.config()
			cfg.Master = strings.Replace(cfg.Master, "127.0.0.1", host, 1)
			r.startWith(cfg)
			want := netip.MustParseAddrPort(r.api.addr)
			r.until(func() bool { return slices.Contains(r.store.Facts().APIServers, want) }, func() string {
				return fmt.Sprintf("API servers at %v, want %v", r.store.Facts().APIServers, want)
			})
		})
	}
}
