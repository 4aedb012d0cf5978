//go:build linux

package xtwalk

import (
	"context"
	"errors"
	"fmt"
	"kube-proxy/internal/netlab"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/trace"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"
)

// inNetns runs the rest of the test in a network namespace of its own, where there is such an iptables.
func inNetns(t *testing.T, b xtables.Backend) *xtables.Tool {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	netlab.EnterForTest(t)
	tool, err := xtables.UsableTool(nil, lb.IPv4, b)
	if err != nil {
		t.Skip(err)
	}
	return tool
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// Of the legacy back end one reading answers all who asked before it, and who gives up keeps nobody from that. Afterwards nothing is kept.
func TestManyAskAtOnce(t *testing.T) {
	l := New(inNetns(t, xtables.Legacy))
	ns, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	run(t, "iptables-legacy", "-t", "nat", "-A", "PREROUTING", "-d", "192.0.2.1", "-p", "tcp", "-j", "DNAT", "--to-destination", "192.0.2.2:80")
	packet := trace.Packet{From: netip.MustParseAddrPort("192.0.2.7:0"), In: "veth1", To: netip.MustParseAddrPort("192.0.2.1:80"), Proto: lb.TCP}
	l.turn <- struct{}{} // somebody is asking
	const askers = 50
	answers := make(chan error, 2*askers)
	ask := func(ctx context.Context) {
		go func() {
			answers <- netlab.In(ns, func() error {
				k, err := l.Follow(ctx, packet)
				if err == nil && (len(k.Backends) != 1 || k.Backends[0].Address.String() != "192.0.2.2:80") {
					err = fmt.Errorf("it is led to %+v", k)
				}
				return err
			})
		}()
	}
	gone, leave := context.WithCancel(t.Context())
	for range askers {
		ask(t.Context())
		ask(gone)
	}
	for l.asking.Load() < 2*askers {
		runtime.Gosched()
	}
	leave()
	for range askers {
		if err := <-answers; !errors.Is(err, context.Canceled) {
			t.Errorf("who gave up: %v", err)
		}
	}
	<-l.turn
	for range askers {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	if l.kept != nil || l.reads != 1 {
		t.Errorf("the rules were read %d times for %d questions, and are kept: %t", l.reads, askers, l.kept != nil)
	}
}

// What is remembered counts for as long as the rule says: the kernel's clock is read right.
func TestRememberedFor(t *testing.T) {
	inNetns(t, xtables.NFT)
	run(t, "iptables-nft", "-A", "INPUT", "-m", "recent", "--set", "--name", "LIST")
	list, client := "/proc/thread-self/net/xt_recent/LIST", netip.MustParseAddr("192.0.2.7")
	if err := os.WriteFile(list, []byte("+192.0.2.7"), 0); err != nil {
		t.Fatal(err)
	}
	s, err := lookAround()
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	age, known := s.remembers("LIST", client, 60)
	if !known || age > 20*time.Second {
		t.Errorf("just seen: %v ago, %t", age, known)
	}
	if _, known := s.remembers("LIST", client.Next(), 0); known {
		t.Error("another client is remembered")
	}
	if _, known := s.remembers("OTHER", client, 0); known {
		t.Error("a list that is not there remembers")
	}
	if _, known := s.remembers("../../mounts", client, 0); known {
		t.Error("a name is a path")
	}
	now, tick, err := s.jiffies()
	if err != nil {
		t.Fatal(err)
	}
	for ago, want := range map[time.Duration]bool{0: true, 59 * time.Minute: true, 61 * time.Minute: false} {
		text := fmt.Sprintf("src=192.0.2.9 ttl: 64 last_seen: %d oldest_pkt: 1 1\nsrc=192.0.2.7 ttl: 64 last_seen: %d oldest_pkt: 1 1\n", now, now-uint32(ago/tick))
		seen, found := seenIn(strings.NewReader(text), client)
		if age := time.Duration(now-seen) * tick; !found || (age <= time.Hour) != want {
			t.Errorf("seen %v ago: %v, %t", ago, age, found)
		}
	}
}
