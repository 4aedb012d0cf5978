package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/scenario"
)

// proxy is the kube-proxy process in node1.
type proxy struct {
	cmd      *netlab.Cmd
	log      *proxyLog
	exited   chan struct{} // closed when the process has ended; result is its Wait's
	result   error
	reported bool // its end was reported
}

// startProxy starts the binary in a mode as it would be started on a node, with more flags.
func startProxy(l *netlab.Lab, path, dir, mode string, flags ...string) (*proxy, error) {
	p := &proxy{log: newProxyLog(), exited: make(chan struct{})}
	args := append([]string{"--manifests", dir, "--proxy-mode", mode, "--hostname-override", netlab.Node1,
		"--cluster-cidr", netlab.Cluster4.String() + "," + netlab.Cluster6.String(), "-v", "2",
		"--admin-socket", socket(dir), // the default path would be the machine's own
		"--conntrack-max-per-core=0", // the machine's value suffices here, and a namespace could not change it
	}, flags...)
	p.cmd = l.Command(netlab.Node1, path, args...)
	// A separate process group: Ctrl-C in the terminal is for the demo, which stops the proxy after
	// the last packet.
	p.cmd.SysProcAttr.Setpgid = true
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.result = p.cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// socket is the admin socket of the proxy, in the folder of its manifests, which the demo removes.
func socket(dir string) string { return filepath.Join(dir, "admin.sock") }

func (p *proxy) pid() int { return p.cmd.Process.Pid }

// servesWithin is how long the proxy may take from its start to its first answer.
const servesWithin = 30 * time.Second

// waitServing returns when a connection of each family is answered by a pod.
func (p *proxy) waitServing(ctx context.Context, f *field, s *shop) error {
	ctx, cancel := context.WithTimeoutCause(ctx, servesWithin,
		fmt.Errorf("kube-proxy (pid %d) does not serve %s after its start; its log:\n%s", p.pid(), servesWithin, p.log))
	defer cancel()
	for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
		for _, r := range s.rows {
			if r.family == fam && r.want.Verdict == scenario.Answered && !r.want.Sticky {
				if err := p.waitAnswer(ctx, f, r); err != nil {
					return err
				}
				break
			}
		}
	}
	return nil
}

func (p *proxy) waitAnswer(ctx context.Context, f *field, r row) error {
	for {
		a, err := f.connect(r, f.silence)
		if err == nil && a.server != netlab.Sink {
			return nil
		}
		select {
		case <-p.exited:
			return errors.New("it does not run")
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// explain returns err, or why the process ended if it did.
func (p *proxy) explain(err error) error {
	select {
	case <-p.exited:
		p.reported = true
		how := "exit status 0"
		if p.result != nil {
			how = p.result.Error()
		}
		return fmt.Errorf("kube-proxy ended by itself: %s; its log:\n%s", how, p.log)
	default:
		return err
	}
}

// stopsWithin is more than the 5 s for which mode userspace waits for open connections
// (--userspace-drain-timeout), such as those to a node that was cut off, and the 5 s of a write.
const stopsWithin = 20 * time.Second

// stop ends the process as systemd or a kubelet would; it must leave with status 0.
func (p *proxy) stop() error {
	if p.reported {
		return nil
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return p.explain(fmt.Errorf("stop kube-proxy: %w", err))
	}
	select {
	case <-p.exited:
	case <-time.After(stopsWithin):
		return errors.Join(fmt.Errorf("kube-proxy did not stop %s after SIGTERM; its log:\n%s", stopsWithin, p.log),
			p.cmd.Close())
	}
	if p.result != nil {
		return fmt.Errorf("kube-proxy did not stop as it should: %w; its log:\n%s", p.result, p.log)
	}
	return nil
}
