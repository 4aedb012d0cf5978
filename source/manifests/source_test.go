package manifests

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/source/convert"
)

// rig runs a Source on a folder into a Store.
type rig struct {
	t        *testing.T
	dir      string
	store    *cluster.Store
	mu       sync.Mutex
	reported []convert.Problem
	// dips are moments with fewer known Services than the test allows.
	least, dips int
	// empty is the longest time for which a file may have been empty during a write: after grace
	// its objects are deleted.
	empty time.Duration
}

func (r *rig) write(name, text string) {
	r.t.Helper()
	defer r.emptied(time.Now())
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) emptied(since time.Time) { r.empty = max(r.empty, time.Since(since)) }

// noDips requires that nothing was missing for a moment; on a machine so busy that a write took
// longer than grace it may have been.
func (r *rig) noDips() {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dips > 0 && r.empty < grace {
		r.t.Errorf("objects were away for a moment, %d times", r.dips)
	}
}

func (r *rig) start() {
	r.t.Helper()
	src, err := New(Config{Dir: r.dir, Log: slog.New(slog.DiscardHandler), OnProblem: func(p convert.Problem) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.reported = append(r.reported, p)
	}})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		done <- src.Run(ctx, func(ev cluster.Event) {
			r.store.Fold(ev)
			r.mu.Lock()
			defer r.mu.Unlock()
			if len(r.store.Names()) < r.least {
				r.dips++
			}
		})
	}()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
}

func newRig(t *testing.T) *rig {
	return &rig{t: t, dir: t.TempDir(), store: cluster.NewStore("n1")}
}

// state prints the Services of the store with their first ports: "shop/api:90 shop/web:80".
func (r *rig) state() string {
	var out []string
	for _, n := range r.store.Names() {
		s := r.store.View(n).Service
		text := n.String()
		for _, p := range s.Ports {
			text += fmt.Sprint(":", p.Port)
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (r *rig) wait(want string) {
	r.t.Helper()
	r.until(func() bool { return r.state() == want }, func() string {
		return fmt.Sprintf("state %q, want %q; told %v", r.state(), want, r.problems())
	})
}

func (r *rig) waitReported(part string) {
	r.t.Helper()
	r.until(func() bool { return strings.Contains(fmt.Sprint(r.problems()), part) },
		func() string { return fmt.Sprintf("told %v, want %q", r.problems(), part) })
}

func (r *rig) until(ok func() bool, message func() string) {
	r.t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatal(message())
		}
	}
}

func (r *rig) problems() []convert.Problem {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.reported)
}

func (r *rig) require(least int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.least = least
}

func svc(name string, port int) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: shop}\n"+
		"spec: {clusterIP: 10.96.0.1, ports: [{port: %d}]}\n", name, port)
}

// A folder is watched: files are added, changed, moved, broken, repaired and deleted.
func TestFollow(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.write("a.yaml", svc("web", 80)+svc("api", 90))
	r.start()
	r.wait("shop/api:90 shop/web:80")
	if r.store.Synced() != true {
		t.Error("SV-05: a complete list was not announced")
	}

	r.write("b.yml", svc("db", 5432))
	r.wait("shop/api:90 shop/db:5432 shop/web:80")

	r.write("a.yaml", svc("web", 81)+svc("api", 90))
	r.wait("shop/api:90 shop/db:5432 shop/web:81")

	// A malformed file: it is reported with line and field, its last good objects stay, the others
	// apply.
	r.require(3)
	r.write("a.yaml", svc("web", 82)+"spec: {prot: 1}\n")
	r.waitReported("the file's last good objects stay")
	r.write("b.yml", svc("db", 5433))
	r.wait("shop/api:90 shop/db:5433 shop/web:81")
	r.write("a.yaml", svc("web", 82)+"---\n{[")
	r.waitReported("is not YAML")
	r.wait("shop/api:90 shop/db:5433 shop/web:81")

	// A refused object: its last good version stays, the rest of the file applies.
	r.write("a.yaml", svc("web", 65536)+svc("api", 91))
	r.wait("shop/api:91 shop/db:5433 shop/web:81")
	r.waitReported("65536")
	r.waitReported("the object's last good version stays")

	// Repaired.
	r.write("a.yaml", svc("web", 83)+svc("api", 92))
	r.wait("shop/api:92 shop/db:5433 shop/web:83")

	// Renamed over, as editors do: there is no moment without the objects.
	r.write(".a.yaml.swp", svc("web", 84)+svc("api", 92))
	if err := os.Rename(filepath.Join(r.dir, ".a.yaml.swp"), filepath.Join(r.dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	r.wait("shop/api:92 shop/db:5433 shop/web:84")

	// Emptied and written again a little later: the same.
	began := time.Now()
	r.write("a.yaml", "")
	time.Sleep(3 * settle)
	r.write("a.yaml", svc("web", 85)+svc("api", 92))
	r.emptied(began)
	r.wait("shop/api:92 shop/db:5433 shop/web:85")

	// Renamed: the objects are in another file now, and no duplicates are reported.
	if err := os.Rename(filepath.Join(r.dir, "a.yaml"), filepath.Join(r.dir, "z.yaml")); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * grace)
	r.wait("shop/api:92 shop/db:5433 shop/web:85")
	r.require(0)
	r.noDips()
	if strings.Contains(fmt.Sprint(r.problems()), "already") {
		t.Errorf("told %v", r.problems())
	}

	if err := os.Remove(filepath.Join(r.dir, "z.yaml")); err != nil {
		t.Fatal(err)
	}
	r.wait("shop/db:5433")
	r.write("b.yml", "# nothing\n")
	r.wait("")
}

// Of an object in two files the first file's counts, by name; the other takes over when the first
// is deleted.
func TestTwoFiles(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.write("b.yaml", svc("web", 2))
	r.start()
	r.wait("shop/web:2")
	r.write("a.yaml", svc("web", 1))
	r.wait("shop/web:1")
	r.waitReported("is already in a.yaml:2")
	if err := os.Remove(filepath.Join(r.dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	r.wait("shop/web:2")
	if n := len(r.problems()); n != 1 {
		t.Errorf("%d problems told: %v", n, r.problems())
	}
}

// A ConfigMap's volume: the files are links through ..data, which is swapped for another folder.
func TestConfigMapVolume(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	put := func(version, text string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(r.dir, version), 0o755); err != nil {
			t.Fatal(err)
		}
		r.write(version+"/web.yaml", text)
		if err := os.Symlink(version, filepath.Join(r.dir, "..tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(r.dir, "..tmp"), filepath.Join(r.dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	put("..v1", svc("web", 1))
	if err := os.Symlink("..data/web.yaml", filepath.Join(r.dir, "web.yaml")); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.wait("shop/web:1")
	r.require(1)
	put("..v2", svc("web", 22))
	r.wait("shop/web:22")
	put("..v3", svc("web", 33))
	r.wait("shop/web:33")
	r.noDips()
}

// The folder itself is replaced by another one, or deleted: its objects stay until a folder exists
// again.
func TestFolderGoes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	root := r.dir
	r.dir = filepath.Join(root, "m")
	if err := os.Mkdir(r.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	r.write("a.yaml", svc("web", 1))
	r.start()
	r.wait("shop/web:1")
	r.require(1)
	if err := os.Rename(r.dir, filepath.Join(root, "away")); err != nil {
		t.Fatal(err)
	}
	time.Sleep(reread + 2*grace)
	r.wait("shop/web:1")
	if err := os.Mkdir(r.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	r.write("a.yaml", svc("web", 2))
	r.wait("shop/web:2")
	time.Sleep(reread) // by now there are notices of the new folder
	// Without notices a change is seen at the next look, and one that follows such a look takes
	// until the next: no two are quick. With notices all are, but where the machine is busy.
	quick := 0
	for port := 3; quick < 2; port++ {
		if port > 12 {
			t.Fatal("no notices came")
		}
		began := time.Now()
		r.write("a.yaml", svc("web", port))
		r.wait(fmt.Sprint("shop/web:", port))
		if time.Since(began) < reread/2 {
			quick++
		}
	}
}

// The changes of one read are one event, with new objects first.
func TestBatch(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(svc("old", 1))
	src, err := New(Config{Dir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	var events []cluster.Event
	sink := func(ev cluster.Event) { events = append(events, ev) }
	if err := src.look(nil, sink); err != nil {
		t.Fatal(err)
	}
	events = nil
	write(svc("new", 1) + svc("newer", 1))
	if err := src.look(map[string]bool{"a.yaml": true}, sink); err != nil {
		t.Fatal(err)
	}
	if len(events) != 1 {
		t.Fatalf("got %d events", len(events))
	}
	batch, ok := events[0].(cluster.Batch)
	if !ok || len(batch) != 3 {
		t.Fatalf("got %#v", events[0])
	}
	if _, ok := batch[2].(cluster.ServiceGone); !ok {
		t.Errorf("the last event is %#v", batch[2])
	}
	events = nil
	if err := src.look(map[string]bool{"a.yaml": true}, sink); err != nil || len(events) > 0 {
		t.Errorf("nothing changed, but %v, %v", events, err)
	}
}

// A folder that does not exist, or is a file, is an error; an empty one is not.
func TestNewErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := New(Config{Dir: filepath.Join(dir, "no")}); err == nil ||
		!strings.Contains(err.Error(), "/no: no such file") {
		t.Errorf("missing folder: %v", err)
	}
	path := filepath.Join(dir, "file")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{Dir: path}); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("a file: %v", err)
	}
	r := newRig(t)
	r.start()
	r.until(r.store.Synced, func() string { return "an empty folder is never complete" })
}

// Files that only look like manifests are reported once, and have no other effect. A link that
// worked before and now has no target counts as a deleted file.
func TestNoFiles(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.write("a.yaml", svc("web", 1))
	for link, to := range map[string]string{"gone.yaml": "nowhere", "loop.yaml": "loop.yaml"} {
		if err := os.Symlink(to, filepath.Join(r.dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(r.dir, "sub.yaml"), 0o755); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.wait("shop/web:1")
	r.write("nowhere", svc("db", 2))
	r.wait("shop/db:2 shop/web:1")
	if err := os.Remove(filepath.Join(r.dir, "nowhere")); err != nil {
		t.Fatal(err)
	}
	r.wait("shop/web:1")
	r.waitReported("gone.yaml: cannot be read: no such file or directory; the file is left out")
	r.waitReported("loop.yaml: cannot be read: too many levels of symbolic links; the file is left out")
	r.waitReported("sub.yaml: cannot be read: it is a folder, and folders below this one are not read; the file is " +
		"left out")
	r.write("b.yaml", svc("web2", 1))
	r.wait("shop/web2:1 shop/web:1")
	time.Sleep(reread + reread/4)
	reported := map[string]int{}
	for _, p := range r.problems() {
		reported[filepath.Base(p.File)]++
	}
	if want := map[string]int{"gone.yaml": 2, "loop.yaml": 1, "sub.yaml": 1}; !maps.Equal(reported, want) {
		t.Errorf("told %v times, want %v", reported, want)
	}
}

// Load reads any file system, in the order of names, and only the files that are manifests.
func TestLoad(t *testing.T) {
	objects, problems, err := Load(fstest.MapFS{
		"b.yaml": {Data: []byte(svc("b", 1))},
		"a.json": {Data: []byte(`{"kind":"Service","apiVersion":"v1","metadata":{"name":"a"},` +
			`"spec":{"clusterIP":"10.96.0.2","ports":[{"port":2}]}}`)},
		".hidden.yaml": {Data: []byte("{[")},
		"readme.md":    {Data: []byte("{[")},
		"sub/c.yaml":   {Data: []byte(svc("c", 1))},
		"bad.yaml":     {Data: []byte("kind: Service\n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := names(objects), "Service default/a [{ 6 2 0}], Service shop/b [{ 6 1 0}]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if len(problems) != 1 || problems[0].File != "bad.yaml" {
		t.Errorf("told %v", problems)
	}
}

// The zone of an endpoint is for people, and no difference between two slices
// (cluster.TestZoneMakesNothingDirty): it is followed all the same.
func TestZoneIsFollowed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	in := func(zone string) string {
		return svc("web", 80) + "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n" +
			"metadata: {namespace: shop, name: web-1, labels: {kubernetes.io/service-name: web}}\n" +
			"addressType: IPv4\nports: [{port: 80}]\nendpoints:\n- {addresses: [10.1.0.1], nodeName: n1, zone: " +
			zone + "}\n"
	}
	zones := func() (zones []string) {
		for _, s := range r.store.View(cluster.Name{Namespace: "shop", Name: "web"}).Slices {
			for e := range s.Endpoints.All() {
				zones = append(zones, e.Place().Zone)
			}
		}
		return zones
	}
	r.write("a.yaml", in("x"))
	r.start()
	for _, zone := range []string{"x", "y"} {
		r.write("a.yaml", in(zone))
		r.until(func() bool { return slices.Equal(zones(), []string{zone}) }, func() string {
			return fmt.Sprintf("zones %q, want %q", zones(), zone)
		})
	}
}
