//go:build linux

package xt

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/trace"
)

// A remembered client counts for the time in the rule: the kernel's clock is read correctly.
func TestRememberedFor(t *testing.T) {
	netlab.EnterForTest(t)
	if out, err := exec.Command("iptables-nft", "-A", "INPUT", "-m", "recent", "--set", "--name", "LIST").
		CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	list, client := "/proc/thread-self/net/xt_recent/LIST", netip.MustParseAddr("192.0.2.7")
	if err := os.WriteFile(list, []byte("+192.0.2.7"), 0); err != nil {
		t.Fatal(err)
	}
	age, known := remembers("LIST", client, 60)
	if !known || age > 20*time.Second {
		t.Errorf("just seen: %v ago, %t", age, known)
	}
	if _, known := remembers("LIST", client.Next(), 0); known {
		t.Error("another client is remembered")
	}
	if _, known := remembers("OTHER", client, 0); known {
		t.Error("a list that is not there remembers")
	}
	if _, known := remembers("../../mounts", client, 0); known {
		t.Error("a name is a path")
	}
	now, tick, err := jiffies()
	if err != nil {
		t.Fatal(err)
	}
	for ago, want := range map[time.Duration]bool{0: true, 59 * time.Minute: true, 61 * time.Minute: false} {
		text := fmt.Sprintf("src=192.0.2.9 ttl: 64 last_seen: %d oldest_pkt: 1 1\n"+
			"src=192.0.2.7 ttl: 64 last_seen: %d oldest_pkt: 1 1\n", now, now-uint32(ago/tick))
		seen, found := seenIn(strings.NewReader(text), client)
		if age := time.Duration(now-seen) * tick; !found || (age <= time.Hour) != want {
			t.Errorf("seen %v ago: %v, %t", ago, age, found)
		}
	}
}

// Rules of other programs at OUTPUT see the interface that the packet had before its translation,
// and give no source that kube-proxy's rules would (NT-12).
func TestOutputInterface(t *testing.T) {
	lab := netlab.ForTest(t, netlab.Options{})
	lab.Serve(netlab.TCP, 8080, "pod2")
	to := netip.MustParseAddrPort("10.96.0.1:80")
	lab.On(netlab.Node1, func() {
		out, err := exec.Command("sh", "-ec", "iptables-nft -t nat -A OUTPUT -d 10.96.0.1 -p tcp -m tcp "+
			"-j DNAT --to-destination 10.1.1.12:8080; "+
			"iptables-nft -A OUTPUT -o vethpod2 -p tcp -m tcp --dport 8080 -j DROP; "+
			"iptables-nft -t nat -A POSTROUTING -j MASQUERADE").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		tool, err := xtables.FindTool(xtables.System{}, lb.IPv4, xtables.NFT)
		if err != nil {
			t.Fatal(err)
		}
		k, err := Trace(t.Context(), tool, trace.Packet{From: netip.MustParseAddrPort("172.18.0.2:0"), To: to,
			Host: true, Proto: lb.TCP})
		if err != nil || k.Verdict != trace.Balance || len(k.Backends) != 1 || k.Masquerade {
			t.Errorf("%+v, %v", k, err)
		}
	})
	if _, err := lab.Dial(netlab.Node1, netlab.TCP, to, netlab.DialOptions{}); err != nil {
		t.Errorf("the real packet: %v", err)
	}
}
