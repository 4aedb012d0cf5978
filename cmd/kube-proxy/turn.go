package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// turnSocket is what the process that writes a network namespace's rules listens on. The kernel keeps abstract
// sockets by network namespace, whatever the container's files look like, and removes them with the process,
// however it ends.
const turnSocket = "@kube-proxy"

// turn is the right to write the rules of this network namespace. While one process has it, others wait: two
// that serve different things, such as the old and the new pod of a rolling update, would undo each other's
// work for as long as both live.
type turn struct {
	name   string        // of the socket
	remind time.Duration // between two log lines about the wait
	log    *slog.Logger
	socket net.Listener // nil while waiting, and where turns cannot be taken
}

func newTurn(log *slog.Logger) *turn { return &turn{name: turnSocket, remind: time.Minute, log: log} }

// wait returns nil when it is this process's turn, or an error when ctx has ended. Where turns cannot be taken at
// all it says so, and returns nil.
func (t *turn) wait(ctx context.Context) error {
	var began, told time.Time
	for {
		var err error
		if t.socket, err = new(net.ListenConfig).Listen(ctx, "unix", t.name); err == nil {
			if !began.IsZero() {
				t.log.Info("the other kube-proxy has ended; the rules are ours now", "waited", time.Since(began).Round(time.Millisecond))
			}
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			t.log.Warn("cannot tell whether another kube-proxy serves this network namespace; going on", "err", err)
			return nil
		}
		if began.IsZero() {
			began = time.Now()
		}
		holder, err := t.dial(ctx)
		if err != nil { // it has just ended, or many wait for it
			pause(ctx, 50*time.Millisecond)
			continue
		}
		// Anybody may take the name, but must not keep us from our work.
		if holder.uid != 0 && holder.uid != uint32(os.Geteuid()) {
			holder.Close()
			t.log.Warn("a process of another user holds the socket by which kube-proxies take turns; going on without",
				"socket", t.name, "pid", holder.pid, "uid", holder.uid)
			return nil
		}
		if time.Since(told) >= t.remind {
			told = time.Now()
			t.log.Warn("another kube-proxy serves this network namespace: this one waits until it ends",
				"pid", holder.pid, "waiting", time.Since(began).Round(time.Second))
		}
		holder.awaitEnd(ctx, t.remind)
	}
}

// close gives the turn to the next.
func (t *turn) close() {
	if t.socket != nil {
		t.socket.Close()
	}
}

// holder is a connection to the process whose turn it is. It is never accepted, and ends with the process.
type holder struct {
	*net.UnixConn
	pid int32 // 0 if it is of a pid namespace that this process does not see
	uid uint32
}

func (t *turn) dial(ctx context.Context) (holder, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", t.name)
	if err != nil {
		return holder{}, err
	}
	unixConn := conn.(*net.UnixConn)
	raw, err := unixConn.SyscallConn()
	if err != nil {
		conn.Close()
		return holder{}, err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, credErr); err != nil {
		conn.Close()
		return holder{}, fmt.Errorf("ask who listens on %s: %w", t.name, err)
	}
	return holder{unixConn, cred.Pid, cred.Uid}, nil
}

// awaitEnd returns when the holder ends, at most after a while.
func (h holder) awaitEnd(ctx context.Context, most time.Duration) {
	defer h.Close()
	stop := context.AfterFunc(ctx, func() { h.Close() })
	defer stop()
	if h.SetReadDeadline(time.Now().Add(most)) == nil {
		h.Read(make([]byte, 1))
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
