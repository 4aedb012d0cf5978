//go:build linux

package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/config"
	"kube-proxy/engine"
	"kube-proxy/lb"
	"kube-proxy/test/logtest"
)

// SIGTERM at any moment of the start ends the process in order, and leaves nothing half-written.
// Before the process has a handler the signal itself ends it.
func TestStopWhileStarting(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.serve("nftables").end(syscall.SIGTERM)
	for delay := time.Duration(0); delay <= 60*time.Millisecond; delay += 5 * time.Millisecond {
		p := n.start(usual("nftables"))
		time.Sleep(delay)
		code := p.end(syscall.SIGTERM)
		bySignal := p.cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled() && p.log() == ""
		if code != 0 && !bySignal {
			t.Errorf("SIGTERM after %v: %v\n%s", delay, p.cmd.ProcessState, p.log())
		}
		n.wantGood("SIGTERM after " + delay.String())
	}
}

// An API server that takes connections and never answers does not keep the process from ending, nor
// the rules from staying.
func TestStopWhileAPIServerHangs(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.serve("nftables").end(syscall.SIGTERM)
	l := n.listen("127.0.0.1:0")
	p := n.start([]string{"--proxy-mode=nftables", "--hostname-override=n1", "--master=http://" + l.Addr().String()})
	conn, err := l.Accept()
	do(t, err)
	defer conn.Close()
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	p.stop()
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("it took %v to end", took)
	}
	n.wantGood("after the end")
}

// A source that fails ends the process with its error, before anything is written.
func TestSourceFails(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	p := n.proxy(slog.New(slog.DiscardHandler))
	failed := errors.New("the disk is on fire")
	src := source{run: func(context.Context, func(cluster.Event)) error { return failed }}
	if err := p.serve(t.Context(), src); err != failed {
		t.Errorf("serve returned %v, want %v", err, failed)
	}
	if err := p.closePlanes(); err != nil {
		t.Error(err)
	}
	if tables := n.command("nft", "list", "tables"); tables != "" {
		t.Errorf("the kernel has %s", tables)
	}
}

// PR-03: the first write waits for the Node for a limited time, which starts when all other data is
// present.
func TestNodeDoesNotCome(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	for _, c := range []struct {
		name string
		node bool
		wait time.Duration
	}{{"comes", true, time.Hour}, {"does not come", false, 10 * time.Millisecond}, {"must be there", false, 0}} {
		var log logtest.Buffer
		p := n.proxy(slog.New(slog.NewTextHandler(&log, nil)))
		p.store.WaitForFacts(c.wait > 0)
		src := source{factsWait: c.wait, run: func(ctx context.Context, sink func(cluster.Event)) error {
			sink(cluster.SlicesListed{})
			sink(cluster.CIDRsListed{})
			time.Sleep(50 * time.Millisecond) // an API server that is slow: the wait does not begin yet
			if s := log.String(); strings.Contains(s, "not known") || strings.Contains(s, "Compared and wrote all "+
				"frontends") {
				t.Errorf("%s: before Services are listed:\n%s", c.name, s)
			}
			if c.node {
				sink(cluster.NodeSet{Node: &cluster.Node{Name: "n1"}})
			}
			sink(cluster.ServicesListed{})
			<-ctx.Done()
			return nil
		}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.serve(ctx, src) }()
		for end := time.Now().Add(timeout); !allWritten.MatchString(log.String()); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: nothing is written:\n%s", c.name, log.String())
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if reported := strings.Contains(log.String(), "there is no Node"); reported == c.node {
			t.Errorf("%s:\n%s", c.name, log.String())
		}
		if err := p.closePlanes(); err != nil {
			t.Error(err)
		}
	}
}

// proxy returns a proxy in nftables mode that is ready to serve, with its own writer lock.
func (n *namespace) proxy(log *slog.Logger) *proxy {
	n.t.Helper()
	cfg, err := loadConfig([]string{"--proxy-mode=nftables", "--hostname-override=n1",
		"--healthz-bind-address=", "--metrics-bind-address=", "--admin-socket="})
	do(n.t, err)
	return n.proxyOf(cfg, log)
}

// proxyOf returns one with another configuration.
func (n *namespace) proxyOf(cfg *config.Config, log *slog.Logger) *proxy {
	n.t.Helper()
	p := newProxy(nil, cfg, nil, log)
	var err error
	n.Do(func() {
		p.writer = newWriterLock(log)
		err = p.choose(n.t.Context(), lb.IPv4)
		if err == nil {
			p.newMetrics()
			err = p.newFamilies([]lb.Family{lb.IPv4, lb.IPv6})
			p.newServers()
		}
	})
	do(n.t, err)
	return p
}

// PR-08: a frontend that the kernel refuses does not prevent the removal of another mode's objects;
// a failed write does.
func TestCleanupAfterFirstWrite(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	p := n.proxy(slog.New(slog.DiscardHandler))
	defer p.closePlanes()
	begun := func() bool {
		select {
		case <-p.begun.all:
			return true
		default:
			return false
		}
	}
	write := func(f *family, verb string, err error) {
		p.written(f, p.log, engine.Write{Verb: verb, Err: err})
	}
	write(p.families[0], "reset", nil)
	write(p.families[1], "reset", errors.New("no"))
	write(p.families[1], "apply", nil)
	if begun() {
		t.Error("begun before the second family was written")
	}
	p.written(p.families[1], p.log, engine.Write{Verb: "reset", Later: 1})
	if begun() {
		t.Error("begun before the second family was written whole")
	}
	write(p.families[1], "apply", errors.New("no")) // of a frontend that the kernel refuses
	if begun() {
		t.Error("begun before the second family was written whole")
	}
	write(p.families[1], "load", nil)
	write(p.families[0], "reset", nil) // again
	if !begun() {
		t.Error("not begun though both families were written")
	}
}
