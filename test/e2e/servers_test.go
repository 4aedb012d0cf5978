package e2e

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/testbed"
)

// The default addresses of the servers.
var (
	healthPort  = netip.AddrPortFrom(node1Addr(), 10256)
	metricsPort = netip.MustParseAddrPort("127.0.0.1:10249")
)

func node1Addr() netip.Addr { return netlab.Addr(netlab.Node1, false) }

// awaitOK sends requests until the answer is 200.
func awaitOK(t *testing.T, server netip.AddrPort, path string) (answer *testbed.Answer) {
	t.Helper()
	until(t, func() string {
		var err error
		if answer, err = bed.Get(t.Context(), netlab.Node1, server, path); err == nil && answer.Code == 200 {
			return ""
		}
		return fmt.Sprintf("http://%s%s answers %+v, %v", server, path, answer, err)
	})
	return answer
}

// With bindAddressHardFail a port in use by another program ends the process with status 1, after
// events that have the reason (HT-07, EV-02, EV-03).
func TestPortsOccupied(t *testing.T) {
	begin(t)
	deleteEvents(t)
	for _, port := range []netip.AddrPort{healthPort, metricsPort} {
		other, err := bed.Occupy(netlab.Node1, port.Port())
		must(t, err)
		defer other.Close()
	}
	p, _ := startConfigured(t, clusterCIDR+"bindAddressHardFail: true\n")
	code := p.ExitCode()
	for reason, port := range map[string]netip.AddrPort{
		"FailedToStartProxierHealthcheck": healthPort, "FailedToStartMetricServer": metricsPort,
	} {
		if last := p.LogTail(2); code != 1 || !strings.Contains(last, strconv.Itoa(int(port.Port()))) {
			t.Errorf("status %d, want 1; the log ends with %s", code, last)
		}
		awaitEvent(t, reason, netlab.Node1)
	}
}
