package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/kube-proxy/config/v1alpha1"
)

// moved maps fields of older files to their current place (CF-47). Until v1.7 the file was flat.
var moved = map[string]string{
	"conntrackMax":                    "conntrack.min",
	"conntrack.max":                   "conntrack.min",
	"resourceContainer":               "",
	"conntrackMaxPerCore":             "conntrack.maxPerCore",
	"conntrackMin":                    "conntrack.min",
	"conntrackTCPEstablishedTimeout":  "conntrack.tcpEstablishedTimeout",
	"conntrackTCPCloseWaitTimeout":    "conntrack.tcpCloseWaitTimeout",
	"iptablesMasqueradeBit":           "iptables.masqueradeBit",
	"iptablesSyncPeriodSeconds":       "iptables.syncPeriod",
	"iptablesMinSyncPeriodSeconds":    "iptables.minSyncPeriod",
	"masqueradeAll":                   "iptables.masqueradeAll",
	"kubeconfigPath":                  "clientConnection.kubeconfig",
	"clientConnection.kubeConfigFile": "clientConnection.kubeconfig",
	"udpTimeoutMilliseconds":          "udpIdleTimeout",
	"healthzPort":                     "healthzBindAddress",
	"master":                          "",
}

var whyGone = map[string]string{
	"resourceContainer": "the container runtime puts the process into a cgroup",
	"master":            "use --master",
}

// modernize changes root, a file of any age, to the current layout, except udpIdleTimeout, which
// the current type does not have. It returns warnings with its own appended.
func modernize(root map[string]any, warnings []string) []string {
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	if v := root["apiVersion"]; v == "componentconfig/v1alpha1" {
		root["apiVersion"] = v1alpha1.SchemeGroupVersion.String()
		warn("apiVersion %v is read as %v", v, root["apiVersion"])
	}
	for _, from := range slices.Sorted(maps.Keys(moved)) {
		value, ok := take(root, from)
		if !ok {
			continue
		}
		to := moved[from]
		switch {
		case to == "":
			if !isZero(value) {
				warn("%s has no effect: %s", from, whyGone[from])
			}
			continue
		case to == "conntrack.min" && from != "conntrackMin":
			if !isZero(value) {
				take(root, "conntrack.maxPerCore")
				take(root, "conntrack.min")
				put(root, "conntrack.maxPerCore", 1.0)
				put(root, "conntrack.min", value)
				warn("%s is read as conntrack.min, with conntrack.maxPerCore 1", from)
			}
			continue
		case from == "healthzPort":
			value = oldHealthz(root, value)
			if value == nil {
				continue
			}
		case strings.HasSuffix(from, "Seconds"), strings.HasSuffix(from, "Milliseconds"),
			strings.HasSuffix(from, "Timeout"):
			value = oldDuration(from, value)
		}
		if put(root, to, value) {
			warn("%s is read as %s", from, to)
		} else {
			warn("%s is ignored: %s is given too", from, to)
		}
	}
	if text, ok := root["featureGates"].(string); ok { // until v1.9
		gates := map[string]any{}
		for part := range strings.SplitSeq(text, ",") {
			if name, on, ok := strings.Cut(strings.TrimSpace(part), "="); ok {
				b, err := strconv.ParseBool(on)
				gates[name] = b
				if err != nil {
					gates[name] = on // the decoder reports that the value must be true or false
				}
			}
		}
		root["featureGates"] = gates
		warn("featureGates is read as a mapping")
	}
	return warnings
}

// oldDuration turns numbers into durations: until v1.5 some fields were counts of the unit in their
// name.
func oldDuration(name string, value any) any {
	n, ok := value.(float64)
	if !ok {
		return value
	}
	unit := time.Second
	switch {
	case strings.HasSuffix(name, "Milliseconds"):
		unit = time.Millisecond
	case !strings.HasSuffix(name, "Seconds"):
		unit = time.Nanosecond
	}
	return time.Duration(n * float64(unit)).String()
}

// oldHealthz joins healthzPort to the address: 0 was no server.
func oldHealthz(root map[string]any, port any) any {
	n, ok := port.(float64)
	if !ok {
		return port
	}
	host, _ := root["healthzBindAddress"].(string)
	if strings.Contains(host, ":") && !strings.HasSuffix(host, "]") {
		return nil // it has a port
	}
	delete(root, "healthzBindAddress")
	if n == 0 {
		return noServer
	}
	orDefault(&host, "127.0.0.1")
	return fmt.Sprintf("%s:%.0f", host, n)
}

// take removes the value at path from root.
func take(root map[string]any, path string) (any, bool) {
	if block, name, ok := strings.Cut(path, "."); ok {
		if sub, ok := root[block].(map[string]any); ok {
			return take(sub, name)
		}
		return nil, false
	}
	v, ok := root[path]
	delete(root, path)
	return v, ok
}

// put sets the value at path unless there is one; it reports whether it did.
func put(root map[string]any, path string, value any) bool {
	block, name, ok := strings.Cut(path, ".")
	if !ok {
		if !isZero(root[path]) {
			return false
		}
		root[path] = value
		return true
	}
	sub, ok := root[block].(map[string]any)
	if !ok {
		sub = map[string]any{}
		root[block] = sub
	}
	return put(sub, name, value)
}
