package kernel

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
)

// ErrHeld means that another process has the lock.
var ErrHeld = errors.New("another process holds the lock")

// Lock is a lock that one process of a network namespace holds, and that needs CAP_NET_ADMIN there.
// It is one of the 65,536 groups to which netfilter rules may log; the kernel gives each to one
// socket. It is free when the socket closes, however its process ends. No rule logs to the group.
type Lock struct {
	conn  *netlink.Conn // its socket is the lock
	group uint16
	may   bool // this process may take it
}

// OpenLock returns a free lock of the calling thread's network namespace. The error wraps
// ErrUnsupported if the kernel has no netlink of netfilter.
func OpenLock(group uint16) (*Lock, error) {
	conn, err := openNetfilter(netlink.Config{Keep: true})
	if err != nil {
		return nil, err
	}
	return &Lock{conn: conn, group: group}, nil
}

// Close gives the lock back.
func (l *Lock) Close() error { return l.conn.Close() }

// Of linux/netfilter/nfnetlink_log.h.
const (
	logConfig        = unix.NFNL_SUBSYS_ULOG<<8 | 1    // NFULNL_MSG_CONFIG
	logNothing       = unix.NFNL_SUBSYS_ULOG<<8 | 0xff // a message that does not exist
	logConfigCommand = 1                               // NFULA_CFG_CMD
	logBind          = 1                               // NFULNL_CFG_CMD_BIND
)

// Take takes the lock; holding it already is no error. The error is ErrHeld if another process has
// it, or wraps fs.ErrPermission or ErrUnsupported, or is one of the socket. One goroutine at a time
// may call it.
func (l *Lock) Take() error {
	err := l.ask(logConfig, func(e *netlink.Encoder) { e.U8(logConfigCommand, logBind) })
	if errors.Is(err, unix.EPERM) && !l.may {
		// The kernel answers EPERM without CAP_NET_ADMIN, and for another's group. It looks at the
		// message after the former check.
		l.may = !errors.Is(l.ask(logNothing, func(*netlink.Encoder) {}), unix.EPERM)
	}
	switch {
	case err == nil, errors.Is(err, unix.EBUSY): // it is ours
		return nil
	case errors.Is(err, unix.EPERM) && l.may:
		return ErrHeld
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("take log group %d of netfilter: %w: CAP_NET_ADMIN is needed", l.group, fs.ErrPermission)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP): // nfnetlink has no such subsystem
		return fmt.Errorf("%w: netfilter's log groups are missing (the module nfnetlink_log, "+
			"CONFIG_NETFILTER_NETLINK_LOG)", ErrUnsupported)
	}
	return fmt.Errorf("take log group %d of netfilter: %w", l.group, err)
}

// ask sends a message about the group, and returns the kernel's error.
func (l *Lock) ask(typ uint16, attrs func(*netlink.Encoder)) error {
	var e netlink.Encoder
	at := e.Netfilter(typ, unix.NLM_F_ACK, unix.AF_UNSPEC, 0, l.group)
	attrs(&e)
	e.EndMessage(at)
	return l.conn.Do(context.Background(), e.B, nil)
}

// Holder is the process that has a lock.
type Holder struct {
	PID     int    // 0 if this process cannot see it, as from another pid namespace
	Program string // its name
	State   string // such as "S (sleeping)" or "T (stopped)"
	Port    uint32 // its socket's netlink port; 0 if no process has the lock
}

// String describes the process.
func (h Holder) String() string {
	if h.PID == 0 {
		return fmt.Sprintf("a process that cannot be seen from here (netlink port %d)", h.Port)
	}
	return fmt.Sprintf("process %d (%s), %s", h.PID, h.Program, h.State)
}

// Holder finds the process that has the lock, in the calling thread's network namespace. It reads
// all of /proc.
func (l *Lock) Holder() Holder {
	var h Holder
	for _, f := range fields("/proc/thread-self/net/netfilter/nfnetlink_log") {
		if len(f) > 1 && f[0] == strconv.Itoa(int(l.group)) {
			h.Port = uint32(number(f[1]))
		}
	}
	var socket string
	for _, f := range fields("/proc/thread-self/net/netlink") { // sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode
		if len(f) > 9 && f[1] == strconv.Itoa(unix.NETLINK_NETFILTER) && uint32(number(f[2])) == h.Port {
			socket = "socket:[" + f[9] + "]"
		}
	}
	if h.Port == 0 || socket == "" {
		return h
	}
	open, _ := filepath.Glob("/proc/[0-9]*/fd/*") // the pattern is right
	for _, fd := range open {
		if to, err := os.Readlink(fd); err == nil && to == socket {
			h.PID = int(number(strings.Split(fd, "/")[2]))
			break
		}
	}
	for _, f := range fields(fmt.Sprintf("/proc/%d/status", h.PID)) {
		switch f[0] {
		case "Name:":
			h.Program = strings.Join(f[1:], " ")
		case "State:":
			h.State = strings.Join(f[1:], " ")
		}
	}
	return h
}

// fields returns the words of each non-empty line of a file; none if it cannot be read.
func fields(path string) (lines [][]string) {
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	for in := bufio.NewScanner(file); in.Scan(); {
		if words := strings.Fields(in.Text()); len(words) > 0 {
			lines = append(lines, words)
		}
	}
	return lines
}

// number reads a number, which the kernel prints as negative in places; 0 for anything else.
func number(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}
