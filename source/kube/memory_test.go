package kube

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"kube-proxy/cluster"
	"kube-proxy/source/convert"
)

// bulk returns the i-th Service or its slice with ten endpoints, as a controller writes them; nil
// for other resources.
func bulk(i int, plural string) apiObject {
	name := fmt.Sprintf("service-%06d", i)
	namespace, uid := fmt.Sprintf("namespace-%03d", i%500), types.UID("1b4e28ba-2fa1-11d2-883f-0016d3cca427")
	switch plural {
	case "services":
		svc := testService(name, 80)
		svc.Namespace, svc.UID, svc.ResourceVersion = namespace, uid, "50"
		svc.Annotations = map[string]string{"kubectl.kubernetes.io/last-applied-configuration": fmt.Sprintf("%0300d",
			i)}
		svc.Spec.Ports = []core.ServicePort{{Name: "http", Port: 80}}
		svc.Spec.Selector = map[string]string{"app": name}
		svc.Spec.ClusterIP = fmt.Sprintf("10.%d.%d.%d", 96+i>>16, i>>8&255, i&255)
		svc.Spec.ClusterIPs = []string{svc.Spec.ClusterIP}
		return svc
	case "endpointslices":
		slice := testSlice(name, name+"-x7k2p")
		slice.Namespace, slice.UID, slice.ResourceVersion = namespace, uid, "50"
		slice.Ports[0].Name = new("http")
		for e := range 10 {
			slice.Endpoints = append(slice.Endpoints, discovery.Endpoint{
				Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", 128+e, i>>8&255, i&255)},
				Conditions: discovery.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
				NodeName:   new(fmt.Sprintf("node-%04d", (i*10+e)%5000)),
				Zone:       new("zone-a"),
				TargetRef: &core.ObjectReference{Kind: "Pod", Namespace: namespace, UID: uid,
					Name: fmt.Sprintf("%s-7d4b9c6f5-%05d", name, e)},
				Hints: &discovery.EndpointHints{ForZones: []discovery.ForZone{{Name: "zone-a"}}},
			})
		}
		return slice
	}
	return nil
}

// TestMain is also the other process of [TestMemory]: an API server, until its input ends.
func TestMain(m *testing.M) {
	mode := os.Getenv("KUBE_TEST_SERVER")
	if mode == "" {
		// The other handlers pause by one clock, and each bubble of synctest has its own.
		utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
		os.Exit(m.Run())
	}
	var n int
	if _, err := fmt.Sscan(mode, &n); err != nil {
		panic(err)
	}
	s := &apiServer{rv: 100, watchList: os.Getenv("KUBE_TEST_WATCHLIST") != "", page: 500, bulk: n,
		changed: make(chan struct{}), objects: map[string]map[string]apiObject{}}
	fmt.Println(httptest.NewServer(s).URL)
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// heap returns the bytes of live objects.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// The source holds nothing beside the store: after the first lists the process has what a store of
// directly converted objects has. And at no time does it hold all API objects. The API server is
// another process.
func TestMemory(t *testing.T) {
	n := 5_000
	if v := os.Getenv("KUBE_MEMORY_SERVICES"); v != "" {
		var err error
		n, err = strconv.Atoi(v)
		if err != nil {
			t.Fatal(err)
		}
	}
	before := heap()
	direct := cluster.NewStore("n1")
	for i := range n {
		s, _ := convert.Service(bulk(i, "services").(*core.Service))
		sl, _ := convert.Slice(bulk(i, "endpointslices").(*discovery.EndpointSlice))
		direct.Fold(cluster.ServiceSet{Service: s})
		direct.Fold(cluster.SliceSet{Slice: sl})
	}
	compact := heap() - before
	runtime.KeepAlive(direct)
	direct = nil

	for _, watchList := range []string{"yes", ""} {
		t.Run("watchList="+watchList, func(t *testing.T) {
			server := exec.Command(os.Args[0])
			server.Env = append(os.Environ(), fmt.Sprint("KUBE_TEST_SERVER=", n), "KUBE_TEST_WATCHLIST="+watchList)
			server.Stderr = os.Stderr
			stdin, err1 := server.StdinPipe()
			stdout, err2 := server.StdoutPipe()
			if err := errors.Join(err1, err2, server.Start()); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { stdin.Close(); _ = server.Wait() })
			r := &rig{t: t, store: cluster.NewStore("n1")}
			t.Cleanup(func() { r.store = nil }) // client-go's cache of transports leads here
			cfg := Config{NodeName: "n1", Log: slog.New(slog.DiscardHandler)}
			if _, err := fmt.Fscan(stdout, &cfg.Master); err != nil {
				t.Fatal(err)
			}
			base := heap()
			defer debug.SetGCPercent(debug.SetGCPercent(25)) // else the garbage hides what is held
			began := time.Now()
			peak := watchHeap()
			r.startWith(cfg)
			for !r.store.Synced() {
				if time.Since(began) > 2*time.Minute {
					t.Fatal("no lists")
				}
				time.Sleep(20 * time.Millisecond)
			}
			took, high := time.Since(began), peak()-base
			held := heap() - base
			if got := len(r.store.Names()); got != n {
				t.Fatalf("%d services", got)
			}
			t.Logf("%d services in %v: compact %d KiB, held %d KiB, peak %d KiB", n, took.Round(time.Millisecond),
				compact>>10, held>>10, high>>10)
			if float64(held) > 1.15*float64(compact)+2<<20 {
				t.Errorf("the source holds %d KiB, the store alone has %d KiB", held>>10, compact>>10)
			}
			if float64(high) > 2.2*float64(compact)+6<<20 {
				t.Errorf("peak %d KiB, the store has %d KiB", high>>10, compact>>10)
			}
		})
	}
}

// watchHeap follows the size of the heap; the result ends that and returns the peak.
func watchHeap() (peak func() uint64) {
	var most uint64
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var m runtime.MemStats
		for {
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapAlloc)
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	return func() uint64 {
		close(stop)
		<-done
		return most
	}
}
