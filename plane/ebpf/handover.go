//go:build linux

package ebpf

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/netlink/route"
	"kube-proxy/plane"
	"kube-proxy/plane/ebpf/bpf"
)

// handOverTime is the time for the clients of many network namespaces, which a tenant may make: no
// table changes meanwhile.
const handOverTime = 10 * time.Second

// handOver has the packet path remember what the programs' clients with affinity remember, before
// the programs stop serving some sockets: by their next settings, or because more are exempt. Else
// it does nothing, because what the packet path remembers is newer. A failure costs affinity alone.
func (p *Plane) handOver(next bpf.LBSettings, moreExempt bool) {
	if p.kernel == nil {
		return
	}
	was, err := settingsIn(p.kernel.obj.Config)
	if err != nil || was.On == 0 || !moreExempt && next.On == was.On && next.Scope <= was.Scope {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), handOverTime)
	defer cancel()
	all, err := p.choices(ctx)
	if err = errors.Join(err, p.PacketPath.Remember(context.Background(), all)); err != nil {
		p.cfg.Log.Warn("Failed to have the nftables rules remember the endpoints of clients with session affinity; "+
			"these clients may meet others", "err", err)
	}
}

// choices returns what clients remember, by the addresses of their network namespaces.
func (p *Plane) choices(ctx context.Context) (all []plane.Choice, err error) {
	now, err := monotonic()
	if err != nil {
		return nil, err
	}
	clients := map[uint64][]bpf.LBChoice{}
	err = prune(p.kernel.obj.Affinity, func(netns uint64, choices bpf.LBChoices) bool {
		for _, c := range choices.Of {
			if c.Until > now {
				clients[netns] = append(clients[netns], c)
			}
		}
		return false
	})
	if err != nil || len(clients) == 0 {
		return nil, err
	}
	sets := p.st.sticky()
	nameOf := func(file string, inode uint32) (uint64, error) {
		if ctx.Err() != nil {
			return 0, nil // what is found until then counts
		}
		return cookieOf(file, inode)
	}
	_, err = inNamespaces(clients, nameOf, func(choices []bpf.LBChoice) error { // those that are gone need nothing
		conn, err := netlink.Open(netlink.Config{Protocol: unix.NETLINK_ROUTE})
		if err != nil {
			return fmt.Errorf("look up routes of clients: %w", err)
		}
		defer conn.Close()
		for _, c := range choices {
			to := sets[c.Set]
			slot := slices.Index(to.backends, c.Backend)
			if slot < 0 {
				continue
			}
			r, err := route.Lookup(ctx, conn, route.Query{To: to.at})
			if err != nil {
				return fmt.Errorf("look up the route of a client to %s: %w", to.at, err)
			}
			if r.Source.IsValid() {
				all = append(all, plane.Choice{Set: to.id, Client: r.Source, Backend: to.order.At(&to.list, slot),
					For: time.Duration(c.Until - now)})
			}
		}
		return nil
	})
	return all, errors.Join(err, ctx.Err())
}

// reached is a set with an address of one of its frontends.
type reached struct {
	set
	at netip.Addr
}

// sticky returns the sets with affinity, by number, that have a frontend at an address.
func (st *state) sticky() map[uint32]reached {
	all := map[uint32]reached{}
	for k, r := range st.rows {
		for _, s := range r.sets {
			if r.front.Affinity > 0 && !k.IsNodePort() {
				all[s.number] = reached{*s, k.Addr}
			}
		}
	}
	return all
}

// monotonic returns the time by which choices end.
func monotonic() (uint64, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	return uint64(now.Nano()), nil
}
