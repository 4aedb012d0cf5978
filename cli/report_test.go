package cli

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"kube-proxy/debug/api"
)

// A report keeps a limited number of bytes, and names what it left out: the node may be hostile. If
// one does not answer any more, the user does not wait for the details of each Service (TN-99).
func TestReportOfHostileNodeTN99(t *testing.T) {
	var services atomic.Int32
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(api.Header, "1")
		switch r.URL.Path {
		case "/v1/states":
			one := `{"namespace":"a","name":"b","severity":"error"}`
			io.WriteString(w, `{"services":[`+strings.Repeat(one+",", 30)+one+`]}`)
		case "/v1/service":
			if services.Add(1) == 3 {
				io.WriteString(w, `{"cut`)
				return
			}
			io.WriteString(w, `{}`)
		case "/v1/table":
			io.WriteString(w, `"`+strings.Repeat("x", 8000)+`"`)
		default:
			io.WriteString(w, `{}`)
		}
	})}
	l := &oneByOne{make(chan net.Conn)}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	q := &queries{client: api.Over("here", func(context.Context) (net.Conn, error) {
		here, there := net.Pipe()
		l.conns <- there
		return here, nil
	})}
	all, err := q.reportAnswers(t.Context(), 4096)
	if err != nil {
		t.Fatal(err)
	}
	kept := 0
	for _, a := range all {
		kept += len(a.raw)
		if left := a.err != nil && strings.Contains(a.err.Error(), "left out"); left != (a.file == "table.json") {
			t.Errorf("%s: %v", a.file, a.err)
		}
	}
	if n := services.Load(); n != 3 || kept > 4096 || len(all) != len(reportQueries)+3 {
		t.Errorf("%d answers of %d bytes, %d of Services", len(all), kept, n)
	}
}
