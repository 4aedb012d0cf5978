package kube

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
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
			for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
				if got := r.store.Facts().APIServers; slices.Contains(got, want) {
					return
				} else if time.Now().After(end) {
					t.Fatalf("API servers at %v, want %v", got, want)
				}
			}
		})
	}
}
