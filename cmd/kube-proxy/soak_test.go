//go:build linux

package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/seedtest"
)

var soakTime = flag.Duration("soak", 8*time.Second, "how long TestUserspaceSoak lasts")

// soak is a walk: backends die and return, endpoints and Services come and go, and clients count and compare.
type soak struct {
	n        *nodeLab
	rnd      *rand.Rand // of who makes things happen
	backends []*echo
	alive    []bool

	made, datagrams, lost, cut atomic.Int64
	excused                    atomic.Int64 // datagrams lost while nothing moved, for a reason that is counted
	unserved                   atomic.Int64 // datagrams to the Service that comes and goes, without an answer
	garbled, failed            atomic.Int64
	mu                         sync.Mutex
	told                       []string
	missing                    []string // datagrams lost while nothing moved
	deaths                     atomic.Int64
	// noise: the Service that comes and goes.
	noise bool
	moves int
}

const (
	soakWeb   = "10.96.0.10" // always has an endpoint that lives
	soakNoise = "10.96.0.11" // comes and goes
	soakSteps = 40 * time.Millisecond
)

// Backends die and return at random, endpoints and Services come and go, while clients of TCP and UDP count failures and
// compare every byte. No connection fails but one whose backend dies while it is served; and in the end nothing is left of
// all that: no descriptor, no goroutine, no session, no rule (DP-40, PN-03).
func TestUserspaceSoak(t *testing.T) {
	seed := seedtest.Of(t)
	n := newNodeLab(t)
	s := &soak{n: n, rnd: rand.New(rand.NewPCG(seed, 1))}
	for i, host := range []string{"pod1", "pod2", "pod4", "pod5"} {
		s.backends = append(s.backends, n.echo(host, 8080+uint16(i%2)))
		s.alive = append(s.alive, true)
	}
	s.endpoints([]int{0, 1, 2, 3})
	p := n.serve("--udp-timeout=2s")
	s.quiet(seed, time.Second) // warms up what is kept for good
	settled := n.settle(p)
	s.traffic(seed+1, *soakTime, true)
	s.recover()
	n.settle(p) // the change must be in force: what an endpoint answers that is just leaving may be lost
	s.quiet(seed+2, time.Second)
	t.Logf("%d connections and %d datagrams under %d moves and %d deaths; %d connections cut with their backend, %d datagrams lost while backends died or left, %d where the Service may be gone, %d otherwise for want of time or room",
		s.made.Load(), s.datagrams.Load(), s.moves, s.deaths.Load(), s.cut.Load(), s.lost.Load(), s.unserved.Load(), s.excused.Load())
	for _, text := range s.told {
		t.Error(text)
	}
	if len(s.told) > 0 {
		page, err := p.get("/metrics")
		t.Logf("its metrics: %v\n%s", err, regexp.MustCompile(`(?m)^kubeproxy_userspace_.* [1-9].*$`).FindAllString(page, -1))
		for _, host := range []string{netlab.Node1, "pod1", "pod2", "pod3", "pod4", "pod5", netlab.Client} {
			out, _ := n.Command(host, "grep", "-E", "^(Udp|UdpLite|Ip):", "/proc/self/net/snmp").Output()
			t.Logf("%s:\n%s", host, out)
		}
	}
	if s.made.Load() < 100 || s.datagrams.Load() < 100 || s.deaths.Load() == 0 && *soakTime >= time.Second {
		t.Error("that was no soak")
	}
	n.noMore(p, settled)
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d:\n%s", code, p.out.String())
	}
	if strings.Contains(p.out.String(), "DATA RACE") || strings.Contains(p.out.String(), "panic") {
		t.Errorf("the log:\n%s", p.out.String())
	}
}

// quiet has clients work while nothing moves. None of their datagrams may be lost but for those for which a queue of the kernel had
// no room, which all links of the machine share, and which are counted.
func (s *soak) quiet(seed uint64, d time.Duration) {
	before := s.n.Overflows()
	s.traffic(seed, d, false)
	excuses := s.n.Overflows() - before
	if n := len(s.missing); uint64(n) <= excuses {
		s.excused.Add(int64(n))
	} else {
		s.told = append(s.told, fmt.Sprintf("%d datagrams were lost, and %d are accounted for", n, excuses))
		s.told = append(s.told, s.missing[:min(n, 20)]...)
	}
	s.missing = nil
}

func (s *soak) tell(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.told) < 20 {
		s.told = append(s.told, fmt.Sprintf(format, args...))
	}
}

// endpoints gives both Services the backends of these numbers.
func (s *soak) endpoints(of []int) {
	var at []netip.AddrPort
	for _, i := range of {
		at = append(at, s.backends[i].at())
	}
	s.n.service(labService{name: "web", ip: soakWeb, nodePort: 30080, endpoints: at})
	if s.noise {
		s.n.service(labService{name: "noise", ip: soakNoise, nodePort: 30081, endpoints: at})
	}
}

// traffic has clients work for a while, and things happen meanwhile if moving.
func (s *soak) traffic(seed uint64, d time.Duration, moving bool) {
	stop := make(chan struct{})
	time.AfterFunc(d, func() { close(stop) })
	var all sync.WaitGroup
	node := endpoint(netlab.Node1, 30080)
	web := netip.MustParseAddrPort(soakWeb + ":80")
	noise := netip.MustParseAddrPort(soakNoise + ":80")
	for i, c := range []struct {
		host   string
		to     netip.AddrPort
		strict bool
	}{{"pod3", web, true}, {"pod3", web, true}, {netlab.Client, node, true}, {netlab.Node1, web, true}, {"pod1", web, true}, {netlab.Client, noise, false}} {
		rnd := rand.New(rand.NewPCG(seed, uint64(i)))
		all.Go(func() { s.stream(stop, c.host, c.to, c.strict, rnd) })
		udp := rand.New(rand.NewPCG(seed, 100+uint64(i)))
		all.Go(func() { s.datagramClient(stop, c.host, c.to, c.strict && !moving, udp) })
	}
	for moving {
		select {
		case <-stop:
			moving = false
		case <-time.After(soakSteps):
			s.move()
		}
	}
	all.Wait()
}

// move has one thing happen. Backend 0 never dies, and always is an endpoint of web.
func (s *soak) move() {
	s.moves++
	switch i := 1 + s.rnd.IntN(len(s.backends)-1); s.rnd.IntN(4) {
	case 0, 1:
		if s.alive[i] {
			s.deaths.Add(1)
			s.backends[i].die()
			s.deaths.Add(1) // whoever began before it was over may have met it
			s.alive[i] = false
		} else {
			s.revive(i)
		}
	case 2:
		of := []int{0}
		for j := 1; j < len(s.backends); j++ {
			if s.rnd.IntN(2) == 0 {
				of = append(of, j)
			}
		}
		s.endpoints(of)
	case 3:
		if s.noise = !s.noise; s.noise {
			s.endpoints([]int{0, 1})
		} else {
			s.n.remove("noise")
		}
	}
}

func (s *soak) revive(i int) {
	if err := s.backends[i].live(); err != nil {
		s.n.t.Error(err)
	}
	s.alive[i] = true
}

// recover has all be as in the beginning.
func (s *soak) recover() {
	for i, ok := range s.alive {
		if !ok {
			s.revive(i)
		}
	}
	if s.noise {
		s.noise = false
		s.n.remove("noise")
	}
	s.endpoints([]int{0, 1, 2, 3})
}

// stream makes connections of all sizes. Where strict, one may fail only if a backend has died since it began.
func (s *soak) stream(stop chan struct{}, host string, to netip.AddrPort, strict bool, rnd *rand.Rand) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		size := 1 + rnd.IntN(2000)
		if rnd.IntN(20) == 0 {
			size = 1 + rnd.IntN(3<<20)
		}
		before := s.deaths.Load()
		began := time.Now()
		within := patience
		if !strict {
			within = time.Second // it may be nobody's address now, and then there is no answer
		}
		who, err := s.n.converse(host, to, size, within, rnd)
		switch {
		case err == nil:
			s.made.Add(1)
		case errors.Is(err, errGarbled):
			s.garbled.Add(1)
			s.tell("%s → %s, %d bytes by %s: %v", host, to, size, who, err)
		case !strict:
			time.Sleep(10 * time.Millisecond)
		case s.deaths.Load() == before:
			s.failed.Add(1)
			s.tell("%s → %s, %d bytes by %q, failed after %v though no backend died: %v", host, to, size, who, time.Since(began).Round(time.Millisecond), err)
		default:
			s.cut.Add(1)
			if took := time.Since(began); took > patience/2 {
				s.tell("%s → %s, %d bytes by %q: a connection whose backend may have died hangs for %v: %v", host, to, size, who, took.Round(time.Millisecond), err)
			}
		}
	}
}

// datagramClient sends datagrams of all sizes from sockets that last a while, and compares what comes back. Where strict, what
// is lost is missing.
func (s *soak) datagramClient(stop chan struct{}, host string, to netip.AddrPort, strict bool, rnd *rand.Rand) {
	buf := make([]byte, 64<<10)
	for {
		c, err := s.n.dial(host, "udp", to, time.Second)
		if err != nil {
			s.tell("%s → %s/udp: %v", host, to, err)
			return
		}
		for range 1 + rnd.IntN(20) {
			select {
			case <-stop:
				c.Close()
				return
			default:
			}
			size := 8 + rnd.IntN(1400)
			if rnd.IntN(50) == 0 {
				size = 8 + rnd.IntN(65507-8+1)
			}
			s.datagram(c, buf, size, strict, rnd, host, to)
		}
		c.Close()
	}
}

func (s *soak) datagram(c net.Conn, buf []byte, size int, strict bool, rnd *rand.Rand, host string, to netip.AddrPort) {
	sent := bytes.Repeat(strconv.AppendUint(nil, rnd.Uint64(), 36), size/8)[:size/8*8]
	if _, err := c.Write(sent); err != nil {
		return // an ICMP error of the one before
	}
	wait := 200 * time.Millisecond
	if strict {
		wait = 10 * time.Second
	}
	c.SetReadDeadline(time.Now().Add(wait))
	for {
		k, err := c.Read(buf)
		switch {
		case err != nil:
			if to.Addr() == netip.MustParseAddr(soakNoise) {
				s.unserved.Add(1)
			} else if strict {
				s.mu.Lock()
				s.missing = append(s.missing, fmt.Sprintf("%s → %s/udp: a datagram of %d bytes was lost: %v", host, to, len(sent), err))
				s.mu.Unlock()
			} else {
				s.lost.Add(1)
			}
		case bytes.Equal(buf[:k], sent):
			s.datagrams.Add(1)
		case k > 0 && (k != len(sent) || strict):
			continue // a late answer to one before: it is not ours to judge
		default:
			continue
		}
		return
	}
}

// state is what a program holds.
type state struct{ files, goroutines, rules int }

// settle waits until the program holds no less any more, and returns that.
func (n *nodeLab) settle(p *labProgram) (least state) {
	n.t.Helper()
	until(n.t, func() string {
		if open := p.metric("kubeproxy_userspace_udp_sessions"); open > 0 {
			return fmt.Sprintf("%v sessions of UDP are open", open)
		}
		return ""
	})
	least = n.state(p)
	for quiet := 0; quiet < 5; quiet++ {
		time.Sleep(200 * time.Millisecond)
		now := n.state(p)
		if now.files < least.files || now.goroutines < least.goroutines {
			quiet = 0
		}
		least = now
	}
	return least
}

// noMore waits until the program holds no more than it did.
func (n *nodeLab) noMore(p *labProgram, than state) {
	n.t.Helper()
	until(n.t, func() string {
		now := n.state(p)
		if now.files <= than.files+keptPipes+leakSlack && now.goroutines <= than.goroutines+leakSlack && now.rules <= than.rules {
			return ""
		}
		return fmt.Sprintf("it holds %+v, and held %+v before; descriptors: %s", now, than, p.filesByKind())
	})
}

// leakSlack is what comes and goes without any client: a request for metrics, a timer of the runtime.
const leakSlack = 4

// keptPipes are the descriptors of what package relay keeps for later: 16 pipes of each loop, made when they are first needed.
var keptPipes = 2 * 16 * runtime.GOMAXPROCS(0)

func (n *nodeLab) state(p *labProgram) state {
	n.t.Helper()
	s := state{files: p.files()}
	page, err := p.get("/debug/pprof/goroutine?debug=1")
	if m := regexp.MustCompile(`goroutine profile: total (\d+)`).FindStringSubmatch(page); m != nil {
		s.goroutines, _ = strconv.Atoi(m[1])
	} else {
		n.t.Fatalf("no profile of goroutines: %v: %s", err, page)
	}
	rules, err := n.Command(netlab.Node1, "nft", "list", "ruleset").Output()
	do(n.t, err)
	s.rules = bytes.Count(rules, []byte("\n"))
	return s
}
