//go:build linux

package ebpf

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/test/kerneltest"
)

// lines keeps what is logged.
type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

const refusing = shop + `VIP:81/tcp shop/none:http clusterip
  anywhere reject
VIP:81/udp shop/none:dns clusterip
  anywhere reject
VIP:84/tcp shop/empty:http clusterip
  anywhere reject
VIP:82/tcp shop/drops:http clusterip
  anywhere drop
`

// TestRefusals: a Service without endpoints refuses sockets of pods and of the node at once, and
// one that drops does not answer. Refused calls are counted, and a sample is logged (EB-15, EB-16).
func TestRefusals(t *testing.T) {
	log := &lines{}
	with := func(c *Config) {
		c.Guard, c.Log = true, slog.New(slog.NewTextHandler(log, nil))
	}
	eachFamilyWith(t, with, func(b *bench) {
		b.change(refusing)
		for _, from := range []string{"pod3", netlab.Node1} {
			fd := b.socket(from, unix.SOCK_STREAM, false)
			if err := unix.Connect(fd, sockaddr(b.to("VIP:81"))); !errors.Is(err, unix.ECONNREFUSED) {
				b.t.Errorf("%s connects to a Service without endpoints: %v", from, err)
			}
			if setsErrors() != nil {
				continue // the rules answer datagrams, and sockets notice it later or not at all
			}
			fd = b.socket(from, unix.SOCK_DGRAM, false)
			if err := unix.Sendto(fd, []byte("hello\n"), 0, sockaddr(b.to("VIP:81"))); !errors.Is(err,
				unix.ECONNREFUSED) {
				b.t.Errorf("%s sends to a Service without endpoints: %v", from, err)
			}
		}
		if _, err := b.Dial("pod3", netlab.TCP, b.to("VIP:82"), netlab.DialOptions{Timeout: 300e6}); err == nil ||
			errors.Is(err, unix.ECONNREFUSED) {
			b.t.Errorf("a Service that drops: %v", err)
		}
		at := netip.AddrPortFrom(b.f.Everywhere().Addr(), 30080)
		if err := b.bind(netlab.Node1, unix.SOCK_STREAM, at); !errors.Is(err, busy()) {
			b.t.Errorf("bind to a NodePort: %v, want %v", err, busy())
		}
		counts := map[string]float64{}
		if err := b.plane.Measure(func(name string, v float64, labels ...string) {
			counts[name+strings.Join(labels, ",")] = v
		}); err != nil {
			b.t.Error(err)
		}
		if r, d := counts["ebpf_refusals_totalreject"], counts["ebpf_refusals_totaldrop"]; r < 2 || d < 1 ||
			counts["ebpf_refusals_totalbind"] != 1 || counts["ebpf_programs_serving"] != 1 {
			b.t.Errorf("metrics %v", counts)
		}
		program := filepath.Base(os.Args[0])
		want := []string{"Refused a connection to a Service", "to=" + b.to("VIP:81").String(), "why=reject",
			"service=shop/none:", "program=" + program[:min(len(program), 15)], "netns="}
		if !eventually(func() bool {
			for _, w := range want {
				if !strings.Contains(log.String(), w) {
					return false
				}
			}
			return true
		}) {
			b.t.Errorf("log lacks one of %q: %s", want, log)
		}
	})
}

// TestManyNamespaces: a tenant that calls Services that refuse from many short network namespaces
// makes few lines of the log, and a call to another's Service is logged (EB-16).
func TestManyNamespaces(t *testing.T) {
	kerneltest.Later(t)
	log := &lines{}
	eachFamilyWith(t, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(log, nil)) }, func(b *bench) {
		b.change(refusing + "VIP:83/tcp other/none:http clusterip\n  anywhere reject\n")
		first := netlab.Addr("pod3", b.f == lb.IPv6)
		call := func(to string) (err error) {
			first = first.Next()
			n := b.nest()
			n.under(netlab.Node1, "kp"+strconv.Itoa(int(first.As16()[15])), first)
			family := map[lb.Family]int{lb.IPv4: unix.AF_INET, lb.IPv6: unix.AF_INET6}[b.f]
			n.on(func() error {
				fd, e := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
				err = errors.Join(unix.Connect(fd, sockaddr(b.to(to))), unix.Close(fd))
				return e
			})
			return err
		}
		if setsErrors() != nil {
			b.t.Skip("before Linux 5.18 the rules refuse, and programs log nothing")
		}
		const n = 60
		for i := range n {
			if err := call(fmt.Sprint("VIP:", 81+3*(i%2))); !errors.Is(err, unix.ECONNREFUSED) {
				b.t.Fatalf("a Service without endpoints: %v", err)
			}
		}
		if err := call("VIP:83"); !errors.Is(err, unix.ECONNREFUSED) {
			b.t.Fatalf("another Service without endpoints: %v", err)
		}
		about := func(to string) int { return strings.Count(log.String(), "to="+b.to(to).String()+" ") }
		if !eventually(func() bool { return about("VIP:83") == 1 }) {
			b.t.Errorf("a call to another Service is not in the log: %s", log)
		}
		if got := about("VIP:81") + about("VIP:84"); got < 1 || got > n/2 {
			b.t.Errorf("%d lines about %d calls", got, n)
		}
	})
}

// TestCounts: the programs count connections by service port, beside those of the packet path, and
// forget those of Services that are gone (EB-17).
func TestCounts(t *testing.T) {
	kerneltest.Later(t)
	eachFamilyWith(t, func(c *Config) { c.Count = true }, func(b *bench) {
		count := func() map[string]uint64 {
			all := map[string]uint64{}
			if err := b.plane.Traffic(t.Context(),
				func(c mode.Count) { all[c.ServicePort] += c.Connections }); err != nil {
				b.t.Fatal(err)
			}
			return all
		}
		for range 3 {
			b.reaches("pod3", netlab.TCP, "VIP:80", "pod1")
			b.reaches(netlab.Node1, netlab.UDP, "VIP:53", "pod1")
		}
		if got := count(); got["shop/web:http"] != 3 || got["shop/dns:dns"] != 3 {
			b.t.Errorf("counted %v", got)
		}
		other := strings.ReplaceAll(shop, "shop/dns", "shop/other")
		read := 0
		if err := b.plane.Traffic(t.Context(), func(mode.Count) { // writes do not wait for a reader
			read++
			b.change(other)
			b.change(shop)
		}); err != nil || read == 0 {
			b.t.Errorf("%d counts read beside writes, error %v", read, err)
		}
		b.reaches(netlab.Node1, netlab.UDP, "VIP:53", "pod1")
		b.change(strings.Replace(strings.Replace(shop, "VIP:53/udp shop/dns:dns clusterip\n  anywhere balance "+
			"shop/dns:dns/udp/cluster\n", "", 1),
			"set shop/dns:dns/udp/cluster\n  pod1:8080 local\n", "", 1))
		counters := func() (n int) { // without a scrape
			b.must(prune(b.plane.kernel.obj.Counters, func(uint32, []uint64) bool { n++; return false }))
			return n
		}
		before := counters()
		b.On(netlab.Node1, func() { _, err := b.plane.audit(); b.must(err) })
		if after := counters(); before < 2 || after != 1 {
			b.t.Errorf("%d counters after a Service left, %d after the next audit, want more, and 1", before, after)
		}
		if got := count(); got["shop/web:http"] != 3 || got["shop/dns:dns"] != 0 {
			b.t.Errorf("counted %v after a Service left", got)
		}
	})
}
