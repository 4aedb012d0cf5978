package iptables

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
	"kube-proxy/plane/planetest"
)

// differs names what this mode does otherwise, by intent (DP-26).
var differs = map[string]string{
	"SV-62": "a port that a Service does not have is not rejected: iptables looks at the ports that there are",
	"SV-63": "an address of the service network that no Service has is not dropped",
	"SV-66": "a ping of a cluster IP is not handled",
}

// newLiberal makes a plane where conntrack takes packets as they come (--conntrack-tcp-be-liberal). In the lab the
// sink answers the client past the node, which then sees half of a connection and else drops the rest (DP-09).
func newLiberal(b Backend) func(lb.Family) (planetest.Plane, error) {
	return func(f lb.Family) (planetest.Plane, error) {
		if _, err := kernel.SetSysctl("net.netfilter.nf_conntrack_tcp_be_liberal", "1"); err != nil {
			return nil, err
		}
		return New(Config{Family: f, Backend: b, Runner: system{lock: ownLock()}})
	}
}

// ownLock returns a lock file of the plane's own. All planes of the legacy back end share one, in whatever network
// namespace they are, and where code is slow many tests at once wait too long for it.
func ownLock() string { return fmt.Sprintf("/run/xtables.lock.%d.%d", os.Getpid(), locks.Add(1)) }

var locks atomic.Uint64

// TestMain deletes the lock files.
func TestMain(m *testing.M) {
	code := m.Run()
	for i := range locks.Load() {
		os.Remove(fmt.Sprintf("/run/xtables.lock.%d.%d", os.Getpid(), i+1))
	}
	os.Exit(code)
}

// TestConformance sends the packets of every scenario through the kernel, with both variants of iptables.
func TestConformance(t *testing.T) {
	t.Run("nft", func(t *testing.T) {
		needs(t, NFT)
		planetest.Run(t, planetest.Config{Mode: "iptables", New: newLiberal(NFT), Differs: differs, Untouched: true})
	})
	t.Run("legacy", func(t *testing.T) {
		needs(t, Legacy)
		planetest.Run(t, planetest.Config{Mode: "iptables-legacy", New: newLiberal(Legacy), Differs: differs, Untouched: true})
	})
}

// TestRandomTransitions walks at random between the states of all scenarios.
func TestRandomTransitions(t *testing.T) {
	for _, b := range []Backend{NFT, Legacy} {
		t.Run(string(b), func(t *testing.T) {
			needs(t, b)
			planetest.Transitions(t, planetest.Config{New: newWith(b)})
		})
	}
}

func newWith(b Backend) func(lb.Family) (planetest.Plane, error) {
	return func(f lb.Family) (planetest.Plane, error) {
		return New(Config{Family: f, Backend: b, Runner: system{lock: ownLock()}})
	}
}
