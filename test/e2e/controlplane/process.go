package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netns"

	"kube-proxy/internal/netlab"
)

// Process is a running child. It dies with the test process, however that ends.
type Process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{}
	err  error // of Wait; valid once done is closed
}

// StartProcess starts cmd inside the network namespace at the path namespace ("" is this process's)
// and waits for its end in the background. name is for error messages.
func StartProcess(name, namespace string, cmd *exec.Cmd) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if err := launch(func() error { return enter(namespace, cmd.Start) }); err != nil {
		if cmd.Process != nil {
			// The only thread that forks would fork in the wrong namespace from here on.
			panic(fmt.Sprintf("leave network namespace %s: %v", namespace, err))
		}
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{name: name, cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Pid is the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// ExitCode is the exit status, -1 after a signal. It waits for the end.
func (p *Process) ExitCode() int {
	<-p.done
	return p.cmd.ProcessState.ExitCode()
}

// Signal sends a signal; that the process has ended already is not an error.
func (p *Process) Signal(signal os.Signal) error {
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.name, err)
	}
	return nil
}

// Stop sends SIGTERM and waits up to grace; after that the process is killed and Stop returns an
// error.
func (p *Process) Stop(grace time.Duration) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(grace):
	}
	if err := p.Kill(); err != nil {
		return err
	}
	return fmt.Errorf("%s still ran %v after SIGTERM", p.name, grace)
}

// Kill sends SIGKILL and waits for the end.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

// launches feeds the only thread that forks. The kernel sends the parent-death signal when the
// *thread* that forked ends, so that thread must live as long as the process.
var launches = sync.OnceValue(func() chan func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

func launch(f func() error) error {
	result := make(chan error)
	launches() <- func() { result <- f() }
	return <-result
}

// enter calls f on a thread that is inside the network namespace at the path namespace; "" is the
// caller's.
func enter(namespace string, f func() error) error {
	if namespace == "" {
		return f()
	}
	target, err := netns.GetFromPath(namespace)
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", namespace, err)
	}
	defer target.Close()
	return netlab.In(target, f)
}

// dial connects from inside the network namespace at a path. address must be an IP address and a
// port.
func dial(ctx context.Context, namespace, network, address string) (conn net.Conn, err error) {
	err = enter(namespace, func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}
