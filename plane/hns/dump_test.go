package hns

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"kube-proxy/lb"
)

// Dump returns the family's load balancers and our endpoints in HNS as sorted text without ids.
func (p *Plane) Dump() (string, error) {
	ctx := context.Background()
	pic, err := p.read(ctx, lb.Node{})
	if err != nil {
		return "", fmt.Errorf("hns: dump: %w", err)
	}
	byID := map[string]string{}
	var lines []string
	for _, e := range pic.endpoints {
		var addrs []string
		for _, a := range addresses(e, p.cfg.Family) {
			addrs = append(addrs, a.String())
		}
		byID[e.ID] = strings.Join(addrs, ",")
		if ours(e) && len(addrs) > 0 {
			lines = append(lines, fmt.Sprintf("endpoint %s %s provider %s\n", e.Name, byID[e.ID], ProviderOf(e)))
		}
	}
	for _, l := range pic.balancers {
		s, ok := shapeOf(l)
		if ok && s.family() != p.cfg.Family {
			continue
		}
		var to []string
		for _, id := range l.HostComputeEndpoints {
			a, ok := byID[id]
			if !ok {
				a = "gone"
			}
			to = append(to, a)
		}
		slices.Sort(to)
		lines = append(lines, fmt.Sprintf("balancer vips %v source %s flags %d mappings %+v to %v\n", l.FrontendVIPs,
			l.SourceVIP, l.Flags, l.PortMappings, to))
	}
	slices.Sort(lines)
	return strings.Join(lines, ""), nil
}
