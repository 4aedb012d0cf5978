package status

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/internal/listen"
	"kube-proxy/test/logtest"
)

// A listener that breaks is opened again, but not at once: what broke it may last.
func TestListenerBreaks(t *testing.T) {
	var log logtest.Buffer
	s := FillServer(ServerConfig{
		Metrics: FillMetrics(MetricsConfig{Mode: "nftables"}), Addr: netip.MustParseAddrPort("127.0.0.1:0"), Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	opened := make(chan net.Listener, 10)
	s.open = func(ctx context.Context, p listen.Address) (net.Listener, error) {
		l, err := listen.Open(ctx, p)
		if err == nil {
			opened <- l
		}
		return l, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	await := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); !is(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("waited in vain for %s; log:\n%s", what, &log)
			}
		}
	}
	await("the server", func() bool { return s.Addr() != nil })
	start := time.Now()
	if err := (<-opened).Close(); err != nil { // behind its back
		t.Fatal(err)
	}
	await("the end of the server", func() bool { return s.Addr() == nil })
	await("the server again", func() bool { return s.Addr() != nil })
	if took := time.Since(start); took < listen.ReopenAfter {
		t.Errorf("it was opened again after %v, want %v", took, listen.ReopenAfter)
	}
	if n := strings.Count(log.String(), "Metrics server failed"); n != 1 {
		t.Errorf("%d lines about it, want 1:\n%s", n, &log)
	}
}

// HT-07: an address that cannot be had is tried again each 5 s, and told once.
func TestRetryHT07(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logtest.Buffer
		s := FillServer(ServerConfig{Metrics: FillMetrics(MetricsConfig{}), Log: slog.New(slog.NewTextHandler(&log, nil))})
		var tries []time.Duration
		start := time.Now()
		s.open = func(context.Context, listen.Address) (net.Listener, error) {
			tries = append(tries, time.Since(start))
			return nil, errors.New("in use")
		}
		s.Listen(netip.MustParseAddrPort("192.0.2.1:10249"))
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		time.Sleep(16 * time.Second)
		synctest.Wait()
		if want := []time.Duration{0, 5e9, 10e9, 15e9}; !slices.Equal(tries, want) {
			t.Errorf("tried at %v, want %v", tries, want)
		}
		const want = `level=ERROR msg="Metrics server cannot listen, retrying" every=5s err="metrics server: in use"`
		if n := strings.Count(log.String(), want); n != 1 || strings.Count(log.String(), "\n") != 1 {
			t.Errorf("%d lines %s:\n%s", n, want, &log)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
