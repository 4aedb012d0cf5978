package main

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"
)

// proxyLog takes the log of kube-proxy. It keeps the last lines, and reports warnings and errors.
type proxyLog struct {
	mu   sync.Mutex
	rest []byte
	tail []string
	// failover is the line in which the proxy says whether it does failover, "" until then.
	failover string

	// complaints has warnings and errors. Those that do not fit are dropped.
	complaints chan string
}

const keptLines = 40

func newProxyLog() *proxyLog { return &proxyLog{complaints: make(chan string, 256)} }

// Write takes a piece of the log; it never fails.
func (l *proxyLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, b...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		l.rest = rest
		l.line(string(line))
	}
}

func (l *proxyLog) line(line string) {
	l.tail = append(l.tail, line)
	if len(l.tail) > keptLines {
		l.tail = l.tail[1:]
	}
	if strings.Contains(line, failoverOn) || strings.Contains(line, failoverOff) {
		l.failover = line
	}
	if text := complaint(line); text != "" {
		select {
		case l.complaints <- text:
		default:
		}
	}
}

// What the proxy says of failover, at its start.
const (
	failoverOn  = `"Failover is on"`
	failoverOff = `"Failover has no effect`
)

// awaitFailover waits until the proxy has said whether it does failover.
func (l *proxyLog) awaitFailover(ctx context.Context) (on bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, servesWithin)
	defer cancel()
	for {
		l.mu.Lock()
		said := l.failover
		l.mu.Unlock()
		if said != "" {
			return strings.Contains(said, failoverOn), nil
		}
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("kube-proxy does not say whether it does failover: %w", ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// String returns the last lines, indented.
func (l *proxyLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.tail) == 0 {
		return "  (nothing)"
	}
	return "  " + strings.Join(l.tail, "\n  ")
}

// header begins a warning or an error in the log.
var header = regexp.MustCompile(`^[WE]\d{4} \S+ +\d+ \S+\] `)

// complaint returns the problem in a line of the log, "" for any other line.
func complaint(line string) string {
	if at := header.FindString(line); at != "" {
		return line[len(at):]
	}
	if strings.HasPrefix(line, "panic") || strings.HasPrefix(line, "fatal") {
		return line
	}
	return ""
}
