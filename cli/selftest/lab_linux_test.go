package selftest

import (
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"kube-proxy/debug/api"
	"kube-proxy/debug/inspect"
)

// The proxy compares the kernel only after it has written. Earlier the comparison would slow the
// start on a slow machine, and its late answer would not match the status (WN-03).
func TestComparesWhatIsWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	states := []inspect.Status{
		{Families: []inspect.FamilyStatus{{}}},
		{Synced: true, Families: []inspect.FamilyStatus{{}}},
		{Synced: true, Services: 7, Families: []inspect.FamilyStatus{{Begun: true}, {}}},
		{Synced: true, Services: 7, Families: []inspect.FamilyStatus{{Begun: true}, {Begun: true}}},
	}
	asked := make(chan string, 100)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path
		w.Header().Set(api.Header, "1")
		if r.URL.Path == "/v1/diff" {
			json.NewEncoder(w).Encode(inspect.Diff{Frontends: 14})
			return
		}
		json.NewEncoder(w).Encode(states[0])
		states = states[1:]
	})}
	go server.Serve(l)
	defer server.Close()
	r := &run{Config: Config{Timeout: time.Minute}, lab: lab{dir: t.TempDir(), ask: api.NewClient(path)}}
	if err := r.settled(t.Context(), 7); err != nil {
		t.Error(err)
	}
	close(asked)
	var got []string
	for query := range asked {
		got = append(got, query)
	}
	if want := []string{"/v1/status", "/v1/status", "/v1/status", "/v1/status", "/v1/diff"}; !slices.Equal(got, want) {
		t.Errorf("asked %v, want %v", got, want)
	}
}
