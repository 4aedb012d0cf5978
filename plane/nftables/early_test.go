//go:build linux

package nftables

import (
	"testing"

	"kube-proxy/lb"
	"kube-proxy/plane/selfwrites"
	"kube-proxy/test/planetest"
)

// A plane that takes over reads the table once, while it waits for frontends. The first Reset sees
// changes that another process makes after that reading began; writes of the same process do not
// count.
func TestReadEarly(t *testing.T) {
	w := planetest.World{Family: lb.IPv4}
	for _, c := range []struct {
		name  string
		after func(t *testing.T, ours *selfwrites.Ledger)
		reads bool // the first Reset must read again: isDump compares the result
	}{
		{name: "nothing changes", after: func(*testing.T, *selfwrites.Ledger) {}},
		{name: "the other family is written", after: func(t *testing.T, ours *selfwrites.Ledger) {
			p := planeOf(t, Config{Family: lb.IPv6, Writes: ours})
			reset(t, p, (planetest.World{Family: lb.IPv6}).Table(2, 2))
		}},
		{name: "another process flushes a map", reads: true, after: func(t *testing.T, _ *selfwrites.Ledger) {
			runNFT(t, "flush", "map", "ip", TableName, "backends")
		}},
		{name: "another process deletes the table", reads: true, after: func(t *testing.T, _ *selfwrites.Ledger) {
			runNFT(t, "delete", "table", "ip", TableName)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tab := w.Table(20, 3)
			before := started(t, w, tab)
			want := dump(t, before)
			before.Close()

			ours := &selfwrites.Ledger{}
			p := planeOf(t, Config{Family: lb.IPv4, Writes: ours})
			<-p.early.done
			c.after(t, ours)
			requests := func() int {
				before := p.sock.Asked.Requests
				reset(t, p, tab)
				return p.sock.Asked.Requests - before
			}
			first, second := requests(), requests() // the second reads in any case
			if first >= second && !c.reads || p.early != nil {
				t.Errorf("the first Reset sends %d requests, the next one %d; want fewer", first, second)
			}
			isDump(t, p, want)
		})
	}
}
