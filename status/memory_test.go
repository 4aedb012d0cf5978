package status_test

import (
	"io"
	"net/http"
	"runtime"
	"testing"
)

// The metrics may cost a few MiB, whatever the number of Services: the registry with all that a
// scrape leaves behind.
func TestMemory(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	p := newProxy(t, "iptables")
	p.exercise()
	scrape := func() {
		res, err := http.Get(p.url + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if n, err := io.Copy(io.Discard, res.Body); err != nil || n < 10_000 {
			t.Fatalf("a scrape of %d bytes: %v", n, err)
		}
	}
	scrape()
	first := heap()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	total := m.TotalAlloc
	const scrapes = 10
	for range scrapes {
		scrape()
	}
	runtime.ReadMemStats(&m)
	garbage := (m.TotalAlloc - total) / scrapes
	last := heap()
	t.Logf("heap: %d KiB before, %d KiB with metrics and a server, %d KiB after %d more scrapes; %d KiB of garbage a "+
		"scrape", before>>10, first>>10, last>>10, scrapes, garbage>>10)
	if int64(last)-int64(before) > 3<<20 {
		t.Errorf("the metrics hold %d KiB", (last-before)>>10)
	}
	if garbage > 2<<20 {
		t.Errorf("a scrape makes %d KiB of garbage", garbage>>10)
	}
}
