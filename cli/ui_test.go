package cli

import (
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"kube-proxy/internal/listen"
)

// Connections of other users to kube-proxy ui are limited, and idle ones end (TN-99).
func TestPageServerTN99(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := pageServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "page") }))
	idle, header := server.IdleTimeout, server.MaxHeaderBytes
	if idle <= 0 || idle > 5*time.Minute || header != listen.MaxHeaderBytes {
		t.Errorf("idle connections end after %v, headers have up to %d bytes", idle, header)
	}
	go server.Serve(l)
	defer server.Close()
	const more = 20
	most := listen.OwnShare().Connections
	conns := make([]net.Conn, most+more)
	for i := range conns {
		if conns[i], err = net.Dial("tcp", l.Addr().String()); err != nil {
			t.Fatal(err)
		}
		defer conns[i].Close()
	}
	for i := range more { // the oldest made room
		conns[i].SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := conns[i].Read(make([]byte, 1)); err == nil || isTimeoutErr(err) {
			t.Fatalf("connection %d of %d is open: %v", i, len(conns), err)
		}
	}
	resp, err := http.Get("http://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); string(text) != "page" {
		t.Errorf("answer %q", text)
	}
}

func isTimeoutErr(err error) bool {
	n, is := err.(net.Error)
	return is && n.Timeout()
}
