//go:build linux

package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/seedtest"
)

var soakTime = flag.Duration("soak", 4*time.Second, "how long TestUserspaceSoak lasts")

// While backends die and return at random, and endpoints and Services change, clients compare every
// byte. A connection fails only if a backend dies meanwhile. Afterwards the process holds the same
// resources as before: descriptors, goroutines, rules (DP-40, PN-03).
func TestUserspaceSoak(t *testing.T) {
	rnd := rand.New(rand.NewPCG(seedtest.Of(t), 1))
	n := newNodeLab(t)
	var backends []*echo
	for i, host := range []string{"pod1", "pod2", "pod4", "pod5"} {
		backends = append(backends, n.echo(host, 8080+uint16(i%2)))
	}
	apply := func(name, ip string, nodePort int, of ...*echo) {
		s := labService{name: name, ip: ip, nodePort: nodePort}
		for _, b := range of {
			s.endpoints = append(s.endpoints, b.at())
		}
		n.service(s)
	}
	apply("web", labIP, 30080, backends...)
	p := n.serve("--udp-timeout=2s")
	hosts, node := []string{"pod1", "pod3", netlab.Client, netlab.Node1}, endpoint(netlab.Node1, 30080)
	warm := n.call(hosts, node) // objects that are kept for good are made on first use
	warm.progress(100)
	if failed := warm.wait(); len(failed) > 0 {
		t.Errorf("before anything moves: %v", failed)
	}
	settled := n.settle(p)

	traffic := n.call([]string{"pod1", "pod3", netlab.Node1}, labTarget)
	outside := n.call([]string{netlab.Client}, node)
	stop := make(chan struct{})
	var asking sync.WaitGroup
	for _, host := range hosts {
		asking.Go(func() { n.datagrams(stop, host, node) })
	}
	var deaths []failure
	dead, noise := map[*echo]bool{}, false
	for end := time.Now().Add(*soakTime); time.Now().Before(end); time.Sleep(40 * time.Millisecond) {
		b := backends[1+rnd.IntN(len(backends)-1)] // the first one never dies, and is always an endpoint
		switch rnd.IntN(4) {
		case 0, 1:
			dead[b] = !dead[b]
			if dead[b] {
				began := time.Now()
				b.die()
				deaths = append(deaths, failure{began: began, ended: time.Now()})
			} else {
				do(t, b.live())
			}
		case 2:
			some := slices.DeleteFunc(slices.Clone(backends[1:]), func(*echo) bool { return rnd.IntN(2) == 0 })
			apply("web", labIP, 30080, append(some, backends[0])...)
		case 3:
			noise = !noise
			if noise {
				apply("noise", "10.96.0.11", 30081, backends[:2]...)
			} else {
				n.remove("noise")
			}
		}
	}
	close(stop)
	asking.Wait()
	failed := append(traffic.wait(), outside.wait()...)
	t.Logf("%d connections, %d failed, %d deaths", traffic.made.Load()+outside.made.Load(), len(failed), len(deaths))
	for _, f := range failed {
		met := func(d failure) bool { return !d.ended.Before(f.began) && !d.began.After(f.ended) }
		if !slices.ContainsFunc(deaths, met) || errors.Is(f.err, errGarbled) {
			t.Errorf("no backend died from %v to %v: %v", f.began, f.ended, f.err)
		}
	}
	if traffic.made.Load() < 100 || len(deaths) == 0 {
		t.Error("that was no soak")
	}
	if noise {
		n.remove("noise")
	}
	apply("web", labIP, 30080, backends...)
	n.noMore(p, settled)
	p.stop()
	if strings.Contains(p.log(), "DATA RACE") || strings.Contains(p.log(), "panic") {
		t.Errorf("the log:\n%s", p.log())
	}
}

// datagrams sends UDP requests until stop is closed. It repeats lost requests; answers must be
// equal to the requests.
func (n *nodeLab) datagrams(stop chan struct{}, host string, to netip.AddrPort) {
	for size := 1; ; size = size%1400 + 97 {
		select {
		case <-stop:
			return
		default:
		}
		if err := n.askUDP(host, to, bytes.Repeat([]byte{byte(size)}, size), 1); errors.Is(err, errGarbled) {
			n.t.Errorf("%s → %s/udp: %v", host, to, err)
		}
	}
}

// state holds the resources of a program.
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
		if now.files <= than.files+keptPipes+leakSlack && now.goroutines <= than.goroutines+leakSlack &&
			now.rules <= than.rules {
			return ""
		}
		return fmt.Sprintf("it holds %+v, and held %+v before", now, than)
	})
}

// leakSlack is the variation without any client: a request for metrics, a timer of the runtime.
const leakSlack = 4

// keptPipes are the descriptors that package relay keeps for later: 16 pipes of each loop, made on
// first use.
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
