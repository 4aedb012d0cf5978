package userspace

import (
	"context"
	"fmt"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// core are the scenarios that other kernels run. Together they have all forms of entries that the
// plane gives a redirector, and everything else that depends on the kernel: open connections, flows
// of UDP, restarts, endpoints that do not answer.
var core = []string{
	"address-of-a-pod", "all-ways-in", "dead-endpoint", "detect-bridge", "detect-interface-prefix", "detect-none",
	"detect-cluster-cidr-one-family", "established-connections", "established-udp-flow",
	"external-policy-local", "external-policy-local-none-local", "external-policy-local-udp", "internal-policy-local",
	"no-endpoints", "restart", "sctp", "session-affinity", "source-ranges",
	"source-ranges-local-policy", "source-ranges-without-endpoints", "udp",
}

// TestCore checks that the scenarios for other kernels have all forms of entries.
func TestCore(t *testing.T) {
	planetest.Core(t, planetest.Config{Mode: "userspace", Core: core}, func(f lb.Family, table *lb.Table) ([]string,
		error) {
		m := newMachine()
		p, err := m.start(Config{Family: f})
		if err != nil {
			return nil, err
		}
		defer p.Close()
		if _, err := planetest.ResetAll(context.Background(), p, table); err != nil {
			return nil, err
		}
		d := table.Node.Pods
		forms := []string{fmt.Sprintf("pods by prefix %t, by interface %t, by its name %t", len(d.Prefixes) > 0,
			d.Interface != "", d.InterfacePrefix != "")}
		for k, l := range m.leads {
			form := fmt.Sprintf("NodePort %t %s, sources %t:", k.IsNodePort(), k.Proto, len(l.Sources) > 0)
			for _, r := range l.Routes {
				form += fmt.Sprintf(" %s %t %s", r.From, r.Port != 0, r.Do)
			}
			forms = append(forms, form)
		}
		return forms, nil
	})
}
