package netlab

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/thread"
)

// cgroup is the lab's cgroup for the sockets of node1 and its pods. It is threaded: the hosts'
// threads are in it, and the rest of the process is not. Moving a thread takes the kernel
// milliseconds, so threads are reused.
type cgroup struct {
	path string

	mu   sync.Mutex
	idle map[string][]chan func() // threads by host
	all  []chan func()
}

// Cgroup returns the folder of the cgroup of a host's sockets, or "" for a host without one.
func (l *Lab) Cgroup(host string) string {
	if h, ok := HostByName(host); ok && l.cgroup != nil && h.Node == Node1 {
		return l.cgroup.path
	}
	return ""
}

// newCgroup creates a cgroup below that of the process.
func newCgroup() (*cgroup, error) {
	own, err := ownCgroup()
	if err != nil {
		return nil, err
	}
	path, err := os.MkdirTemp(own, "kp-netlab-")
	if err != nil {
		return nil, fmt.Errorf("make a cgroup: %w", err)
	}
	if err := os.WriteFile(filepath.Join(path, "cgroup.type"), []byte("threaded"), 0); err != nil {
		return nil, errors.Join(fmt.Errorf("make the cgroup threaded: %w", err), os.Remove(path))
	}
	return &cgroup{path: path, idle: map[string][]chan func(){}}, nil
}

// ownCgroup returns the folder of the process's cgroup v2.
func ownCgroup() (string, error) {
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("find the mount of cgroup v2: %w", err)
	}
	defer mounts.Close()
	for lines := bufio.NewScanner(mounts); lines.Scan(); {
		before, after, _ := strings.Cut(lines.Text(), " - ")
		if !strings.HasPrefix(after, "cgroup2 ") {
			continue
		}
		text, err := os.ReadFile("/proc/self/cgroup")
		if err != nil {
			return "", fmt.Errorf("find the cgroup of this process: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
				return filepath.Join(strings.Fields(before)[4], path), nil
			}
		}
	}
	return "", errors.New("no cgroup v2 is mounted: mount one at /sys/fs/cgroup/unified")
}

// do runs fn on a thread in the host's namespace and in the cgroup. If fn ends its goroutine, as a
// test's Fatal does, the caller's ends too.
func (c *cgroup) do(host string, ns netns.NsHandle, fn func() error) error {
	thread, err := c.thread(host, ns)
	if err != nil {
		return err
	}
	done, returned := make(chan struct{}), false
	thread <- func() {
		defer close(done)
		err = fn()
		returned = true
	}
	<-done
	if !returned {
		runtime.Goexit()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle[host] = append(c.idle[host], thread)
	return err
}

// thread returns an idle thread of the host, or a new one.
func (c *cgroup) thread(host string, ns netns.NsHandle) (chan func(), error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.idle[host]); n > 0 {
		t := c.idle[host][n-1]
		c.idle[host] = c.idle[host][:n-1]
		return t, nil
	}
	calls, begun := make(chan func()), make(chan error)
	go thread.Own(func() {
		err := netns.Set(ns)
		if err == nil {
			err = os.WriteFile(filepath.Join(c.path, "cgroup.threads"), []byte(strconv.Itoa(unix.Gettid())), 0)
		}
		begun <- err
		if err != nil {
			return
		}
		for call := range calls {
			call()
		}
	})
	if err := <-begun; err != nil {
		return nil, fmt.Errorf("netlab: enter %s and its cgroup: %w", host, err)
	}
	c.all = append(c.all, calls)
	return calls, nil
}

// close ends the threads and removes the cgroup, which the last thread leaves a moment later.
func (c *cgroup) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.all {
		close(t)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		err := os.Remove(c.path)
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}
