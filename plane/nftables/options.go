package nftables

import (
	"kube-proxy/config/option"
	"kube-proxy/mode"
)

// Options are the values of the block nftables (CF-30). The periods are 0, see docs/adr/0021: the
// plane notices foreign changes at once, and upstream's 30 s would compare a large table all the
// time.
type Options struct {
	NFTables struct {
		MasqueradeBit *int32          `json:"masqueradeBit"`
		MasqueradeAll bool            `json:"masqueradeAll"`
		SyncPeriod    option.Duration `json:"syncPeriod"`
		MinSyncPeriod option.Duration `json:"minSyncPeriod"`
	} `json:"nftables"`

	localhostNodePorts bool // only a flag
}

// useGate is the hint for the flag --nftables-localhost-nodeports, which the feature gate replaces.
const useGate = "use the feature gate KubeProxyNFTablesLocalhostNodePorts"

// options returns the mode's section of the configuration.
func options() option.Section {
	v := &Options{}
	v.NFTables.MasqueradeBit = new(int32(mode.MasqueradeBit))
	return option.Section{Title: "nftables", Order: 30, OnlyInMode: true, Values: v, Check: v.check,
		Fields: []option.Field{
			{Path: "nftables.minSyncPeriod", Flag: "nftables-min-sync-period", Row: "CF-30",
				Help: "minimum time between two writes to the kernel; upstream's default is 1s"},
			{Path: "nftables.syncPeriod", Flag: "nftables-sync-period", Row: "CF-30",
				Help: "time between two full comparisons with the kernel, in addition to the watch for changes by " +
					"other programs; 0 means 5m"},
			{Path: "nftables.masqueradeBit", Flag: "nftables-masquerade-bit", Row: "CF-30",
				Restart: "packets on their way carry it",
				Help:    "bit of the packet mark that requests masquerading, 0 to 31"},
			{Path: "nftables.masqueradeAll", Flag: "nftables-masquerade-all", Row: "CF-30",
				Help: "masquerade every connection to a cluster IP"},
			{At: &v.localhostNodePorts, Flag: "nftables-localhost-nodeports", Effect: option.Effect{Gone: useGate},
				Help: "without effect: " + useGate},
		}}
}

func (o *Options) check(r *option.Report) {
	v := o.NFTables
	r.Within("nftables.masqueradeBit", *v.MasqueradeBit, 0, 31)
	if v.SyncPeriod.Duration < 0 {
		r.Wrong("nftables.syncPeriod", v.SyncPeriod.Duration.String(), "want more than 0, or 0 for the default")
	}
	r.Periods("nftables", v.SyncPeriod, v.MinSyncPeriod)
}
