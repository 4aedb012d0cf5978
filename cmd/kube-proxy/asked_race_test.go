//go:build linux && race

package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"kube-proxy/cli"
)

// The commands, against a proxy that takes in a hundred changes a second and more, with the race
// detector in both. It runs only where tests are built with -race (make test-asked, which CI runs).
func TestAskedUnderChanges(t *testing.T) {
	const lasts = 10 * time.Second
	n := newNamespace(t).routed()
	n.command("ip", "addr", "add", "192.0.2.1/32", "dev", "lo")
	n.write("m/node.yaml", node(""))
	form := func(i, k int) []byte {
		return service(fmt.Sprint("s", i), fmt.Sprintf("10.96.0.%d", i+1), 80, fmt.Sprintf("10.0.%d.%d", i, k%250+1))
	}
	const services = 20
	for i := range services {
		write(t, n.path(fmt.Sprintf("m/s%d.yaml", i)), form(i, 0))
	}
	p := n.serve("nftables", "-v=2")

	watches := map[string]*process{}
	for _, args := range [][]string{{"events", "--watch"}, {"table", "--watch"}, {"top", "--watch"},
		{"why", "shop/s1", "--watch"}, {"events", "--watch", "-o", "json"}} {
		watches[strings.Join(args, " ")] = n.start(args)
	}
	end := time.Now().Add(lasts)
	var working sync.WaitGroup
	var changes, asked, found atomic.Int64
	const enough = int64(100*lasts/time.Second) * 6 / 10 // on a busy machine they take longer
	over := func() bool { return time.Now().After(end) && changes.Load() >= enough }
	working.Go(func() {
		for k := 1; !over(); k++ {
			for i := range services / 4 { // five Services each 40 ms are 125 changes a second
				s := (k*5 + i) % services
				file := n.path(fmt.Sprintf("m/s%d.yaml", s))
				if err := os.WriteFile(file+".new", form(s, k), 0o644); err != nil {
					t.Error(err)
				}
				if err := os.Rename(file+".new", file); err != nil {
					t.Error(err)
				}
				changes.Add(1)
			}
			time.Sleep(40 * time.Millisecond)
		}
	})
	for w, asks := range [][][]string{
		{{"trace", "10.0.0.9", "shop/s1"}, {"trace", "node", "10.96.0.3:80/tcp", "-o", "json"},
			{"backends", "shop/s4"}},
		{{"table", "shop"}, {"table", "-o", "wide"}, {"why", "shop/s2"}, {"events", "-o", "yaml"}},
		{{"diff"}, {"trace", "10.0.0.9", "10.96.0.200:80/tcp"}, {"why", "shop/none"}, {"top"}},
	} {
		working.Go(func() {
			for i := 0; i < len(asks) || !over(); i++ { // each at least once
				args := asks[i%len(asks)]
				code, out, errOut := n.kubeProxy(args...)
				asked.Add(1)
				if code == cli.ExitFound {
					found.Add(1)
				}
				known := code == 0 || code == cli.ExitFound || code == 1 && args[len(args)-1] == "shop/none"
				if !known || strings.Contains(out+errOut, "DATA RACE") {
					t.Errorf("worker %d: %v: exit code %d\n%s\n%s", w, args, code, out, errOut)
				}
			}
		})
	}
	working.Wait()
	for args, w := range watches {
		w.end(syscall.SIGINT)
		if text := w.log(); strings.Contains(text, "DATA RACE") || len(text) == 0 {
			t.Errorf("%s printed:\n%s", args, text[:min(len(text), 3000)])
		}
	}
	_, events, _ := n.kubeProxy("events", "-o", "json")
	code, diff, _ := n.kubeProxy("diff")
	t.Logf("%d changes, %d queries, %d with a result; events say %d bytes; diff at the end: %d",
		changes.Load(), asked.Load(), found.Load(), len(events), code)
	if !strings.Contains(events, "shop/s") {
		t.Errorf("the events have no Service:\n%s", events)
	}
	if code != 0 {
		t.Errorf("at the end the kernel differs: %s", diff)
	}
	p.stop()
	if strings.Contains(p.log(), "DATA RACE") {
		t.Errorf("the proxy:\n%s", p.log())
	}
}
