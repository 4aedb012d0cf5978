package main

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// proxyLog takes the log of kube-proxy: it keeps the last lines, and tells of writes and complaints.
type proxyLog struct {
	mu   sync.Mutex
	rest []byte
	tail []string

	// news has what a watcher wants to know. When nobody takes it, it is lost.
	news chan news
}

// news is one line of the log: a write to the kernel, or a complaint.
type news struct {
	at        time.Time
	complaint string // a warning or an error, or "" for a write
	family    string // of a write: IPv4, IPv6
	changes   string // how many rows it changed
	took      time.Duration
}

const keptLines = 40

func newProxyLog() *proxyLog { return &proxyLog{news: make(chan news, 256)} }

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
	if l.tail = append(l.tail, line); len(l.tail) > keptLines {
		l.tail = l.tail[1:]
	}
	if n, ok := parseNews(line); ok {
		n.at = time.Now()
		select {
		case l.news <- n:
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

// header is that of a line of the log, with its severity.
var header = regexp.MustCompile(`^([IWE])\d{4} \S+ +\d+ \S+\] `)

// parseNews reads a line of the log.
func parseNews(line string) (news, bool) {
	at := header.FindStringSubmatch(line)
	if at == nil {
		return news{complaint: line}, strings.HasPrefix(line, "panic") || strings.HasPrefix(line, "fatal")
	}
	message := line[len(at[0]):]
	if at[1] != "I" {
		return news{complaint: readable(message)}, true
	}
	if !strings.HasPrefix(message, `"wrote" `) {
		return news{}, false
	}
	values := map[string]string{}
	for word := range strings.FieldsSeq(message) {
		key, value, _ := strings.Cut(word, "=")
		values[key] = strings.Trim(value, `"`)
	}
	d, err := time.ParseDuration(values["took"])
	// An audit that has found nothing to mend is no news.
	return news{family: values["family"], changes: values["changes"], took: d}, err == nil && values["changes"] != "0"
}

// readable takes the quotes off the message: `"a b" k=v` is `a b (k=v)`.
func readable(message string) string {
	quoted, err := strconv.QuotedPrefix(message)
	if err != nil {
		return message
	}
	text, _ := strconv.Unquote(quoted)
	keys := strings.TrimSpace(message[len(quoted):])
	if keys == "" {
		return text
	}
	return text + " (" + keys + ")"
}
