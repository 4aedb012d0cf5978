package status

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// However many scrapes come at once, one waits for two computations at most (TN-93). Each gets the
// form that it accepts, and values that are not older than its request.
func TestScrapesAtOnceTN93(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const scrape = time.Second
		var computed atomic.Int64
		h := shared(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n := computed.Add(1)
			time.Sleep(scrape)
			w.Header().Set("Content-Type", r.Header.Get("Accept"))
			w.Header().Set("Content-Encoding", r.Header.Get("Accept-Encoding"))
			fmt.Fprint(w, n)
		}))
		ask := func(coding string) *httptest.ResponseRecorder {
			r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
			r.Header.Set("Accept-Encoding", coding)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w
		}
		var burst sync.WaitGroup
		began := time.Now()
		for range 300 {
			burst.Go(func() { ask("gzip") })
		}
		time.Sleep(scrape / 2)
		w := ask("deflate, gzip;q=0.5")
		if took := time.Since(began); took != 2*scrape || w.Body.String() != "2" ||
			w.Header().Get("Content-Encoding") != "gzip" || w.Code != http.StatusOK {
			t.Errorf("after %v: %d %q %v", took, w.Code, w.Body, w.Header())
		}
		burst.Wait()
		if n := computed.Load(); n != 2 {
			t.Errorf("computed %d times", n)
		}
		if w := ask("gzip;q=0"); w.Header().Get("Content-Encoding") != "identity" || w.Body.String() != "3" {
			t.Errorf("without gzip: %q %v", w.Body, w.Header())
		}
	})
}

// Profiles are not for web pages whose own name leads to this server (TN-93).
func TestHostOfProfilesTN93(t *testing.T) {
	s := &Server{cfg: ServerConfig{Node: "node-1.example"}}
	for host, want := range map[string]bool{"127.0.0.1:10249": true, "[fd00::1]:10249": true, "fd00::1": true,
		"192.0.2.1": true, "localhost:10249": true, "LOCALHOST": true, "Node-1.example:10249": true,
		"evil.example:10249": false, "": false, "127.0.0.1.evil.example": false, "localhost.evil.example": false} {
		if got := s.named(host); got != want {
			t.Errorf("Host %q: %v", host, got)
		}
	}
}
