//go:build linux

package iptables

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
)

// BenchmarkConnect is the set-up of connections through the first and through the last of 5,000 services. It reports how
// much longer the last takes, and the median of both.
func BenchmarkConnect(b *testing.B) {
	for _, back := range []xtables.Backend{xtables.NFT, xtables.Legacy} {
		b.Run(string(back), func(b *testing.B) {
			needs(b, back)
			first, last := connectTimes(b, back, 5000, max(b.N, 500))
			b.ReportMetric(float64(last)/float64(first), "last/first")
			b.ReportMetric(float64(first.Microseconds()), "µs-first")
			b.ReportMetric(float64(last.Microseconds()), "µs-last")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// connectTimes returns the median time of a connect through the first and the last of n services, of so many each, made in
// turn.
func connectTimes(t testing.TB, b xtables.Backend, n, times int) (first, last time.Duration) {
	lab := netlab.ForTest(t, netlab.Options{})
	lab.Serve(netlab.TCP, 8080, "pod1")
	vip := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}) }
	table := &lb.Table{Node: shopTable().Node}
	for i := range n {
		service := "ns/svc-" + strconv.Itoa(i) + ":http"
		set := &lb.BackendSet{ID: lb.SetID{Service: service, Proto: lb.TCP, Scope: lb.Cluster},
			Backends: lb.BackendsOf(lb.Backend{Addr: netip.MustParseAddrPort("10.1.1.11:8080"), Local: true})}
		table.Replace(lb.Owner{Name: strings.TrimSuffix(service, ":http")}, []*lb.Frontend{{
			Key: lb.Key{Addr: vip(i + 1), Port: 80, Proto: lb.TCP}, Service: service, Kind: lb.ClusterIP,
			Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, To: set}}}})
	}
	lab.On("node1", func() { reset(t, newPlane(t, Config{Family: lb.IPv4, Backend: b}), table) })
	took := [2][]time.Duration{}
	lab.On("pod2", func() {
		for range times {
			for i, to := range []netip.Addr{vip(1), vip(n)} {
				d, err := connectOnce(to)
				if err != nil {
					t.Fatal(err)
				}
				took[i] = append(took[i], d)
			}
		}
	})
	for i := range took {
		slices.Sort(took[i])
	}
	return took[0][times/2], took[1][times/2]
}

// connectOnce makes a connection to port 80 and breaks it off.
func connectOnce(to netip.Addr) (time.Duration, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return 0, err
	}
	start := time.Now()
	err = unix.Connect(fd, &unix.SockaddrInet4{Port: 80, Addr: to.As4()})
	return time.Since(start), err
}
