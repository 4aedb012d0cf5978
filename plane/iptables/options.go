package iptables

import (
	"time"

	"kube-proxy/config/option"
	"kube-proxy/mode"
)

// Options are the values of the block iptables, which other modes read too (CF-20 to CF-24).
type Options struct {
	IPTables struct {
		MasqueradeBit      *int32          `json:"masqueradeBit"`
		MasqueradeAll      bool            `json:"masqueradeAll"`
		LocalhostNodePorts *bool           `json:"localhostNodePorts"`
		SyncPeriod         option.Duration `json:"syncPeriod"`
		MinSyncPeriod      option.Duration `json:"minSyncPeriod"`
	} `json:"iptables"`
}

// options returns the mode's section of the configuration.
func options() option.Section {
	values := &Options{}
	v := &values.IPTables
	v.MasqueradeBit, v.LocalhostNodePorts = new(int32(mode.MasqueradeBit)), new(true)
	v.SyncPeriod.Duration, v.MinSyncPeriod.Duration = 30*time.Second, time.Second
	return option.Section{Title: "iptables", Order: 40, Values: values, Check: values.check, Fields: []option.Field{
		{Path: "iptables.minSyncPeriod", Flag: "iptables-min-sync-period", Row: "CF-24",
			Help: "minimum time between two writes to the kernel; the flag applies to nftables too"},
		{Path: "iptables.syncPeriod", Flag: "iptables-sync-period", Row: "CF-23",
			Help: "time between two complete comparisons with the kernel; the flag applies to nftables too"},
		{Path: "iptables.masqueradeBit", Flag: "iptables-masquerade-bit", Row: "CF-20",
			Restart: "packets on their way carry it",
			Help:    "bit of the packet mark that requests masquerading, 0 to 31; the flag applies to nftables too"},
		// Its flag, --masquerade-all, belongs to all modes.
		{Path: "iptables.masqueradeAll", Row: "CF-21",
			Help: "masquerade every connection to a cluster IP; the flag applies to nftables too"},
		{Path: "iptables.localhostNodePorts", Flag: "iptables-localhost-nodeports", Row: "CF-22",
			Restart: "a setting of the kernel and the rules that guard it go together, made at the start",
			Help:    "NodePorts answer on 127.0.0.1 too"},
	}}
}

func (o *Options) check(r *option.Report) {
	v := &o.IPTables
	if v.SyncPeriod.Duration > 0 && !r.Given("iptables.minSyncPeriod") {
		v.MinSyncPeriod.Duration = min(v.MinSyncPeriod.Duration, v.SyncPeriod.Duration)
	}
	r.Within("iptables.masqueradeBit", *v.MasqueradeBit, 0, 31)
	r.Positive("iptables.syncPeriod", v.SyncPeriod)
	r.Periods("iptables", v.SyncPeriod, v.MinSyncPeriod)
	v.MinSyncPeriod = option.Sayable(v.MinSyncPeriod)
}
