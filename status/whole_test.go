package status

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// slowWriter accepts a response on demand.
type slowWriter struct {
	*httptest.ResponseRecorder
	take chan struct{}
}

func (w slowWriter) Write(b []byte) (int, error) {
	<-w.take
	return w.ResponseRecorder.Write(b)
}

// A slow reader keeps only its own response; others are answered meanwhile. One response is
// computed at a time, and a computation that panics ends only the requests that wait for it.
func TestOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var making, made, most atomic.Int32
		h := shared(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			most.Store(max(most.Load(), making.Add(1)))
			defer making.Add(-1)
			w.Header().Set("X-Kind", "test")
			w.WriteHeader(http.StatusTeapot)
			w.Write([]byte(r.URL.Path))
			if r.URL.Path == "/panic" {
				panic(http.ErrAbortHandler)
			}
			made.Add(1)
		}))
		take := make(chan struct{})
		var answers []*httptest.ResponseRecorder
		for range 20 {
			w := httptest.NewRecorder()
			answers = append(answers, w)
			go h.ServeHTTP(slowWriter{w, take}, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		}
		synctest.Wait()
		go func() {
			defer func() { recover() }()
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/panic", nil))
		}()
		synctest.Wait()
		w := httptest.NewRecorder()
		answers = append(answers, w)
		go h.ServeHTTP(slowWriter{w, take}, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		synctest.Wait()
		if made.Load() < 2 || most.Load() != 1 {
			t.Errorf("%d answers are made, %d at a time", made.Load(), most.Load())
		}
		close(take)
		synctest.Wait()
		for _, w := range answers {
			if w.Code != http.StatusTeapot || w.Body.String() != "/metrics" || w.Header().Get("X-Kind") != "test" {
				t.Errorf("answer %d %q %v", w.Code, w.Body, w.Header())
			}
		}
	})
}
