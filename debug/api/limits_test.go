package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/debug/api"
)

// endless returns a client for a proxy that answers with part, every so often, for ever.
func endless(t *testing.T, begin, part string, every time.Duration) (client *api.Client, sent *atomic.Int64) {
	sent = new(atomic.Int64)
	conns := make(chan net.Conn)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(api.Header, "1")
		io.WriteString(w, begin)
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, part); err != nil {
				return
			}
			sent.Add(int64(len(part)))
			http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-time.After(every):
			}
		}
	})}
	l := &handed{conns}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return api.Over("pod evil", func(context.Context) (net.Conn, error) {
		here, there := net.Pipe()
		conns <- there
		return here, nil
	}), sent
}

type handed struct{ conns chan net.Conn }

func (h *handed) Accept() (net.Conn, error) {
	conn, open := <-h.conns
	if !open {
		return nil, net.ErrClosed
	}
	return conn, nil
}
func (h *handed) Close() error { close(h.conns); return nil }
func (*handed) Addr() net.Addr { return &net.UnixAddr{} }

// A client reads no more of an answer than its limit, and waits no longer: neither of one that does
// not end, nor of one that comes byte by byte (TN-99).
func TestHostileAnswersTN99(t *testing.T) {
	const most = 1 << 20
	t.Run("too long", func(t *testing.T) {
		client, sent := endless(t, `{"a":"`, strings.Repeat("x", 4096), 0)
		var out json.RawMessage
		err := client.Limit(time.Hour, most).Get(t.Context(), "status", nil, &out)
		if !errors.Is(err, api.ErrNotAsked) || !strings.Contains(err.Error(), "answer too long: more than 1 MiB") {
			t.Errorf("%v", err)
		}
		if n := sent.Load(); n > 2*most {
			t.Errorf("%d bytes were read", n)
		}
	})
	t.Run("too long, of a stream", func(t *testing.T) {
		client, _ := endless(t, "", strings.Repeat(" ", 4096), 0)
		err := client.Limit(time.Hour, most).Each(t.Context(), "top", nil, func(json.RawMessage) bool { return true })
		if err == nil || !strings.Contains(err.Error(), "answer too long") {
			t.Errorf("%v", err)
		}
	})
	t.Run("too slow", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			client, _ := endless(t, `{"a":"`, "x", time.Second)
			began := time.Now()
			var out json.RawMessage
			err := client.Limit(15*time.Second, most).Get(t.Context(), "status", nil, &out)
			if took := time.Since(began); took != 15*time.Second || !errors.Is(err, api.ErrNotAsked) ||
				!strings.Contains(err.Error(), "not complete within 15s") {
				t.Errorf("after %v: %v", took, err)
			}
		})
	})
	t.Run("a long stream", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			client, _ := endless(t, "", `{"node":"`+strings.Repeat("x", 4096)+`"}`, time.Second)
			n := 0
			err := client.Limit(5*time.Second, 10_000).Each(t.Context(), "top", nil, func(json.RawMessage) bool {
				n++
				return n < 100
			})
			if err != nil || n != 100 {
				t.Errorf("%d answers: %v", n, err)
			}
		})
	})
}
