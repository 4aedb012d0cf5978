package cleanup

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
	"kube-proxy/mode"
)

// Run removes the objects of all modes, in both families, in the calling thread's network
// namespace; the thread must be locked if that is not the process's. The error joins the failures;
// the rest is removed.
func Run(ctx context.Context, modes mode.List, what mode.Removal) (mode.Report, error) {
	var c cleaner
	what.Families = []lb.Family{lb.IPv4, lb.IPv6}
	for _, m := range modes {
		c.run(ctx, m.Remove, what)
	}
	c.run(ctx, Watches, what)
	return c.report, errors.Join(c.errs...)
}

// Watches removes the rules by which an earlier process watched unanswered connections (failover).
// A process that ends removes its own, but not if it is killed.
func Watches(ctx context.Context, what mode.Removal) (r mode.Report, err error) {
	for _, f := range what.Families {
		removed, e := removeWatch(ctx, f)
		err = errors.Join(err, e)
		if removed {
			r.Removed = append(r.Removed, fmt.Sprintf("the nftables table of failover of %s", f))
		}
	}
	return r, err
}

// Others removes the objects of other modes in the families that a mode serves, except those of
// modes that write the same kind of rules. In another family those may be the only rules. It also
// removes the mode's own stale objects, such as in the other back end of iptables. Modes iptables
// and ipvs share names of chains: each removes those that it does not keep.
//
// Call it after the first write of each family: until then the old rules serve, and while both are
// in force, the first that translates a connection decides. The error is only for the log: the mode
// works, but remaining objects may affect new connections.
func Others(ctx context.Context, modes mode.List, running mode.Mode, what mode.Removal) (mode.Report, error) {
	if running.Rules == "" { // its own would not be excluded from removal
		return mode.Report{}, fmt.Errorf("clean up beside mode %q: its kind of rules is unknown", running.Name)
	}
	var c cleaner
	what.Beside = true
	kernel.AwaitPackets() // packets that have not met the running mode's rules need the others'
	for _, m := range modes {
		switch {
		case m.Name == running.Name:
			c.run(ctx, m.RemoveStale, what)
		case m.Rules != running.Rules && m.Rules != running.Among:
			c.run(ctx, m.Remove, what)
		}
	}
	return c.report, errors.Join(c.errs...)
}

// cleaner collects the results of removals.
type cleaner struct {
	report mode.Report
	errs   []error
}

func (c *cleaner) run(ctx context.Context, remove func(context.Context, mode.Removal) (mode.Report, error),
	what mode.Removal) {
	if remove == nil {
		return
	}
	r, err := remove(ctx, what)
	c.report.Removed = slices.Concat(c.report.Removed, r.Removed)
	for _, left := range r.Left { // several modes may have checked the same tables
		if !slices.Contains(c.report.Left, left) {
			c.report.Left = append(c.report.Left, left)
		}
	}
	c.errs = append(c.errs, err)
}
