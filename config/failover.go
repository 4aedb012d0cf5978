package config

import (
	"encoding/json"
	"slices"
	"strings"

	"kube-proxy/config/option"
)

// Failover configures what is done about endpoints that this node does not reach.
type Failover struct {
	// Mode is off, rescue or avoid.
	Mode string
	// Reset ends established connections to endpoints on unreachable nodes.
	Reset bool
}

// failoverModes are the values of --failover.
var failoverModes = []string{"off", "rescue", "avoid"}

// failoverMode is a text that YAML may take for a value of its own: off without quotes is false.
type failoverMode string

// UnmarshalJSON implements [json.Unmarshaler].
func (m *failoverMode) UnmarshalJSON(data []byte) error {
	if string(data) == "false" {
		*m = "off"
		return nil
	}
	return json.Unmarshal(data, (*string)(m))
}

// failoverBlock has the fields that the published type lacks.
type failoverBlock struct {
	Failover      failoverMode `json:"failover"`
	FailoverReset bool         `json:"failoverReset"`
}

func (o *Options) failoverSection() option.Section {
	o.failover.Failover = failoverMode(failoverModes[0])
	return option.Section{Title: "Failover", Order: 27, Values: o.failover, Fields: []option.Field{
		{Path: "failover", Flag: "failover", Row: "FO-01", Effect: onLinux,
			Help: "`action` for endpoints that clients of this node do not reach, once a probe by the node confirms " +
				"that: off; rescue: waiting clients get another endpoint; avoid: new connections do, too"},
		{Path: "failoverReset", Flag: "failover-reset", Row: "FO-13", Effect: onLinux,
			Help: "reset established connections to endpoints of unreachable nodes; only with failover"},
	}}
}

// checkFailover is FO-01 and FO-13. An empty value in a file is the default.
func (o *Options) checkFailover(r *option.Report) Failover {
	orDefault(&o.failover.Failover, failoverMode(failoverModes[0]))
	f := Failover{Mode: string(o.failover.Failover), Reset: o.failover.FailoverReset}
	if !slices.Contains(failoverModes, f.Mode) {
		r.Wrong("failover", f.Mode, "want "+strings.Join(failoverModes, ", "))
	}
	if f.Reset && f.Mode == failoverModes[0] && o.system == "linux" {
		o.warn("%s has no effect: %s is off", o.where("failoverReset"), o.where("failover"))
	}
	return f
}
