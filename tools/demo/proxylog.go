package main

import (
	"bytes"
	"regexp"
	"strings"
	"sync"
)

// proxyLog takes the log of kube-proxy. It keeps the last lines, and reports warnings and errors.
type proxyLog struct {
	mu   sync.Mutex
	rest []byte
	tail []string

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
	if text := complaint(line); text != "" {
		select {
		case l.complaints <- text:
		default:
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
