//go:build linux

package xtwalk

import (
	"fmt"
	"kube-proxy/internal/netlab"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// inNetns runs the rest of the test in a new network namespace, if the back end is installed.
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

// A remembered client counts for the time in the rule: the kernel's clock is read correctly.
func TestRememberedFor(t *testing.T) {
	inNetns(t, xtables.NFT)
	run(t, "iptables-nft", "-A", "INPUT", "-m", "recent", "--set", "--name", "LIST")
	list, client := "/proc/thread-self/net/xt_recent/LIST", netip.MustParseAddr("192.0.2.7")
	if err := os.WriteFile(list, []byte("+192.0.2.7"), 0); err != nil {
		t.Fatal(err)
	}
	s, err := inspectAround()
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
		text := fmt.Sprintf("src=192.0.2.9 ttl: 64 last_seen: %d oldest_pkt: 1 1\n"+
			"src=192.0.2.7 ttl: 64 last_seen: %d oldest_pkt: 1 1\n", now, now-uint32(ago/tick))
		seen, found := seenIn(strings.NewReader(text), client)
		if age := time.Duration(now-seen) * tick; !found || (age <= time.Hour) != want {
			t.Errorf("seen %v ago: %v, %t", ago, age, found)
		}
	}
}
