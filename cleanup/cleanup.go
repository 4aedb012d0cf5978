package cleanup

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/iptables"
	"kube-proxy/plane/nftables"
)

// What says what to remove.
type What struct {
	// IPTables: rules written with iptables, of whatever mode and back end. IPVS: virtual servers, kube-ipvs0 and
	// ipsets. NFTables: the tables.
	IPTables, IPVS, NFTables bool
	// ExcludeCIDRs hold virtual servers and addresses that are not ours (--ipvs-exclude-cidrs).
	ExcludeCIDRs []netip.Prefix
}

// Report is for the log: a sentence for each kind of thing.
type Report struct {
	// Removed is what was there and is gone.
	Removed []string
	// Left is what stays though it is ours, or may be, and why.
	Left []string
}

func (r *Report) removed(n int, format string, args ...any) {
	if n > 0 {
		r.Removed = append(r.Removed, fmt.Sprintf("%d %s", n, fmt.Sprintf(format, args...)))
	}
}

func (r *Report) left(format string, args ...any) {
	r.Left = append(r.Left, fmt.Sprintf(format, args...))
}

// Run removes what is asked for, in both families, in the network namespace of the calling thread, which must be locked
// if it is not the process's. The error joins all that could not be removed; the rest is.
func Run(ctx context.Context, w What) (Report, error) {
	c := cleaner{exclude: w.ExcludeCIDRs}
	if w.IPTables {
		c.backends = every(iptables.NFT, iptables.Legacy)
	}
	c.ipvs, c.nftables = w.IPVS, w.NFTables
	return c.clean(ctx, lb.IPv4, lb.IPv6)
}

// Running is the mode that runs, and has written all its rules.
type Running struct {
	// Mode is nftables, iptables, ipvs, userspace or ebpf.
	Mode string
	// Families are those that it serves. In another one the rules of another mode may be all that there is.
	Families []lb.Family
	// Backends are the back ends that the mode iptables writes the families with, which may differ (DP-14). Where one is not
	// known the family has none.
	Backends map[lb.Family]iptables.Backend
	// ExcludeCIDRs are as in [What].
	ExcludeCIDRs []netip.Prefix
	// Drain is how long TCP connections through virtual servers may go on at most; 0 cuts them off. New ones do not come, for
	// the running mode translates them first.
	Drain time.Duration
}

// Others removes what other modes left. nftables and ebpf leave nothing of others; iptables, ipvs and userspace share
// chains and ipsets, so they only delete the tables of nftables (PR-08). The mode iptables, which writes with one back end,
// removes what is left in the other: its rules would go on to lead to endpoints of long ago.
//
// Call it when the first write of each of the families has succeeded: until then the old rules serve, and while both
// sets of rules are in force, the first that translates a connection decides. An error is for the log: the mode works,
// but what is left may lead new connections astray.
func Others(ctx context.Context, now Running) (Report, error) {
	c := cleaner{exclude: now.ExcludeCIDRs, keepLocalnet: true, drain: now.Drain}
	switch now.Mode {
	case "nftables", "ebpf":
		c.backends, c.ipvs = every(iptables.NFT, iptables.Legacy), true
		c.nftables = now.Mode == "ebpf"
	case "iptables":
		c.nftables = true
		c.backends = map[lb.Family][]iptables.Backend{}
		for fam, b := range now.Backends {
			switch b {
			case iptables.NFT:
				c.backends[fam] = []iptables.Backend{iptables.Legacy}
			case iptables.Legacy:
				c.backends[fam] = []iptables.Backend{iptables.NFT}
			}
		}
	case "ipvs", "userspace":
		c.nftables = true
	default:
		return Report{}, fmt.Errorf("clean up beside mode %q: want nftables, iptables, ipvs, userspace or ebpf", now.Mode)
	}
	kernel.AwaitPackets() // those that have not met the running mode's rules need the others'
	return c.clean(ctx, now.Families...)
}

// cleaner removes.
type cleaner struct {
	backends       map[lb.Family][]iptables.Backend // to remove the rules of
	ipvs, nftables bool
	exclude        []netip.Prefix
	keepLocalnet   bool
	drain          time.Duration
	report         Report
}

// every has the back ends in both families.
func every(b ...iptables.Backend) map[lb.Family][]iptables.Backend {
	return map[lb.Family][]iptables.Backend{lb.IPv4: b, lb.IPv6: b}
}

func (c *cleaner) clean(ctx context.Context, families ...lb.Family) (Report, error) {
	var errs []error
	for _, fam := range families {
		for _, b := range c.backends[fam] {
			errs = append(errs, c.iptables(ctx, fam, b))
		}
	}
	if c.ipvs {
		errs = append(errs, c.virtualServers(ctx, families)...)
	}
	for _, fam := range families {
		if !c.nftables {
			continue
		}
		removed, err := nftables.Remove(ctx, fam)
		errs = append(errs, err)
		if removed {
			c.report.Removed = append(c.report.Removed, fmt.Sprintf("the nftables table %s of %s", nftables.TableName, fam))
		}
	}
	return c.report, errors.Join(errs...)
}

// iptables removes the rules of one back end. The programs are only run where there is something to see.
func (c *cleaner) iptables(ctx context.Context, fam lb.Family, b iptables.Backend) error {
	if b == iptables.NFT {
		switch some, err := hasChains(fam, !c.keepLocalnet); {
		case err != nil:
			return fmt.Errorf("look for iptables rules of %s: %w", fam, err)
		case !some:
			return nil
		}
	}
	r, err := iptables.Remove(ctx, iptables.RemoveConfig{Family: fam, Backend: b, KeepLocalnet: c.keepLocalnet})
	c.report.removed(r.Chains, "chains of iptables (%s, %s)", b, fam)
	c.report.removed(r.Rules, "rules in chains of others of iptables (%s, %s)", b, fam)
	for _, l := range r.Left {
		c.report.left("iptables (%s, %s): %s", b, fam, l)
	}
	if b == iptables.Legacy && errors.Is(err, plane.ErrUnsupported) {
		// Others use such tables too, so it need not be of ours what they hold.
		c.report.left("iptables (%s, %s): the kernel has such tables; whether they hold rules of kube-proxy is not known: %v", b, fam, err)
		return nil
	}
	if errors.Is(err, plane.ErrUnsupported) {
		return fmt.Errorf("there are chains of kube-proxy for %s, but no program to remove them: %w", fam, err)
	}
	if err == nil && b == iptables.NFT && r.Chains+r.Rules+len(r.Left) == 0 {
		if some, err := hasChains(fam, false); err == nil && some {
			return fmt.Errorf("there are chains of kube-proxy for %s that iptables does not show, beside some that it does not understand: "+
				"see nft list ruleset, and delete them with nft", fam)
		}
	}
	return err
}
