package preflight

import (
	"slices"
	"strconv"
	"strings"
)

// Firewall has the settings of Windows Firewall in the registry.
type Firewall struct {
	// Blocks: a profile is on and drops connections that no rule allows.
	Blocks bool
	// Rules are in the form of [MS-GPFAS] 2.2.2.19:
	// "v2.30|Action=Allow|Active=TRUE|Dir=In|Protocol=6|LPort=10256|Name=…|".
	Rules []string
	// Program is the path of this program.
	Program string
}

func firewallKinds() []Kind {
	return []Kind{{ID: "firewall", Everywhere: true, Worst: Warning, judge: (*judge).firewall,
		Looks: "whether Windows Firewall lets other machines reach the health port, the healthCheckNodePorts and, " +
			"in mode userspace, the proxy's listeners",
		Why: "Windows drops incoming connections that no rule allows: load balancers consider this node " +
			"unhealthy, and clients of mode userspace get no answer.",
		Remedy: "docs/windows.md has the rules that allow them, section Firewall."}}
}

func (j *judge) firewall() {
	m, runs := j.running()
	if j.facts.OS != "windows" || !runs {
		return
	}
	f, ok := of(j, "", j.facts.Firewall)
	if !ok {
		return
	}
	if !f.Blocks {
		j.ok("", "no profile blocks incoming connections")
		return
	}
	look := func(about string, first, last uint16, remedy string) {
		if f.allows(first, last) {
			j.ok(about, "a rule allows it")
		} else {
			j.add(Warning, about, "no rule allows it").Remedy = remedy
		}
	}
	const rule = `Run: New-NetFirewallRule -Direction Inbound -Action Allow -Protocol TCP -DisplayName "kube-proxy `
	if at := j.Healthz; at.IsValid() && !at.Addr().IsLoopback() {
		port := strconv.Itoa(int(at.Port()))
		look("port "+port, at.Port(), at.Port(), rule+`healthz" -LocalPort `+port)
	}
	if m.Terminates {
		look("listeners", 1, 65535, rule+`listeners" -Program "`+f.Program+`"`)
	} else {
		look("healthCheckNodePorts", 30000, 32767, rule+`health checks" -LocalPort 30000-32767 (or the API server's `+
			`--service-node-port-range)`)
	}
}

// allows reports whether a rule allows TCP connections from other machines to all ports of a range
// on which this program listens, and none blocks them.
func (f Firewall) allows(first, last uint16) (allowed bool) {
	for _, text := range f.Rules {
		rule := map[string][]string{}
		for _, field := range strings.Split(text, "|") {
			key, value, _ := strings.Cut(field, "=")
			rule[key] = append(rule[key], value)
		}
		is := func(key string, values ...string) bool {
			has := rule[key]
			return has == nil || slices.ContainsFunc(values, func(v string) bool {
				return strings.EqualFold(has[0], v)
			})
		}
		ports := slices.Concat(rule["LPort"], rule["LPort2_10"])
		covers := func(text string) bool {
			from, to, isRange := strings.Cut(text, "-")
			low, err := strconv.ParseUint(from, 10, 16)
			high := low
			if isRange && err == nil {
				high, err = strconv.ParseUint(to, 10, 16)
			}
			return err == nil && low <= uint64(first) && uint64(last) <= high
		}
		switch {
		case rule["Active"] == nil || rule["Dir"] == nil || !is("Active", "TRUE") || !is("Dir", "In"),
			!is("Protocol", "6", "256"), !is("App", f.Program):
		case len(ports) > 0 && !slices.ContainsFunc(ports, covers):
		case slices.ContainsFunc([]string{"Svc", "RPort", "RPort2_10", "IF", "IFType", "LUAuth", "RMauth", "AppPkgId",
			"Security"}, func(k string) bool { return rule[k] != nil }):
		case is("Action", "Allow"):
			allowed = true
		case rule["RA4"] == nil && rule["RA6"] == nil: // it blocks everyone
			return false
		}
	}
	return allowed
}
