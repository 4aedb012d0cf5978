//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// answer is a server's response.
type answer struct {
	code   int
	header http.Header
	body   string
}

// client talks to servers in the namespace, each time on a new connection.
func (n *namespace) client() *http.Client {
	return &http.Client{Timeout: timeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
			n.Do(func() { conn, err = new(net.Dialer).DialContext(ctx, network, addr) })
			return conn, err
		},
	}}
}

// ask sends a request; an error means that no server answers.
func (n *namespace) ask(method, url, body string) (answer, error) {
	n.t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	do(n.t, err)
	resp, err := n.client().Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatalf("%s %s: %v", method, url, err)
	}
	return answer{resp.StatusCode, resp.Header, string(text)}, nil
}

// get waits until a server answers.
func (n *namespace) get(url string) answer {
	n.t.Helper()
	return n.until(url, "an answer", func(answer) bool { return true })
}

// until waits until the answer is as it should be.
func (n *namespace) until(url, want string, is func(answer) bool) (a answer) {
	n.t.Helper()
	until(n.t, func() string {
		var err error
		a, err = n.ask(http.MethodGet, url, "")
		if err != nil || !is(a) {
			return fmt.Sprintf("GET %s: %d %s, %v: want %s", url, a.code, a.body, err, want)
		}
		return ""
	})
	return a
}

// code waits until the answer has the status code.
func (n *namespace) code(url string, code int) answer {
	n.t.Helper()
	return n.until(url, http.StatusText(code), func(a answer) bool { return a.code == code })
}

// refused waits until no server listens.
func (n *namespace) refused(addr string) {
	n.t.Helper()
	until(n.t, func() string {
		var conn net.Conn
		var err error
		n.Do(func() { conn, err = net.Dial("tcp", addr) })
		if err != nil {
			return ""
		}
		conn.Close()
		return "a server listens on " + addr
	})
}

// listen has the test itself listen in the namespace.
func (n *namespace) listen(addr string) net.Listener {
	n.t.Helper()
	var l net.Listener
	var err error
	n.Do(func() { l, err = net.Listen("tcp", addr) })
	do(n.t, err)
	n.t.Cleanup(func() { l.Close() })
	return l
}

// has complains of each text that is not there.
func has(t *testing.T, where, text string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("%s: want %q in:\n%s", where, w, text)
		}
	}
}
