package nftables

import (
	"context"
	"errors"
	"fmt"

	"kube-proxy/event"
	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
	"kube-proxy/mode"
)

// The metrics of the mode that its planes tell.
const (
	cleanupFailures = "sync_proxy_rules_nftables_cleanup_failures_total" // MT-14
	entriesMetric   = "session_affinity_entries"
	limitMetric     = "session_affinity_entries_limit"
)

// Mode returns the mode nftables.
func Mode() mode.Mode {
	return mode.Mode{
		Name:    "nftables",
		Doc:     "maps and chains of one nftables table for each IP family, written in transactions",
		Unasked: true,

		Block: "nftables",
		Reads: []string{"nftables"},
		Inherits: map[string]string{
			"nftables.syncPeriod":    "iptables.syncPeriod",
			"nftables.minSyncPeriod": "iptables.minSyncPeriod",
			"nftables.masqueradeBit": "iptables.masqueradeBit",
			"nftables.masqueradeAll": "iptables.masqueradeAll",
		},
		// The periods are 0, see docs/adr/0006: what others change is noticed at once, and upstream's 30 s would compare a
		// large table all the time.
		NodePortsPrimary: true,

		Metrics: []mode.Metric{
			{Name: "sync_full_proxy_rules_duration_seconds"},
			{Name: "sync_partial_proxy_rules_duration_seconds"},
			{Name: "sync_proxy_rules_nftables_sync_failures_total"},
			{Row: "MT-14", Name: cleanupFailures, Kind: mode.Counter, Labels: []string{"ip_family"},
				Help: "Always 0: what is stale goes in the transaction that replaces it, and cannot fail alone"},
			{Name: "conntrack_reconciler_sync_duration_seconds"},
			{Name: "conntrack_reconciler_deleted_entries_total"},
			{Row: "EXT", Name: entriesMetric, Kind: mode.Gauge, Labels: []string{"ip_family"},
				Help: "About how many clients session affinity remembers, estimated at each full audit"},
			{Row: "EXT", Name: limitMetric, Kind: mode.Gauge, Labels: []string{"ip_family"},
				Help: "How many clients session affinity can remember; others are led by a hash of their address"},
		},

		Able:   func(lb.Family) error { return kernel.NFTables() },
		New:    func(s mode.Settings) (mode.Plane, error) { return New(configOf(s)) },
		Loader: "nft -f",
		Render: func(s mode.Settings, want *lb.Table) ([]byte, error) { return Render(configOf(s), want) },

		Show:  "nft list table ip kube-proxy",
		Flush: "nft flush table ip kube-proxy",

		Rules:  "nftables",
		Remove: removeTables,
	}
}

func configOf(s mode.Settings) Config {
	return Config{Family: s.Family, MasqueradeBit: &s.MasqueradeBit, Writes: s.Writes}
}

func removeTables(ctx context.Context, what mode.Removal) (r mode.Report, err error) {
	for _, fam := range what.Families {
		removed, e := Remove(ctx, fam)
		if err = errors.Join(err, e); removed {
			r.Removed = append(r.Removed, fmt.Sprintf("the nftables table %s of %s", TableName, fam))
		}
	}
	return r, err
}

// told is what the process has been told of already.
type told struct {
	noHash bool
	nearly bool // session affinity is nearly full
}

// Notices is part of mode.Plane: what this kernel lacks, and that session affinity is nearly full.
func (p *Plane) Notices() (all []mode.Notice) {
	if !p.rules.hashes && !p.told.noHash {
		p.told.noHash = true
		all = append(all, mode.Notice{Text: "this kernel lacks the nftables expression hash (CONFIG_NFT_HASH): with session affinity, clients of one Service can take the memory that those of others need"})
	}
	if shown := p.shown.Load(); shown == nil || shown.Entries != p.use.Entries || shown.Limit != p.use.Limit {
		use := p.use
		p.shown.Store(&use)
	}
	percent, busiest := p.use.Percent(), p.use.Busiest
	if percent >= 80 && !p.told.nearly {
		p.told.nearly = true
		all = append(all, mode.Notice{
			Text: "the memory of session affinity is nearly full; when it is full, new clients are led by a hash of their address",
			Args: []any{"percent", percent, "services", busiest},
			Event: func(node string) event.Event {
				return event.AffinityNearlyFull(node, p.fam.String(), percent, busiest)
			},
		})
	}
	p.told.nearly = p.told.nearly && percent >= 60
	return all
}

// Measure is part of mode.Plane. Of session affinity nothing is told that has not been measured, or cannot be.
func (p *Plane) Measure(emit mode.Emit) error {
	emit(cleanupFailures, 0)
	if use := p.shown.Load(); use != nil && use.Limit > 0 {
		emit(entriesMetric, float64(use.Entries))
		emit(limitMetric, float64(use.Limit))
	}
	return nil
}
