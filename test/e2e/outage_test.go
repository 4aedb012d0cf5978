package e2e

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"kube-proxy/test/e2e/testbed"
)

// An API server is killed during changes and returns: connections live, no rule changes meanwhile,
// and later changes arrive. Its etcd is before 3.4.31, such as Debian 12 has: it refuses to watch
// with initial events, so the proxy must fall back to lists, at its start and when the API server
// is back. The control plane of all other tests allows it.
func TestWithoutWatchList(t *testing.T) {
	must(t, watchList(t))
	etcd, err := exec.LookPath("etcd")
	must(t, err)
	old, err := testbed.New(t.Context(), testbed.Options{Etcd: etcd, Logf: t.Logf})
	must(t, err)
	shared := bed
	bed = old
	t.Cleanup(func() {
		bed = shared
		if err := old.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := watchList(t); err == nil {
		t.Errorf("this etcd, %s, is too new: the API server allows to watch with initial events", etcd)
	} else {
		t.Logf("the API server says: %v", err)
	}
	steady := web(t, "steady", "pod1", "pod4")
	startProxy(t)
	await(t, "pod3", steady, "pod1", "pod4")
	stopTraffic := traffic(t, "pod3", steady)
	changes := startFlapping(t, "flapping", 10)
	time.Sleep(500 * time.Millisecond)

	must(t, bed.API.APIServer().Kill())
	sameRulesFor(t, 3*time.Second)
	must(t, bed.API.StartAPIServer(t.Context()))
	changes.stopAndCheck(t)
	t.Logf("a new service answers after %v", marker(t, "marker"))
	stopTraffic()
}

// watchList watches services with initial events until their end.
func watchList(t *testing.T) error {
	initial := true
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	watch, err := bed.API.Client.CoreV1().Services("").Watch(ctx, metav1.ListOptions{
		SendInitialEvents: &initial, AllowWatchBookmarks: true,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	if err != nil {
		return err
	}
	defer watch.Stop()
	for event := range watch.ResultChan() {
		if event.Type == apiwatch.Error {
			return apierrors.FromObject(event.Object)
		}
		if event.Type != apiwatch.Bookmark {
			continue
		}
		if o, err := meta.Accessor(event.Object); err == nil &&
			o.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
			return nil
		}
	}
	return errors.New("the watch ended before the initial events did")
}

// etcd is killed under the API server and returns later.
func TestEtcdDown(t *testing.T) {
	begin(t)
	steady := web(t, "steady", "pod1", "pod4")
	startProxy(t)
	await(t, "pod3", steady, "pod1", "pod4")
	stopTraffic := traffic(t, "pod3", steady)
	must(t, bed.API.Etcd().Kill())
	sameRulesFor(t, 4*time.Second)
	must(t, bed.API.StartEtcd(t.Context()))
	must(t, bed.API.AwaitAPIServer(t.Context()))
	t.Logf("etcd is back; a new service answers after %v", marker(t, "marker"))
	stopTraffic()
}

// The API server stops, and no rule changes meanwhile. It returns with older data: newer data is
// undone, and a service that is the same in both has no gap.
func TestOlderCopy(t *testing.T) {
	inMode(t, testbed.IPTables)
	begin(t)
	steady, changed, deleted := web(t, "steady", "pod1", "pod4"), web(t, "changed", "pod1"), web(t, "deleted", "pod2")
	must(t, bed.API.StopAPIServer())
	must(t, bed.API.StopEtcd())
	snapshot := filepath.Join(bed.Dir, "snapshot")
	must(t, bed.API.Snapshot(snapshot))
	must(t, bed.API.StartEtcd(t.Context()))
	must(t, bed.API.StartAPIServer(t.Context()))

	startProxy(t)
	await(t, "pod3", changed, "pod1")
	stopTraffic := traffic(t, "pod3", steady)
	move(t, "changed", "pod4")
	must(t, bed.API.DeleteService(t.Context(), "deleted"))
	must(t, bed.API.DeleteSlice(t.Context(), "deleted"))
	late := web(t, "late", "pod5")
	await(t, "pod3", changed, "pod4")
	await(t, "pod3", late, "pod5")

	must(t, bed.API.StopAPIServer())
	sameRulesFor(t, 3*time.Second)
	must(t, bed.API.StopEtcd())
	must(t, bed.API.Restore(snapshot))
	must(t, bed.API.StartEtcd(t.Context()))
	must(t, bed.API.StartAPIServer(t.Context()))
	start := time.Now()
	await(t, "pod3", changed, "pod1")
	await(t, "pod3", deleted, "pod2")
	awaitSilence(t, "pod3", late)
	t.Logf("%v after the older copy was up: the change is undone, the deleted service is back, the later one is gone",
		time.Since(start).Round(time.Millisecond))
	t.Logf("a new service answers after %v", marker(t, "marker"))
	stopTraffic()
}

// A proxy that does not read for a while (stopped by a signal, as a starved machine would) loses
// its watches. It catches up with everything that happened, deletions included.
func TestFrozenProxy(t *testing.T) {
	begin(t)
	gone := web(t, "gone", "pod2")
	p := startProxy(t)
	await(t, "pod3", gone, "pod2")
	must(t, p.Signal(syscall.SIGSTOP))
	changes := startFlapping(t, "flapping", 10)
	must(t, bed.API.DeleteService(t.Context(), "gone"))
	must(t, bed.API.DeleteSlice(t.Context(), "gone"))
	time.Sleep(3 * time.Second)
	must(t, p.Signal(syscall.SIGCONT))
	start := time.Now()
	changes.stopAndCheck(t)
	awaitSilence(t, "pod3", gone)
	t.Logf("caught up %v after it was let go", time.Since(start).Round(time.Millisecond))
}
