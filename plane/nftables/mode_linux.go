package nftables

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"kube-proxy/event"
	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/internal/relay"
)

// Mode returns the mode nftables.
func Mode() mode.Mode {
	m := facts()
	m.Able = func(mode.Settings) error { return kernel.NFTables() }
	m.Modules = func(mode.Settings) []string { return []string{"nfnetlink", "nf_tables"} }
	descriptors := sync.OnceValue(relay.ProcessGroups)
	m.New = func(s mode.Settings) (mode.Plane, error) {
		cfg := configOf(s)
		cfg.Descriptors = descriptors()
		return New(cfg)
	}
	m.Render = func(s mode.Settings, want *lb.Table) ([]byte, error) { return Render(configOf(s), want) }
	m.Remove = removeTables
	return m
}

func configOf(s mode.Settings) Config {
	return Config{Family: s.Family, MasqueradeBit: &s.MasqueradeBit, Writes: s.Writes, CountServices: s.CountServices,
		LocalhostNodePorts: s.LocalhostProxy, Log: s.Log}
}

func removeTables(ctx context.Context, what mode.Removal) (r mode.Report, err error) {
	for _, fam := range what.Families {
		removed, e := Remove(ctx, fam)
		err = errors.Join(err, e)
		if removed {
			r.Removed = append(r.Removed, fmt.Sprintf("the nftables table %s of %s", TableName, fam))
		}
	}
	return r, err
}

// reported records which notices the process has already got.
type reported struct {
	noHash bool
	nearly bool // session affinity is nearly full
}

// Notices implements mode.Plane: it reports missing kernel features, and that session affinity is
// nearly full.
func (p *Plane) Notices() (all []mode.Notice) {
	if !p.rules.hashes && !p.reported.noHash {
		p.reported.noHash = true
		all = append(all, mode.Notice{Text: "This kernel lacks the nftables expression hash (CONFIG_NFT_HASH): with " +
			"session affinity, clients of one Service can take the memory that those of others need"})
	}
	percent, busiest := 0, []string(nil)
	if use := p.use.Load(); use != nil {
		percent, busiest = use.entries*100/use.limit, use.busiest
	}
	if percent >= 80 && !p.reported.nearly {
		p.reported.nearly = true
		all = append(all, mode.Notice{
			Text: "Session affinity map nearly full; once it is full, a hash of the address assigns new clients",
			Args: []any{"percent", percent, "services", busiest},
			Event: func(node string) event.Event {
				return event.AffinityNearlyFull(node, p.ip.Family.String(), percent, busiest)
			},
		})
	}
	p.reported.nearly = p.reported.nearly && percent >= 60
	return all
}

// Measure implements mode.Plane. It omits the session affinity metrics before the first
// measurement, and if the kernel cannot measure.
func (p *Plane) Measure(emit mode.Emit) error {
	emit(cleanupFailures, 0)
	if use := p.use.Load(); use != nil {
		emit(entriesMetric, float64(use.entries))
		emit(limitMetric, float64(use.limit))
	}
	return p.measureLocalhost(emit)
}
