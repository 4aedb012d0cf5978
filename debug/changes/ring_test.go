package changes

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

func of(namespace, name string) Entry {
	return Entry{Kind: Service, Family: lb.IPv4, Service: cluster.Name{Namespace: namespace, Name: name},
		What: SliceChanged, Slices: 1, Frontends: 1}
}

// names reads all and returns the names, in order.
func names(r *Ring) (out []string) {
	entries, _ := r.After(0)
	for _, e := range entries {
		out = append(out, e.Object())
	}
	return out
}

func TestNewestStay(t *testing.T) {
	r := newRing(3)
	first, _ := r.Counts()
	for i := range 5 {
		r.Add(of("shop", fmt.Sprint("s", i)))
	}
	if got := strings.Join(names(r), " "); got != "shop/s2 shop/s3 shop/s4" {
		t.Errorf("after five entries a ring of three holds %s", got)
	}
	entries, newest := r.After(first + 4)
	if len(entries) != 1 || entries[0].Seq != first+5 || newest != first+5 {
		t.Errorf("after 4: %v, newest %d", entries, newest)
	}
	if again, newest := r.After(newest); len(again) != 0 || newest != first+5 {
		t.Errorf("after the newest: %v, %d", again, newest)
	}
	if newest, gone := r.Counts(); newest != first+5 || gone != 2 {
		t.Errorf("the newest is %d, %d gone; want %d, 2", newest, gone, first+5)
	}
}

// Numbers increase across a restart: a reader that asks the next process for entries after its last
// number gets all of them.
func TestNumbersGrowOverRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := newRing(3)
		for i := range 1000 {
			before.Add(of("shop", fmt.Sprint("s", i)))
		}
		last, _ := before.Counts()
		time.Sleep(time.Second)
		next := newRing(3)
		next.Add(of("shop", "web"))
		if entries, newest := next.After(last); len(entries) != 1 || newest <= last {
			t.Errorf("after %d of the process before: %v, newest %d", last, entries, newest)
		}
	})
}

// A tenant who changes his Services all the time drops only his own history.
func TestFloodPushesOutItsOwn(t *testing.T) {
	r := newRing(100)
	r.Add(Entry{Kind: Reset, Frontends: 3})
	quiet := []string{"a", "b", "c", "d"}
	for _, ns := range quiet {
		r.Add(of(ns, "web"))
	}
	for i := range 10_000 {
		r.Add(of("flood", fmt.Sprint("s", i%7)))
	}
	held := strings.Join(names(r), " ")
	for _, ns := range quiet {
		// A namespace that shares the flood's bucket is dropped with it; each process has another
		// seed.
		if r.bucketOf(ns) != r.bucketOf("flood") && !strings.Contains(held, ns+"/web") {
			t.Errorf("the flood pushed out %s/web", ns)
		}
	}
	if !strings.HasPrefix(held, "node ") {
		t.Error("the flood pushed out the Reset")
	}
	if len(strings.Fields(held)) != 100 {
		t.Errorf("%d entries are held of 100", len(strings.Fields(held)))
	}
}

// Namespaces that change equally often share the ring, in whatever order they come.
func TestTwoFloodsShare(t *testing.T) {
	r := newRing(100)
	other := "b"
	for r.bucketOf(other) == r.bucketOf("a") {
		other += "b"
	}
	count := map[string]int{}
	for _, ns := range []string{"a", other} {
		for range 300 {
			r.Add(of(ns, "web"))
		}
	}
	for _, name := range names(r) {
		count[name]++
	}
	if a, b := count["a/web"], count[other+"/web"]; a+b != 100 || a < 45 || b < 45 {
		t.Errorf("the ring holds %d and %d entries of the namespaces", a, b)
	}
}

// Endpoints are named in the newest entry about changes of that Service in that family.
func TestNameFindsTheEntry(t *testing.T) {
	web := cluster.Name{Namespace: "shop", Name: "web"}
	repaired, v6 := of("shop", "web"), of("shop", "web")
	repaired.Kind, v6.Family = Repaired, lb.IPv6
	for name, c := range map[string]struct {
		entries []Entry
		want    int // the entry that is named; -1 for none
	}{
		"the only one":                   {[]Entry{of("shop", "web")}, 0},
		"the newer one":                  {[]Entry{of("shop", "web"), of("shop", "web"), of("shop", "x")}, 1},
		"before others of the namespace": {[]Entry{of("shop", "web"), of("shop", "x"), v6, repaired}, 0},
		"of another family":              {[]Entry{v6}, -1},
		"of another kind":                {[]Entry{repaired}, -1},
		"of another Service":             {[]Entry{of("shop", "x"), of("shop", "y")}, -1},
		"none":                           {nil, -1},
	} {
		r := newRing(10)
		for _, e := range c.entries {
			r.Add(e)
		}
		r.name(lb.IPv4, web, "+10.1.0.1:80")
		entries, _ := r.After(0)
		for i, e := range entries {
			if named := e.Endpoints != ""; named != (i == c.want) {
				t.Errorf("%s: entry %d is named: %t", name, i, named)
			}
		}
	}
}

// A program that always undoes our work, or a kernel that refuses everything, fills only one entry.
func TestTheSameAgainIsOneEntry(t *testing.T) {
	r := newRing(10)
	first, _ := r.Counts()
	for i := range 1000 {
		r.Add(Entry{Kind: Repaired, Family: lb.IPv4, Learned: int64(i + 1), Done: int64(i + 2), Frontends: 2,
			Why: fmt.Sprintf("nft (PID %d) changed the table", i)})
	}
	r.Add(Entry{Kind: Repaired, Family: lb.IPv6, Frontends: 1})
	entries, _ := r.After(0)
	if len(entries) != 2 {
		t.Fatalf("%d entries, want one for each family", len(entries))
	}
	e := entries[0]
	if e.Times != 1000 || e.Frontends != 2000 || e.Learned != 1 || e.Done != 1001 || e.Seq != first+1000 {
		t.Errorf("merged to %+v", e)
	}
	if want :=
		"repaired objects that other programs had changed: 2000 objects; nft (PID " +
			"999) changed the table, 1000 times"; e.Words() != want {
		t.Errorf("words %q, want %q", e.Words(), want)
	}
}

// To add costs no allocation and a bounded time, also where all is full and the namespaces are
// many.
func TestAddAllocatesNothing(t *testing.T) {
	r := newRing(256)
	entries := make([]Entry, 1000)
	for i := range entries {
		entries[i] = of(fmt.Sprint("ns", i), "web")
		entries[i].Why = "short"
	}
	i := 0
	if n := testing.AllocsPerRun(10_000, func() {
		r.Add(entries[i%len(entries)])
		i++
	}); n != 0 {
		t.Errorf("an entry costs %v allocations", n)
	}
}

func TestLongTextIsCut(t *testing.T) {
	r := newRing(1)
	r.Add(Entry{Kind: Failed, Why: strings.Repeat("ä", 100_000)})
	entries, _ := r.After(0)
	if n := len(entries[0].Why); n > maxWhy+len("…") {
		t.Errorf("%d bytes of text are kept", n)
	}
}

func TestWords(t *testing.T) {
	web := cluster.Name{Namespace: "shop", Name: "web"}
	for _, c := range []struct {
		e    Entry
		want string
	}{
		{Entry{Kind: Service, Service: web, What: SliceChanged, Slices: 1, Frontends: 2},
			"shop/web: 1 EndpointSlice changed"},
		{Entry{Kind: Service, Service: web, What: ServiceCreated | SliceCreated | SliceChanged, Services: 1, Slices: 3,
			Frontends: 2}, "shop/web: Service created, 3 EndpointSlices created and changed"},
		{Entry{Kind: Service, Service: web, What: ServiceDeleted, Services: 1, Frontends: 1, Failures: 2},
			"shop/web: Service deleted, after 2 failed writes"},
		{Entry{Kind: Service, Service: web, What: ServiceChanged, Services: 2},
			"shop/web: Service changed, no frontend changed"},
		{Entry{Kind: Reset, Services: 100_000, Slices: 1, Frontends: 5},
			"node: compared and wrote everything; with 100000 changes of Services and 1 of EndpointSlices"},
		{Entry{Kind: Reset, Why: "the table is gone", Frontends: 5}, "node: compared and wrote everything because " +
			"the table is gone"},
		{Entry{Kind: Loaded, Services: 1}, "node: wrote the rest of it; with 1 change of Services"},
		{Entry{Kind: Failed, Service: web, Key: lb.Key{Port: 30080, Proto: lb.TCP}, Why: "no room", Times: 1},
			"nodeport:30080/tcp of shop/web: not written: no room"},
		{Entry{Kind: Node}, "node: node or configuration changed, no frontend changed"},
		{Entry{Kind: Node, Frontends: 1}, "node: node or configuration changed"},
	} {
		if got := c.e.Object() + ": " + c.e.Words(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestLatency(t *testing.T) {
	e := Entry{API: 1e9, Learned: 3e9, Done: 4e9}
	if api, learned := e.Latency(); api != 3*time.Second || learned != time.Second {
		t.Errorf("latency %v, %v", api, learned)
	}
	e = Entry{API: 5e9, Done: 4e9}
	if api, learned := e.Latency(); api != 0 || learned != -1 {
		t.Errorf("with a clock that is ahead, and nothing learned: %v, %v", api, learned)
	}
}

// Readers and writers at once: run with -race. Each reader sees each entry once, in order.
func TestReadersSeeAll(t *testing.T) {
	r := newRing(100_000)
	first, _ := r.Counts()
	ctx, cancel := context.WithCancel(t.Context())
	var readers, writers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			seen := first
			for end := false; !end; {
				end = ctx.Err() != nil
				entries, newest := r.After(seen)
				for _, e := range entries {
					if seen++; e.Seq != seen {
						t.Errorf("entry %d where %d was due", e.Seq, seen)
						return
					}
				}
				if seen != newest {
					t.Errorf("%d of %d entries were seen", seen, newest)
					return
				}
			}
			if seen != first+4000 {
				t.Errorf("%d entries seen at the end", seen-first)
			}
		})
	}
	for w := range 4 {
		writers.Go(func() {
			for i := range 1000 {
				r.Add(of(fmt.Sprint("ns", w), fmt.Sprint("s", i)))
			}
		})
	}
	writers.Wait()
	cancel()
	readers.Wait()
}

func BenchmarkAdd(b *testing.B) {
	r := New()
	e := of("shop", "web")
	b.ReportAllocs()
	for b.Loop() {
		r.Add(e)
	}
}
