package netlab

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
)

// Cmd is an exec.Cmd whose process runs in a host's network namespace. Use its own
// Start, Run, Wait, Output and CombinedOutput, not the embedded ones'.
//
// The process dies with the program that started it, even if that is killed. It
// sees the caller's files and mounts; /proc/sys/net is its own namespace's, while
// /sys/class/net stays the caller's.
type Cmd struct {
	*exec.Cmd
	lab  *Lab
	host string

	wait   sync.Once
	result error
	exited chan struct{}
	left   chan error // has a value when the thread is out of the host
}

// Command prepares a program to run in a host.
func (l *Lab) Command(host, name string, args ...string) *Cmd {
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return &Cmd{Cmd: cmd, lab: l, host: host, exited: make(chan struct{}), left: make(chan error, 1)}
}

// Start starts the program. Lab.Close kills it if it still runs then.
//
// The kernel sends the parent-death signal when the starting thread ends, so that
// thread is kept, in the host's namespace, until the program has been waited for.
func (c *Cmd) Start() error {
	started := make(chan error, 1)
	go func() {
		// Do puts the thread back afterwards. To end it with the goroutine would not do: the main
		// thread never ends, and would keep the namespace for as long as the process lives.
		err := c.lab.Do(c.host, func() error {
			err := c.Cmd.Start()
			started <- err
			if err == nil {
				<-c.exited
			}
			return nil
		})
		if err != nil && c.Process == nil {
			started <- err
		}
		c.left <- err
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("netlab: start %s in %s: %w", c.Path, c.host, err)
	}
	if err := c.lab.adopt(c); err != nil {
		return errors.Join(err, c.Close())
	}
	return nil
}

// Wait waits for the program as exec.Cmd.Wait does. It may be called more than
// once and from several goroutines; all get the same result.
func (c *Cmd) Wait() error {
	c.wait.Do(func() {
		c.result = c.Cmd.Wait()
		close(c.exited)
		if err := <-c.left; err != nil {
			c.result = errors.Join(c.result, err)
		}
		c.lab.forget(c)
	})
	return c.result
}

// Run is Start and Wait.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs the program and returns its standard output.
func (c *Cmd) Output() ([]byte, error) {
	var out, stderr bytes.Buffer
	c.Stdout = &out
	if c.Stderr == nil {
		c.Stderr = &stderr
	}
	err := c.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		exit.Stderr = stderr.Bytes()
	}
	return out.Bytes(), err
}

// CombinedOutput runs the program and returns all that it wrote.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.Bytes(), err
}

// Close kills the program if it still runs, and waits for it.
func (c *Cmd) Close() error {
	if err := c.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("netlab: kill %s: %w", c.Path, err)
	}
	_ = c.Wait() // that it was killed is no news
	return nil
}
