package relay

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
)

// udpRole makes the test's program a client or a backend, so that neither shares the relay's process: "echo ADDRESS", or
// "ask ADDRESS CLIENTS WINDOW DURATION".
const udpRole = "RELAY_TEST_UDP"

func playUDP(role string) {
	words := strings.Fields(role)
	at := netip.MustParseAddrPort(words[1])
	var err error
	switch words[0] {
	case "echo":
		err = benchEcho(at)
	case "ask":
		clients, _ := strconv.Atoi(words[2])
		window, _ := strconv.Atoi(words[3])
		long, _ := time.ParseDuration(words[4])
		err = benchAsk(at, clients, window, long)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, role+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func benchSocket(at netip.AddrPort) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20) // a window is more than the default takes
	}
	if err == nil && at.IsValid() {
		err = unix.Bind(fd, &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())})
	}
	return fd, err
}

func benchEcho(at netip.AddrPort) error {
	fd, err := benchSocket(at)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for buf := make([]byte, 2048); ; {
		n, from, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return err
		}
		if err := unix.Sendto(fd, buf[:n], 0, from); err != nil {
			return err
		}
	}
}

// benchAsk prints how many questions a second were answered: each client has a window of them under way.
func benchAsk(to netip.AddrPort, clients, window int, long time.Duration) error {
	var fds []int
	for range clients {
		fd, err := benchSocket(netip.AddrPort{})
		if err != nil {
			return err
		}
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 200_000})
		if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}); err != nil {
			return err
		}
		fds = append(fds, fd)
	}
	question, buf := make([]byte, 64), make([]byte, 2048)
	answered, lost := 0, 0
	begun := time.Now()
	for time.Since(begun) < long {
		for _, fd := range fds {
			for range window {
				if _, err := unix.Write(fd, question); err != nil {
					return err
				}
			}
		}
		for _, fd := range fds {
			for range window {
				_, err := unix.Read(fd, buf)
				for err == unix.EINTR { // Go's scheduler sends signals
					_, err = unix.Read(fd, buf)
				}
				if err != nil {
					lost++
					continue
				}
				answered++
			}
		}
	}
	fmt.Println(float64(answered)/time.Since(begun).Seconds(), lost)
	return nil
}

// startRole runs a role in a host of a lab.
func startRole(b *testing.B, lab *netlab.TestLab, host, role string) (*exec.Cmd, *bytes.Buffer) {
	b.Helper()
	out := &bytes.Buffer{}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), udpRole+"="+role, "GOMAXPROCS=1")
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	lab.On(host, func() {
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
	})
	return cmd, out
}

// BenchmarkUDPRequests compares requests and responses through the relay with those of pod to pod: of one client, of many, and of
// some that have many under way. Direct and relayed alternate, and the ratio is the median of the pairs, so that what else the
// machine does counts for both.
//
//	heavy go test -run '^$' -bench UDPRequests -benchtime 15x ./plane/internal/relay
func BenchmarkUDPRequests(b *testing.B) {
	lab := netlab.ForTest(b, netlab.Options{NoNode2: true, NoClient: true})
	pod1, _ := netlab.HostByName("pod1")
	backend := netip.AddrPortFrom(pod1.V4, 7000)
	echo, _ := startRole(b, lab, "pod1", "echo "+backend.String())
	defer echo.Wait()
	defer echo.Process.Kill()
	r, node := relayOn(b, lab, Config{})
	l := listenUDP(b, r, netip.AddrPortFrom(node.V4, 0), to(backend))
	for _, load := range []struct{ clients, window int }{{1, 1}, {64, 1}, {8, 32}} {
		rate := func(to netip.AddrPort) float64 {
			cmd, out := startRole(b, lab, "pod3", fmt.Sprintf("ask %v %d %d 300ms", to, load.clients, load.window))
			if err := cmd.Wait(); err != nil {
				b.Fatal(err)
			}
			var answered float64
			var lost int
			if _, err := fmt.Sscan(out.String(), &answered, &lost); err != nil || lost > 0 {
				b.Errorf("%v: %q, %d lost: %v; %+v", to, out, lost, err, r.Stats().UDP)
			}
			return answered
		}
		b.Run(fmt.Sprintf("clients=%d/window=%d", load.clients, load.window), func(b *testing.B) {
			var direct, relayed, ratios []float64
			before, cpu := r.Stats().UDP, cpuTime()
			for b.Loop() {
				d, r := rate(backend), rate(l.Addr())
				direct, relayed, ratios = append(direct, d), append(relayed, r), append(ratios, r/d)
			}
			after := r.Stats().UDP
			moved := float64(after.ToBackends.Datagrams + after.ToClients.Datagrams - before.ToBackends.Datagrams - before.ToClients.Datagrams)
			b.ReportMetric(median(direct), "direct/s")
			b.ReportMetric(median(relayed), "relayed/s")
			b.ReportMetric(median(ratios), "ratio")
			b.ReportMetric(float64(cpuTime()-cpu)/moved, "cpu-ns/datagram")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}
