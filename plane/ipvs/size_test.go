//go:build linux

package ipvs

import (
	"net/netip"
	"slices"
	"testing"

	"kube-proxy/config/option"
	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/test/planetest"
)

// The weight of a Service is at least the number of its virtual and real servers, scheduler tables,
// addresses and members in the kernel (TN-11).
func TestWeigh(t *testing.T) {
	for _, c := range []struct {
		scheduler string
		family    lb.Family
	}{{"", lb.IPv4}, {"", lb.IPv6}, {"mh", lb.IPv4}, {"sh", lb.IPv6}} {
		t.Run(c.scheduler+c.family.String(), func(t *testing.T) {
			asked := &Options{}
			asked.IPVS.Scheduler = c.scheduler
			planetest.Weighing{Family: c.family, Weigh: weigh(mode.Settings{Blocks: option.Blocks{asked}}), Within: 3,
				Costly: 200_000,
				Count:  func(_ *testing.T, want *lb.Table) int { return objectsOf(c.family, c.scheduler, want) },
			}.Run(t)
		})
	}
}

// objectsOf counts the objects that a new plane writes for a table.
func objectsOf(fam lb.Family, scheduler string, want *lb.Table) (objects int) {
	cfg := Config{Family: fam, Masquerade: 1 << 14, Scheduler: schedulerOf(scheduler), Sticky: stickyScheduler}
	var own []netip.Addr
	for _, p := range want.Node.NodePorts {
		own = append(own, p.Addr())
	}
	slices.SortFunc(own, netip.Addr.Compare)
	p := previewOf(cfg.layout(), own, want)
	for _, op := range p.ops {
		objects += serverObjects
		if op.Verb == ipvs.NewService {
			objects += tables[op.Service.Scheduler]
		}
	}
	for _, set := range p.sets {
		objects += len(set.members) * memberObjects
	}
	return objects + len(p.addresses)*addressObjects
}
