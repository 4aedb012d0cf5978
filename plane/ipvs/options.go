package ipvs

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"kube-proxy/config/option"
	"kube-proxy/lb"
)

// Options are the values of the block ipvs (CF-25 to CF-29).
type Options struct {
	IPVS struct {
		SyncPeriod    option.Duration `json:"syncPeriod"`
		MinSyncPeriod option.Duration `json:"minSyncPeriod"`
		// Scheduler is the kernel's name of the scheduler; "" is the default.
		Scheduler string `json:"scheduler"`
		// ExcludeCIDRs are the networks of foreign virtual servers.
		ExcludeCIDRs []string `json:"excludeCIDRs"`
		// StrictARP: the node answers ARP on an interface only for addresses of that interface.
		StrictARP bool `json:"strictARP"`
		// Timeouts of idle connections, and TCPFinTimeout of closing ones; 0 keeps the kernel's.
		TCPTimeout    option.Duration `json:"tcpTimeout"`
		TCPFinTimeout option.Duration `json:"tcpFinTimeout"`
		UDPTimeout    option.Duration `json:"udpTimeout"`
	} `json:"ipvs"`
}

// options returns the mode's section of the configuration.
func options() option.Section {
	v := &Options{}
	v.IPVS.SyncPeriod.Duration = 30 * time.Second
	return option.Section{Title: "ipvs", Order: 50, OnlyInMode: true, Values: v, Check: v.check, Fields: []option.Field{
		{Path: "ipvs.scheduler", Flag: "ipvs-scheduler", Row: "CF-26", Restart: option.AtStart,
			Help: "`name` of a scheduler of the kernel; default rr"},
		{Path: "ipvs.minSyncPeriod", Flag: "ipvs-min-sync-period", Row: "CF-25",
			Help: "minimum time between two writes to the kernel"},
		{Path: "ipvs.syncPeriod", Flag: "ipvs-sync-period", Row: "CF-25",
			Help: "time between two complete comparisons with the kernel"},
		{Path: "ipvs.excludeCIDRs", Flag: "ipvs-exclude-cidrs", Row: "CF-27", Restart: option.AtStart,
			Help: "`CIDRs` whose virtual servers are never removed"},
		{Path: "ipvs.strictARP", Flag: "ipvs-strict-arp", Row: "CF-28", Restart: option.AtStart,
			Help: "answer ARP only for addresses of the receiving interface: arp_ignore 1, arp_announce 2"},
		{Path: "ipvs.tcpTimeout", Flag: "ipvs-tcp-timeout", Row: "CF-29", Restart: option.AtStart,
			Help: "timeout of idle TCP connections; 0 keeps the kernel's"},
		{Path: "ipvs.tcpFinTimeout", Flag: "ipvs-tcpfin-timeout", Row: "CF-29", Restart: option.AtStart,
			Help: "timeout of idle TCP connections after a FIN; 0 keeps the kernel's"},
		{Path: "ipvs.udpTimeout", Flag: "ipvs-udp-timeout", Row: "CF-29", Restart: option.AtStart,
			Help: "timeout of idle UDP flows; 0 keeps the kernel's"},
	}}
}

// schedulers returns the schedulers that kernels have for IPVS, the default first. Not every kernel
// has all.
func schedulers() []string {
	return []string{"rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sh", "dh", "sed", "nq", "mh", "fo", "ovf", "twos"}
}

// longestTimeout is the longest timeout that IPVS accepts on all kernels: 2^31-1 ticks, with up to
// a thousand a second.
const longestTimeout = (1<<31 - 1) / 1000 * time.Second

func (o *Options) check(r *option.Report) {
	v := o.IPVS
	o.checkExcluded(r)
	r.Positive("ipvs.syncPeriod", v.SyncPeriod)
	r.Periods("ipvs", v.SyncPeriod, v.MinSyncPeriod)
	for _, timeout := range []struct {
		path string
		is   option.Duration
	}{{"ipvs.tcpTimeout", v.TCPTimeout}, {"ipvs.tcpFinTimeout", v.TCPFinTimeout}, {"ipvs.udpTimeout", v.UDPTimeout}} {
		r.NotNegative(timeout.path, timeout.is)
		if timeout.is.Duration > longestTimeout {
			r.Wrong(timeout.path, timeout.is.Duration.String(), "want at most "+longestTimeout.String()+
				", the longest that the kernel takes")
		}
	}
	// The mode checks at its start whether this machine's kernel has it (CF-26).
	if known := schedulers(); v.Scheduler != "" && !slices.Contains(known, v.Scheduler) {
		r.Wrong("ipvs.scheduler", v.Scheduler, "want "+strings.Join(known, ", "))
	}
}

// checkExcluded implements CF-27. In other modes these networks limit the cleanup, so --cleanup
// fails if one of them is invalid.
func (o *Options) checkExcluded(r *option.Report) {
	bad := false
	for i, s := range o.IPVS.ExcludeCIDRs {
		if _, err := option.ParsePrefix(s); err == nil {
			continue
		}
		bad = true
		reported := r.Wrong
		if r.Cleanup {
			reported = r.Insist
		}
		reported(fmt.Sprintf("ipvs.excludeCIDRs[%d]", i), s, "want a CIDR such as 192.0.2.0/24")
	}
	if bad && !r.Runs && !r.Cleanup {
		r.Warn("%s has a value that is not a CIDR: nothing that mode ipvs left is removed", r.Name("ipvs.excludeCIDRs"))
	}
}

// excluded returns the networks of foreign virtual servers: everything, if one of them is invalid.
func (o *Options) excluded() (all []netip.Prefix) {
	for _, s := range o.IPVS.ExcludeCIDRs {
		p, err := option.ParsePrefix(s)
		if err != nil {
			return []netip.Prefix{lb.IPv4.Everywhere(), lb.IPv6.Everywhere()}
		}
		all = append(all, p)
	}
	return all
}

// optionsOf returns the mode's values, or the zero values.
func optionsOf(all option.Blocks) *Options { return option.Of(all, &Options{}) }

// networks returns the networks whose family is checked.
func networks(all option.Blocks) map[string][]netip.Prefix {
	return map[string][]netip.Prefix{"ipvs.excludeCIDRs": optionsOf(all).excluded()}
}
