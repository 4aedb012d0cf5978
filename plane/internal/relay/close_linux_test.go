package relay

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"kube-proxy/lb"
)

// A child that was forked meanwhile has all descriptors until its exec. A closed listener accepts
// no new clients even then: no process would serve them, and they would be reset when the child
// closes the descriptor.
func TestTCPCloseBesideAFork(t *testing.T) {
	r := newRelay(t, Config{})
	l := listen(t, r, to(serve(t, echo)))
	childs, err := unix.Dup(l.socket.(*listening).fd)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(childs)
	l.Close()
	if c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(l.Addr())); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("after Close: %v, %v, want a refusal", c, err)
	}
	// Nor does the child block the address for the next listener.
	again, err := r.Listen(Listening{lb.TCP, l.Addr()}, to(serve(t, echo)), nil)
	if err != nil {
		t.Fatalf("listen there again: %v", err)
	}
	roundTrip(t, dial(t, again.Addr()))
}

// failAlways makes a system call fail on this thread from now on. The thread ends with its
// goroutine.
func failAlways(call uint32, errno syscall.Errno) error {
	runtime.LockOSThread()
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // its number
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	if e != 0 {
		return os.NewSyscallError("seccomp", e)
	}
	return nil
}

// closesMeanwhile is a log handler that closes a listener while a loop logs that a system call
// failed. It returns when Close has, or waits for a lock.
type closesMeanwhile struct {
	slog.Handler
	once     *sync.Once
	listener chan *Listener
}

func (h closesMeanwhile) Handle(context.Context, slog.Record) error {
	h.once.Do(func() {
		l, closed := <-h.listener, make(chan struct{})
		go func() {
			l.Close()
			close(closed)
		}()
		// it fails as soon as a writer waits
		for mu := &l.socket.(*listening).mu; mu.TryRLock(); runtime.Gosched() {
			mu.RUnlock()
			select {
			case <-closed:
				return
			default:
			}
		}
	})
	return nil
}

// Any system call may fail, in the loops or in Close, while listeners open, serve and close: Close
// returns, the relay ends, and no descriptor stays counted (TN-42).
func TestTCPFailuresBesideClose(t *testing.T) {
	for name, call := range map[string]uint32{
		"epoll_ctl": unix.SYS_EPOLL_CTL, "accept4": unix.SYS_ACCEPT4, "socket": unix.SYS_SOCKET,
		"connect":    unix.SYS_CONNECT,
		"setsockopt": unix.SYS_SETSOCKOPT, "getsockopt": unix.SYS_GETSOCKOPT, "getsockname": unix.SYS_GETSOCKNAME,
		"splice": unix.SYS_SPLICE,
		"pipe2":  unix.SYS_PIPE2, "fcntl": unix.SYS_FCNTL, "recvfrom": unix.SYS_RECVFROM, "sendmsg": unix.SYS_SENDMSG,
		"shutdown": unix.SYS_SHUTDOWN,
	} {
		for _, where := range []string{"loops", "Close"} {
			t.Run(name+"/"+where, func(t *testing.T) {
				log := closesMeanwhile{slog.NewTextHandler(io.Discard, nil), &sync.Once{}, make(chan *Listener, 1)}
				r, err := New(Config{Log: slog.New(log)}) // if it hangs, its Close would, too
				if err != nil {
					t.Fatal(err)
				}
				e, failed := r.conns.(*conns), make(chan error)
				if where == "loops" {
					e.each(func(*loop) { failed <- failAlways(call, syscall.ENOMEM) })
					for range e.loops {
						if err := <-failed; err != nil {
							t.Fatal(err)
						}
					}
				}
				to := to(serve(t, echo))
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					var all sync.WaitGroup
					for i := range 100 {
						l, err := r.Listen(Listening{lb.TCP, loopback}, to, nil)
						if err != nil {
							t.Error(err)
							return
						}
						if i == 0 {
							log.listener <- l
						}
						all.Go(func() {
							if where == "Close" && failAlways(call, syscall.ENOMEM) != nil {
								t.Error("seccomp failed")
							}
							l.Close()
						})
						all.Go(func() {
							if c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(l.Addr())); err == nil {
								c.Write([]byte("x"))
								c.Close()
							}
						})
					}
					all.Wait()
					r.Close()
				}()
				select {
				case <-ended:
				case <-time.After(timeout):
					buf := make([]byte, 1<<20)
					t.Fatalf("it hangs:\n%s", buf[:runtime.Stack(buf, true)])
				}
				if used := e.fds.Used(); used != 0 {
					t.Errorf("%d descriptors are still counted", used)
				}
			})
		}
	}
}
