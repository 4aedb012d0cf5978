//go:build linux

package main

import (
	"context"
	"log/slog"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/source/manifests"
	"kube-proxy/test/logtest"
)

// podNode is this node with pod CIDRs.
func podNode(cidrs ...string) cluster.NodeSet {
	n := &cluster.Node{Name: "n1", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	for _, c := range cidrs {
		n.PodCIDRs = append(n.PodCIDRs, netip.MustParsePrefix(c))
	}
	return cluster.NodeSet{Node: n}
}

// PR-05: in mode NodeCIDR nothing is written before the Node has pod CIDRs. If they do not arrive
// in time the process ends with the reason; if they do, it serves, and follows their changes.
func TestNodeCIDR(t *testing.T) {
	t.Parallel()
	objects, problems,
		err := manifests.Load(fstest.MapFS{"good.yaml": {Data: service("good", "10.96.0.1", 80, "10.0.0.1")}})
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	for _, c := range []struct {
		name   string
		events []cluster.Event
		wait   time.Duration
		fails  string // "" if it serves
	}{
		{"no pod CIDRs", []cluster.Event{podNode()}, 50 * time.Millisecond,
			`--detect-local-mode NodeCIDR: the Node "n1" has no spec.podCIDRs after 50ms: check that the ` +
				`cluster allocates them, such as with --allocate-node-cidrs, and check --hostname-override`},
		{"pod CIDRs later", []cluster.Event{podNode(), podNode("10.1.0.0/24", "fd00:1::/64")}, time.Hour, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := newNamespace(t)
			cfg, err := loadConfig([]string{"--proxy-mode=nftables", "--detect-local-mode=NodeCIDR",
				"--hostname-override=n1", "--master=http://" + noServer,
				"--healthz-bind-address=", "--metrics-bind-address=", "--conntrack-max-per-core=0"})
			do(t, err)
			var log logtest.Buffer
			p := n.proxyOf(cfg, slog.New(slog.NewTextHandler(&log, nil)))
			p.store.WaitForPodCIDRs()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			serving := make(chan struct{})
			go func() { defer close(serving); p.runFamilies(ctx) }()
			for _, ev := range append([]cluster.Event{cluster.ServicesListed{Services: objects.Services},
				cluster.SlicesListed{Slices: objects.Slices}, cluster.CIDRsListed{}}, c.events...) {
				if s := log.String(); strings.Contains(s, "Compared and wrote all frontends") {
					t.Errorf("before %#v:\n%s", ev, s)
				}
				p.fold(ev)
				time.Sleep(5 * time.Millisecond) // time for the forbidden write
			}
			// Not before: the time of c.wait starts when all facts are known.
			failed := make(chan error, 1)
			done := make(chan struct{})
			go func() {
				defer close(done)
				p.watchNode(ctx, c.wait, func(err error) { failed <- err })
			}()
			if c.fails != "" {
				select {
				case err := <-failed:
					if err.Error() != c.fails {
						t.Errorf("error %q, want %q", err, c.fails)
					}
				case <-time.After(timeout):
					t.Error("it waits for ever")
				}
				p.fold(podNode()) // an event that arrives while the process ends
				time.Sleep(5 * time.Millisecond)
				if s := log.String(); strings.Contains(s, "Compared and wrote all frontends") {
					t.Errorf("rules were written:\n%s", s)
				}
			} else {
				n.eventually("10.1.0.0/24", "nft", "list", "ruleset")
				p.fold(podNode("10.2.0.0/24", "fd00:1::/64")) // adapted to, where upstream ends
				n.eventually("10.2.0.0/24", "nft", "list", "ruleset")
			}
			cancel()
			<-done
			<-serving
			select {
			case err := <-failed:
				t.Errorf("error %v", err)
			default:
			}
			do(t, p.closePlanes())
		})
	}
}

// PR-06, PN-71: the name of the node comes from NODE_NAME without a flag; its endpoints are the
// local ones. A name without a Node is logged.
func TestNodeName(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, env, flag string
		local           bool
	}{
		{"variable", "N1", "", true},
		{"flag", "n2", " N1 ", true},
		{"other", "n3", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.write("m/web.yaml", balanced(32000, 1))
			args := []string{"--proxy-mode=nftables", "--manifests=m", "--nodeport-addresses=0.0.0.0/0,::/0"}
			if c.flag != "" {
				args = append(args, "--hostname-override="+c.flag)
			}
			p := n.start(args, env("NODE_NAME="+c.env))
			p.await(allWritten)
			if c.local {
				n.code("http://127.0.0.1:32000/", 200)
			} else {
				n.code("http://127.0.0.1:32000/", 503)
				p.await(regexp.MustCompile(`W.*\] "Configuration may be incomplete or incorrect" reason="there is ` +
					`no Node.*n3`))
			}
			p.stop()
		})
	}
}
