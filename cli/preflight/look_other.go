//go:build !linux

package preflight

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"runtime"
)

// errElsewhere is the reason why facts of Linux are unknown on other systems.
var errElsewhere = errors.New("only checked on Linux")

// Look has the probes look at this machine that are not of Linux.
func Look(ctx context.Context, s *Setup) *Facts {
	f := &Facts{OS: runtime.GOOS}
	for _, m := range s.Modes {
		if !m.Here() {
			continue
		}
		for _, fam := range s.Families {
			k := within(ctx, s.timeout(), func(context.Context) (able error, err error) {
				return m.Able(s.with(fam)), nil
			})
			f.Abilities = append(f.Abilities, Ability{Mode: m.Name, Family: fam, Able: k.Value, Unasked: k.Err})
		}
	}
	if m, err := choose(s, f); err == nil && m.Mode.Lacks != nil {
		f.Waits = within(ctx, s.timeout(), func(ctx context.Context) ([]error, error) {
			return m.Mode.Lacks(ctx, s.with(s.Families[0])), nil
		})
	}
	f.Links = within(ctx, s.timeout(), links)
	f.Firewall = within(ctx, s.timeout(), firewall)
	f.Routes.Err, f.Sockets.Err = errElsewhere, errElsewhere
	f.Cluster = s.cluster(ctx)
	f.InTheWay = s.inTheWay(ctx)
	return f
}

// glance runs the probes of [Glance].
func glance(ctx context.Context, s *Setup, cluster *Cluster) *Facts {
	return &Facts{OS: runtime.GOOS, Links: within(ctx, s.timeout(), links), Cluster: cluster}
}

func links(context.Context) (all []Link, err error) {
	list, err := net.Interfaces()
	for _, i := range list {
		l := Link{Name: i.Name, Index: i.Index, MTU: i.MTU, Up: i.Flags&net.FlagUp != 0}
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				l.Addrs = append(l.Addrs, p)
			}
		}
		all = append(all, l)
	}
	return all, err
}
