package traffic

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"kube-proxy/lb"
	"kube-proxy/mode"
)

// rig is a counter that tests count with, and a table.
type rig struct {
	t       testing.TB
	table   lb.Table
	counts  map[mode.CounterID]mode.Count
	err     error
	reads   int
	now     time.Time
	account *Account
}

func newRig(t testing.TB, services int) *rig {
	r := &rig{t: t, counts: map[mode.CounterID]mode.Count{}, now: time.Unix(1, 0)}
	r.account = New(Config{Counter: r, Services: services, Now: func() time.Time { return r.now },
		Query: func(f func(*lb.Table)) { f(&r.table) }})
	return r
}

func (r *rig) Counts() bool { return true }

func (r *rig) Traffic(_ context.Context, f func(mode.Count)) error {
	r.reads++
	for _, c := range r.counts {
		f(c)
	}
	return r.err
}

func keyOf(i int) lb.Key {
	return lb.Key{Addr: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), Port: 80, Proto: lb.TCP}
}

func (r *rig) service(i int, name string) lb.Key {
	r.t.Helper()
	k := keyOf(i)
	r.table.Replace(lb.Owner{Name: name}, []*lb.Frontend{{Key: k, Service: name + ":http", Kind: lb.ClusterIP,
		Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Reject}}}})
	if r.table.Get(k) == nil {
		r.t.Fatalf("%s has no row", name)
	}
	return k
}

// add counts n more connections for a frontend.
func (r *rig) add(k lb.Key, n uint64) { r.count(mode.CounterID{Frontend: k}, "", n) }

// count counts n connections more.
func (r *rig) count(c mode.CounterID, port string, n uint64) {
	t := r.counts[c].Traffic
	t.Connections += n
	t.Bytes += 100 * n
	r.counts[c] = mode.Count{CounterID: c, ServicePort: port, Traffic: t}
}

// scrape returns the values ten seconds later.
func (r *rig) scrape() map[string]uint64 {
	r.t.Helper()
	r.now = r.now.Add(10 * time.Second)
	got := map[string]uint64{}
	if err := r.account.Each(r.t.Context(), func(ns, name string, t mode.Traffic) {
		if t.Bytes != 100*t.Connections {
			r.t.Errorf("%s/%s: %+v", ns, name, t)
		}
		if _, twice := got[ns+"/"+name]; twice {
			r.t.Errorf("%s/%s is reported twice", ns, name)
		}
		got[ns+"/"+name] = t.Connections
	}); !errors.Is(err, r.err) {
		r.t.Errorf("error %v, want %v", err, r.err)
	}
	return got
}

const rest = Others + "/" + Others

func (r *rig) want(about string, want map[string]uint64) {
	r.t.Helper()
	if got := r.scrape(); !maps.Equal(got, want) {
		r.t.Errorf("%s: %v, want %v", about, got, want)
	}
}

func TestAccount(t *testing.T) {
	r := newRig(t, 2)
	a, b, c := r.service(1, "shop/a"), r.service(2, "shop/b"), r.service(3, "shop/c")
	r.add(a, 1000)
	r.want("what an earlier process counted", map[string]uint64{rest: 0})
	r.add(a, 5)
	r.add(b, 3)
	r.want("a and b", map[string]uint64{"shop/a": 5, "shop/b": 3, rest: 0})
	r.add(c, 4)
	r.add(a, 5)
	r.add(b, 3)
	r.want("a third has no series", map[string]uint64{"shop/a": 10, "shop/b": 6, rest: 4})
	delete(r.counts, mode.CounterID{Frontend: a})
	r.add(a, 7)
	r.want("a counter restarts", map[string]uint64{"shop/a": 17, "shop/b": 6, rest: 4})
	delete(r.counts, mode.CounterID{Frontend: a})
	r.want("a counter goes", map[string]uint64{"shop/a": 17, "shop/b": 6, rest: 4})
	r.add(a, 2)
	r.want("it comes again", map[string]uint64{"shop/a": 19, "shop/b": 6, rest: 4})
	missed := r.counts[mode.CounterID{Frontend: b}]
	delete(r.counts, mode.CounterID{Frontend: b})
	r.want("a counter that a reading lacks", map[string]uint64{"shop/a": 19, "shop/b": 6, rest: 4})
	r.counts[mode.CounterID{Frontend: b}] = missed
	r.want("it is there still", map[string]uint64{"shop/a": 19, "shop/b": 6, rest: 4})
	r.add(c, 1000)
	r.want("the third has the most", map[string]uint64{"shop/a": 19, "shop/c": 1000, rest: 4})
	r.add(b, 1)
	r.want("one that lost its series", map[string]uint64{"shop/a": 19, "shop/c": 1000, rest: 5})
	r.table.Replace(lb.Owner{Name: "shop/c"}, nil)
	r.add(c, 8)
	r.want("a Service is deleted, and its last connections have no owner", map[string]uint64{"shop/a": 19, rest: 13})
	nodePort := lb.Key{Port: 30080, Proto: lb.TCP}
	r.table.Replace(lb.Owner{Name: "shop/d"}, []*lb.Frontend{{Key: nodePort, Service: "shop/d", Kind: lb.NodePort,
		Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Reject}}}})
	r.add(nodePort, 3)
	r.want("a NodePort", map[string]uint64{"shop/a": 19, "shop/d": 3, rest: 13})
}

// Rates are of the time between the last two readings, of Services that have a series.
func TestRates(t *testing.T) {
	r := newRig(t, 2)
	a, b := r.service(1, "shop/a"), r.service(2, "shop/b")
	want := func(about string, want map[string][2]float64) {
		t.Helper()
		got := map[string][2]float64{}
		if err := r.account.Rates(t.Context(), func(name string, connections, bytes float64) {
			got[name] = [2]float64{connections, bytes}
		}); err != nil || !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v (%v)", about, got, want, err)
		}
	}
	r.add(a, 1000)
	want("what an earlier process counted", map[string][2]float64{})
	r.add(a, 50)
	r.now = r.now.Add(10 * time.Second)
	want("a", map[string][2]float64{"shop/a": {5, 500}})
	r.add(b, 20)
	r.now = r.now.Add(time.Second)
	want("it was read just now", map[string][2]float64{"shop/a": {5, 500}})
	r.now = r.now.Add(9 * time.Second)
	want("b", map[string][2]float64{"shop/a": {0, 0}, "shop/b": {2, 200}})
}

// Counters with numbers are of a service port, several of one and one after the other.
func TestNumberedCounters(t *testing.T) {
	r := newRig(t, 2)
	r.service(1, "shop/a")
	row := r.service(2, "shop/b")
	first, second, third := mode.CounterID{N: 1}, mode.CounterID{N: 2}, mode.CounterID{N: 3}
	r.count(first, "shop/a:http", 1000)
	r.want("what was counted before", map[string]uint64{rest: 0})
	r.count(first, "shop/a:http", 1)
	r.count(second, "shop/a", 2)
	r.add(row, 3)
	r.want("several of one Service", map[string]uint64{"shop/a": 3, "shop/b": 3, rest: 0})
	delete(r.counts, first)
	r.count(third, "shop/a:http", 2000)
	r.want("one that begins again with more than the one before had", map[string]uint64{"shop/a": 2003, "shop/b": 3,
		rest: 0})
	r.count(third, "shop/b:http", 5)
	r.want("one that counts for another now", map[string]uint64{"shop/a": 2003, "shop/b": 8, rest: 0})
	r.count(second, "shop/gone:http", 4)
	r.want("a Service that is not there", map[string]uint64{"shop/a": 2003, "shop/b": 8, rest: 4})
}

// After a failed reading, counters that could not be read are missing until the next success, and
// nothing counts twice.
func TestReadingFails(t *testing.T) {
	r := newRig(t, 9)
	a, b := r.service(1, "shop/a"), r.service(2, "shop/b")
	r.err = errors.New("no answer")
	r.add(a, 10)
	r.want("no first reading", map[string]uint64{rest: 0})
	r.err = nil
	r.want("where it begins", map[string]uint64{rest: 0})
	r.add(a, 1)
	r.add(b, 1)
	r.want("well", map[string]uint64{"shop/a": 1, "shop/b": 1, rest: 0})
	lost := mode.CounterID{Frontend: b}
	kept := r.counts[lost]
	delete(r.counts, lost)
	r.err = errors.New("interrupted")
	r.add(a, 1)
	r.want("half an answer", map[string]uint64{"shop/a": 2, "shop/b": 1, rest: 0})
	r.err, r.counts[lost] = nil, kept
	r.add(b, 1)
	r.want("well again", map[string]uint64{"shop/a": 2, "shop/b": 2, rest: 0})
	// However many fail: counters missing in the first success do not count from 0 in the next.
	kept = r.counts[lost]
	delete(r.counts, lost)
	r.err = errors.New("interrupted")
	for range 3 {
		r.want("none again", map[string]uint64{"shop/a": 2, "shop/b": 2, rest: 0})
	}
	r.err = nil
	r.want("all but one", map[string]uint64{"shop/a": 2, "shop/b": 2, rest: 0})
	r.counts[lost] = kept
	r.want("and that", map[string]uint64{"shop/a": 2, "shop/b": 2, rest: 0})
}

// Simultaneous scrapes, or one soon after another, read once.
func TestFrequentScrapes(t *testing.T) {
	r := newRig(t, 9)
	r.scrape()
	for range 100 {
		if err := r.account.Each(t.Context(), func(string, string, mode.Traffic) {}); err != nil {
			t.Fatal(err)
		}
	}
	if r.reads != 1 {
		t.Errorf("%d readings", r.reads)
	}
	// While one caller reads, others get the previous values.
	r.account.reading.Lock()
	defer r.account.reading.Unlock()
	r.now = r.now.Add(time.Hour)
	reported := 0
	if err := r.account.Each(t.Context(), func(string, string, mode.Traffic) { reported++ }); err != nil ||
		reported != 1 || r.reads != 1 {
		t.Errorf("told %d with %d readings: %v", reported, r.reads, err)
	}
}

// 100,000 Services with traffic, with changing ones at the top, have a limited number of series.
// All connections are counted, none twice, no series decreases, and few new ones are created. No
// Query looks up more frontends than one piece.
func TestSeriesAreBounded(t *testing.T) {
	const services, own, rounds = 100_000, 100, 3
	r := newRig(t, own)
	keys := make([]lb.Key, services)
	for i := range keys {
		keys[i] = r.service(i, fmt.Sprintf("ns-%d/svc-%d", i%97, i))
	}
	visits := 0
	query := r.account.cfg.Query
	r.account.cfg.Query = func(f func(*lb.Table)) { visits++; query(f) }
	r.scrape()
	rnd := rand.New(rand.NewPCG(1, 2))
	var all, reported uint64
	before, ever := map[string]uint64{}, map[string]bool{}
	for range rounds {
		visits = 0
		for _, k := range keys {
			n := uint64(1 + rnd.IntN(50))
			r.add(k, n)
			all += n
		}
		got := r.scrape()
		if len(got) > own+1 {
			t.Fatalf("%d series", len(got))
		}
		for name, n := range got {
			if was, ok := before[name]; ok && n < was {
				t.Errorf("%s goes back from %d to %d", name, was, n)
			}
			reported += n - before[name]
			if before[name] == 0 && !ever[name] {
				ever[name] = true
			}
		}
		before = got
		if most := services/atOnce + own/atOnce + 3; visits > most {
			t.Errorf("%d queries, want %d at most", visits, most)
		}
	}
	if reported != all {
		t.Errorf("%d connections are reported, %d were", reported, all)
	}
	if most := own + rounds*own/10 + 1; len(ever) > most {
		t.Errorf("%d Services had series, want %d at most", len(ever), most)
	}
	// A Service with far more than others has its own series, however many there are.
	for range 3 {
		r.add(keys[77_777], 1_000_000)
		for _, k := range keys[:1000] {
			r.add(k, 10)
		}
		before = r.scrape()
	}
	if before["ns-"+fmt.Sprint(77_777%97)+"/svc-77777"] < 2_000_000 {
		t.Errorf("the Service with the most has no series: %v", before)
	}
}

// Any name of a Service can be written as a label, and none can be mistaken for the others.
func TestHostileNames(t *testing.T) {
	r := newRig(t, 50)
	names := []string{"a/_other", "a/\"} 1\nevil 1", "a/\xff\xfe", "a/<script>", "/", "a", strings.Repeat("a", 300) +
		"/b", "a/b/c", "a/b:c:d", "others/others"}
	r.scrape()
	var keys []lb.Key
	for i, name := range names {
		keys = append(keys, r.service(i, name))
	}
	for _, k := range keys {
		r.add(k, 1)
	}
	got := r.scrape()
	if len(got) != len(names)+1 || got[rest] != 0 {
		t.Errorf("%d series of %d Services: %q", len(got), len(names), slices.Sorted(maps.Keys(got)))
	}
	for name := range got {
		if !utf8.ValidString(name) {
			t.Errorf("%q is not UTF-8", name)
		}
	}
}
