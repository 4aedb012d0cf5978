package conformance

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/controlplane"
	"kube-proxy/test/e2e/testbed"
)

// routers make the routes between the nodes' pods in the place of the lab, by network; the pods
// then have the CNI plugin bridge. args returns the arguments of the program on a host; dir has its
// files.
var routers = map[string]struct {
	program string
	args    func(host, kubeconfig, dir string) []string
}{
	"flannel": {"flanneld", func(_, kubeconfig, dir string) []string {
		return []string{"-kube-subnet-mgr", "-kubeconfig-file", kubeconfig, "-iface", netlab.Uplink,
			"-net-config-path", filepath.Join(dir, "net-conf.json"), "-subnet-file", filepath.Join(dir, "subnet.env")}
	}},
	"kube-router": {"kube-router", func(host, kubeconfig, _ string) []string {
		return []string{"--kubeconfig", kubeconfig, "--hostname-override", host, "--run-router=true",
			"--enable-cni=false", "--run-firewall=false", "--run-service-proxy=false", "--run-loadbalancer=false",
			"--enable-overlay=false", "--enable-pod-egress=false"}
	}},
}

// networks are the values of Options.Network.
func networks() []string {
	return slices.Sorted(slices.Values(slices.AppendSeq([]string{"bridge", "ptp"}, maps.Keys(routers))))
}

// startRouters removes the lab's routes between the nodes' pods, starts a router on each host, and
// waits for its routes.
func (c *Cluster) startRouters(ctx context.Context, network string) error {
	router, ok := routers[network]
	if !ok {
		return nil
	}
	for _, host := range hosts {
		for _, other := range hosts {
			if other == host {
				continue
			}
			if _, err := c.bed.Command(ctx, host, "ip", "route", "del", testbed.PodRanges[other].String()); err != nil {
				return err
			}
		}
		dir := filepath.Join(c.bed.Dir, host, network)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		// flannel v0.27 reads the range of IPv6 where a Node has one, even if it does not serve it.
		config := fmt.Sprintf(`{"Network": %q, "IPv6Network": %q, "Backend": {"Type": "host-gw"}}`, netlab.Cluster4,
			netlab.Cluster6)
		if err := os.WriteFile(filepath.Join(dir, "net-conf.json"), []byte(config), 0o644); err != nil {
			return err
		}
		kubeconfig, err := c.bed.API.Kubeconfig(network+"-"+host, controlplane.AdminUser, nil)
		if err != nil {
			return err
		}
		cmd := exec.Command(filepath.Join(c.bin, router.program), router.args(host, kubeconfig, dir)...)
		cmd.Env = append(os.Environ(), "NODE_NAME="+host)
		process, err := c.bed.Launch(host, network, filepath.Join(dir, "log"), cmd)
		if err != nil {
			return err
		}
		c.routers = append(c.routers, process)
	}
	for _, host := range hosts {
		if err := c.awaitRoutes(ctx, host, network); err != nil {
			return err
		}
	}
	return nil
}

// awaitRoutes waits until a host has routes to the pods of the others.
func (c *Cluster) awaitRoutes(ctx context.Context, host, network string) error {
	routes := ""
	return until(ctx, func() (missing []string, err error) {
		if routes, err = c.bed.Command(ctx, host, "ip", "-4", "route"); err != nil {
			return nil, err
		}
		for _, other := range hosts {
			if other != host && !strings.Contains(routes, testbed.PodRanges[other].String()+" ") {
				missing = append(missing, "route of "+host+" to pods of "+other)
			}
		}
		if len(missing) == 0 {
			c.logf("%s has routes by %s:\n%s", host, network, routes)
		}
		return missing, nil
	}, func() string {
		log, err := os.ReadFile(filepath.Join(c.bed.Dir, host, network, "log"))
		if err != nil {
			return err.Error()
		}
		return routes + "\n" + string(log)
	})
}
