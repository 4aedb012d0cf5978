//go:build linux

package ebpf

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// listed is a plane that lists the tables of its programs.
type listed struct{ checked }

// Dump returns a line for each frontend: what sockets of each class of clients meet. The rules of
// the packet path are mode nftables' own.
func (p listed) Dump() (string, error) {
	t, err := openReading(&p.kernel.obj.LBMaps)
	if err != nil {
		return "", err
	}
	defer t.close()
	have, err := t.all()
	if err != nil {
		return "", err
	}
	var lines []string
	for k, f := range have.fronts {
		line := fmt.Sprintf("%s affinity %d", keyOf(k), f.Affinity)
		for class, name := range classNames {
			line += fmt.Sprintf("; %s: refuses %d, passes %d, %s", name, f.Refuses[class], f.Passes[class],
				have.backendsOf(f.Set[class]))
		}
		lines = append(lines, line+"\n")
	}
	slices.Sort(lines)
	return strings.Join(lines, ""), nil
}

// TestTenants: changes of one namespace leave what sockets meet at the frontends of others as it
// is (TN-01).
func TestTenants(t *testing.T) {
	p := &planes{bpffs: bpffs(t)}
	planetest.Tenants(t, 2, func(t testing.TB) planetest.Kernel {
		cgroup := netlab.ForTest(t, netlab.Options{Cgroup: true, NoNode2: true, NoClient: true}).Cgroup(netlab.Node1)
		netlab.EnterForTest(t)
		setUp := []string{"link add pods type veth peer name pod", "link set pods up", "link set pod up"}
		for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
			for _, prefix := range (planetest.World{Family: f}).Node().Pods.Prefixes {
				setUp = append(setUp, fmt.Sprintf("route add %s dev pods", prefix))
			}
		}
		for _, args := range setUp {
			if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
				t.Fatalf("ip %s: %v: %s", args, err, out)
			}
		}
		return planetest.Kernel{Sockets: true, New: func(f lb.Family) (planetest.Plane, error) {
			is, err := p.at(f, cgroup)
			return listed{checked{is}}, err
		}}
	})
}
