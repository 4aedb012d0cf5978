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
