package userspace

import (
	"strconv"
	"strings"
	"time"

	"kube-proxy/config/option"
)

// Options are the fields of the mode. Some were in the published type until upstream removed the
// mode (CF-44, CF-45).
type Options struct {
	// PortRange has the ports of this node at which proxied connections may arrive; "" for any.
	PortRange string `json:"portRange"`
	// UDPIdleTimeout is how long an idle session of UDP is kept.
	UDPIdleTimeout option.Duration `json:"udpIdleTimeout"`
	Userspace      struct {
		// TerminationGracePeriod is how long connections may continue after their endpoint or their
		// Service was removed; 0 for no limit, as in the modes of the kernel (PN-03, DP-53).
		TerminationGracePeriod option.Duration `json:"terminationGracePeriod"`
		// DrainTimeout is how long connections continue after the process is signalled to end.
		DrainTimeout option.Duration `json:"drainTimeout"`
		// NodeEndpoints: endpoints at the node's own addresses get connections.
		NodeEndpoints *bool `json:"nodeEndpoints"`
	} `json:"userspace"`
	// UserspaceFallback: the mode replaces a selected mode that cannot run.
	UserspaceFallback *bool `json:"userspaceFallback"`
}

// defaults are the default values.
func defaults() *Options {
	v := &Options{UserspaceFallback: new(true)}
	v.UDPIdleTimeout.Duration = 250 * time.Millisecond
	// This suffices for requests in progress. Clients must reopen longer connections in any case,
	// and no process accepts new ones during the wait.
	v.Userspace.DrainTimeout.Duration = 5 * time.Second
	v.Userspace.NodeEndpoints = new(true)
	return v
}

// options is the mode's section of the configuration.
func options() option.Section {
	v := defaults()
	return option.Section{Title: "userspace", Order: 60, Values: v, Check: v.check, Fields: []option.Field{
		{Path: "portRange", Flag: "proxy-port-range", Row: "CF-44", Restart: option.AtStart,
			Help: "host `ports` to listen on: first-last, first+more, or one; default any"},
		{Path: "udpIdleTimeout", Flag: "udp-timeout", Row: "CF-45", Restart: option.AtStart,
			Help: "how long an idle UDP flow is kept"},
		{Path: "userspace.terminationGracePeriod", Flag: "userspace-termination-grace-period", Row: "EXT",
			Restart: option.AtStart,
			Help: "maximum time that open connections to a removed endpoint or Service continue; " +
				"0 means no limit, as in other modes"},
		{Path: "userspace.drainTimeout", Flag: "userspace-drain-timeout", Row: "EXT",
			Help: "maximum time that open connections continue when the process stops"},
		{Path: "userspace.nodeEndpoints", Flag: "userspace-node-endpoints", Row: "EXT", Restart: option.AtStart,
			Help: "connect to endpoints at this node's own addresses; if false, no Service bypasses " +
				"the node's firewall"},
		{Path: "userspaceFallback", Flag: "userspace-fallback", Row: "EXT", Restart: "the data plane is chosen once",
			Help: "run mode userspace if the configured mode cannot run here; " +
				"if false, the process then exits with an error"},
	}}
}

func (o *Options) check(r *option.Report) {
	r.Positive("udpIdleTimeout", o.UDPIdleTimeout)
	r.NotNegative("userspace.terminationGracePeriod", o.Userspace.TerminationGracePeriod)
	r.Positive("userspace.drainTimeout", o.Userspace.DrainTimeout)
	if _, _, ok := portRange(o.PortRange); !ok {
		r.Wrong("portRange", o.PortRange, "want first-last, first+more or one port, each 0 to 65535; nothing, 0 or "+
			"0-0 for any")
	}
}

// optionsOf returns the mode's options.
func optionsOf(all option.Blocks) *Options { return option.Of(all, defaults()) }

// portRange reads "a-b", "a+more", "a" and "" (flag --proxy-port-range); 0 and 0 are any.
func portRange(s string) (first, last uint16, ok bool) {
	s = strings.TrimSpace(s)
	if s == "" {
		return 0, 0, true
	}
	low, high, to := strings.Cut(s, "-")
	more := false
	if !to {
		low, high, more = strings.Cut(s, "+")
	}
	a, err := strconv.ParseUint(low, 10, 16)
	b := a
	if err == nil && (to || more) {
		b, err = strconv.ParseUint(high, 10, 16)
	}
	if more {
		b = min(a+b, 65535)
	}
	return uint16(a), uint16(b), err == nil && a <= b && (a > 0 || b == 0)
}
