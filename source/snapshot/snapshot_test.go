//go:build linux

package snapshot

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/cluster"
)

// fill gives every field below v a value of its own, so that one that is forgotten shows.
func fill(v reflect.Value, n *int) {
	*n++
	switch x := v.Addr().Interface().(type) {
	case *netip.Addr:
		*x = netip.AddrFrom4([4]byte{10, 0, byte(*n >> 8), byte(*n)})
		if *n%2 == 0 {
			*x = netip.AddrFrom16(x.As16()).Prev().Next()
		}
		return
	case *netip.Prefix:
		*x = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(*n)}), 8+*n%24)
		return
	case *cluster.Endpoints:
		var all []cluster.Endpoint
		fill(reflect.ValueOf(&all).Elem(), n)
		*x = cluster.EndpointsOf(all...)
		return
	case *netip.AddrPort:
		*x = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(*n)}), uint16(*n))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[cluster.Endpoint]() {
			e := v.Addr().Interface().(*cluster.Endpoint)
			e.Where = cluster.At(fmt.Sprint("node-", *n), fmt.Sprint("zone-", *n))
		}
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Name != "Where" {
				fill(v.Field(i), n)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 3, 3))
		for i := range 3 {
			fill(v.Index(i), n)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.String:
		v.SetString(fmt.Sprint("text-", *n))
	case reflect.Bool:
		v.SetBool(true)
	default:
		if v.CanInt() {
			v.SetInt(int64(*n) % 100)
		} else {
			v.SetUint(uint64(*n) % 100)
		}
	}
}

var empty = &cluster.Service{Name: cluster.Name{Namespace: "empty", Name: "x"}}

// fullStore has a Service, its slices and a node with a value in each field.
func fullStore() (*cluster.Store, *cluster.Service, []*cluster.Slice) {
	var n int
	var service cluster.Service
	var of []*cluster.Slice
	var node cluster.Node
	fill(reflect.ValueOf(&service).Elem(), &n)
	fill(reflect.ValueOf(&of).Elem(), &n)
	fill(reflect.ValueOf(&node).Elem(), &n)
	node.Name = "n1"
	for _, s := range of {
		s.Service, s.Trigger = service.Name, 0
	}
	store := cluster.NewStore("n1")
	network := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00::/112")}
	servers := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.7:6443"), netip.MustParseAddrPort("[2001:db8::1]:443")}
	store.Fold(cluster.Batch{
		cluster.NodeSet{Node: &node},
		cluster.APIServerAt{Addrs: servers},
		cluster.CIDRsListed{CIDRs: []*cluster.ServiceCIDR{{Name: "kubernetes", Prefixes: network}}},
		cluster.ServicesListed{Services: []*cluster.Service{&service, empty}},
		cluster.SlicesListed{Slices: of},
	})
	return store, &service, of
}

var now = time.Unix(1_800_000_000, 0)

func origin() Origin { return Origin{Node: "n1", Written: now, Boot: "boot/1", Mode: "ipvs"} }

// SN-01: all that is known of the cluster returns, and makes no Service dirty when the API server
// lists the same.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	store, service, of := fullStore()
	for _, gone := range []bool{false, true} {
		if gone {
			store.Fold(cluster.NodeGone{Name: "n1"})
		}
		dir := filepath.Join(t.TempDir(), "new")
		mustSave(t, dir, store)
		s := mustLoad(t, dir)
		if !s.Written.Equal(now) || s.Boot != "boot/1" || s.Mode != "ipvs" || s.Services() != 2 {
			t.Errorf("origin %+v with %d Services", s.Origin, s.Services())
		}
		restored := cluster.NewStore("n1")
		restored.Fold(s.Events())
		if got, want := restored.Facts(), store.Facts(); !reflect.DeepEqual(got, want) {
			t.Errorf("facts\n%+v\nwant\n%+v", got, want)
		}
		got, want := restored.View(service.Name), store.View(service.Name)
		if !reflect.DeepEqual(got.Service, want.Service) {
			t.Errorf("Service\n%+v\nwant\n%+v", got.Service, want.Service)
		}
		byName := func(a, b *cluster.Slice) int { return strings.Compare(a.Name.Name, b.Name.Name) }
		slices.SortFunc(got.Slices, byName)
		slices.SortFunc(want.Slices, byName)
		if !reflect.DeepEqual(got.Slices, want.Slices) {
			t.Errorf("slices\n%+v\nwant\n%+v", got.Slices, want.Slices)
		}
		if !restored.Synced() {
			t.Error("the restored store waits for lists")
		}
		dirty := restored.Fold(cluster.Batch{cluster.SlicesListed{Slices: of},
			cluster.ServicesListed{Services: []*cluster.Service{service, empty}}})
		if !dirty.IsZero() {
			t.Errorf("the same facts from the API server make dirty: %+v", dirty)
		}
	}
}

// layout spells the types that a file encodes.
func layout(t reflect.Type, b *strings.Builder) {
	switch {
	case t == reflect.TypeFor[cluster.Endpoints]():
		layout(reflect.TypeFor[[]cluster.Endpoint](), b)
	case t.Kind() == reflect.Struct && strings.HasPrefix(t.PkgPath(), "kube-proxy/"):
		var fields []string // sorted, as their order in the type does not matter
		for i := range t.NumField() {
			var field strings.Builder
			layout(t.Field(i).Type, &field)
			fields = append(fields, t.Field(i).Name+" "+field.String())
		}
		slices.Sort(fields)
		b.WriteString(t.Name() + "{" + strings.Join(fields, "; ") + "}")
	case t.Kind() == reflect.Slice || t.Kind() == reflect.Pointer:
		b.WriteString("*")
		layout(t.Elem(), b)
	default:
		b.WriteString(t.String())
	}
}

// A change of a type that is encoded needs another format number: else an older file would be
// misread, or the new field be lost.
func TestFormatNumber(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for _, typ := range []reflect.Type{reflect.TypeFor[message](), reflect.TypeFor[cluster.Slice]()} {
		layout(typ, &b)
		b.WriteString("\n")
	}
	file := fmt.Sprintf("testdata/format-%d.txt", format)
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v; write into it:\n%s", err, b.String())
	}
	if b.String() != string(want) {
		t.Errorf("types have changed since format %d was defined: describe the change in codec.go, raise format, "+
			"and write a file beside %s:\n%s", format, file, b.String())
	}
}

// saved returns a directory with a snapshot, and its content.
func saved(t testing.TB) (dir string, content []byte) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "s")
	store, _, _ := fullStore()
	mustSave(t, dir, store)
	content, err := os.ReadFile(filepath.Join(dir, current))
	do(t, err)
	return dir, content
}

// SN-02: an altered byte, or a missing end, makes a file be rejected, wherever it is.
func TestAlteredAndTorn(t *testing.T) {
	t.Parallel()
	_, good := saved(t)
	if _, err := decode(bytes.NewReader(good), int64(len(good))); err != nil {
		t.Fatal(err)
	}
	for i := range good {
		bad := slices.Clone(good)
		bad[i] ^= 1 << (i % 8)
		if _, err := decode(bytes.NewReader(bad), int64(len(bad))); err == nil {
			t.Errorf("byte %d altered: accepted", i)
		}
		if _, err := decode(bytes.NewReader(good[:i]), int64(i)); err == nil {
			t.Errorf("only %d bytes of %d: accepted", i, len(good))
		}
	}
}

// zeros is a file without an end.
type zeros struct{ read int64 }

func (z *zeros) Read(b []byte) (int, error) { clear(b); z.read += int64(len(b)); return len(b), nil }

// SN-02: a file that is larger than memory is refused before any memory is taken for it.
func TestTooLargeToRead(t *testing.T) {
	file := &zeros{}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := decode(file, 1<<40)
	runtime.ReadMemStats(&after)
	if err == nil || !strings.Contains(err.Error(), "the limit is") {
		t.Errorf("a file of a terabyte: %v", err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; file.read > 0 || took > 64<<10 {
		t.Errorf("read %d bytes and took %d of memory", file.read, took)
	}
}

// SN-02, SN-06: each reason for which a snapshot is rejected is named, and none of them is fatal or
// touches the file.
func TestRejected(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		spoil func(t *testing.T, dir string)
		node  string
		at    time.Time
		want  string
	}{
		{name: "none", want: "not found", spoil: func(t *testing.T, dir string) {
			do(t, os.Remove(filepath.Join(dir, current)))
		}},
		{name: "too old", at: now.Add(2*time.Hour + time.Second), want: "it is 2h0m1s old; the limit is 2h0m0s"},
		{name: "clock gone back", at: now.Add(-24 * time.Hour), want: "written 24h0m0s ahead of this clock"},
		{name: "another node", node: "n2", want: `it is of node "n1", and this is node "n2"`},
		{name: "another format", want: fmt.Sprintf("it has format %d; this version reads format %d", format+1, format),
			spoil: func(t *testing.T, dir string) {
				rewrite(t, dir, func(b []byte) []byte { b[headSize-1]++; return b })
			}},
		{name: "torn", spoil: func(t *testing.T, dir string) {
			rewrite(t, dir, func(b []byte) []byte { return b[:len(b)-7] })
		}, want: "its checksum does not match: it is torn"},
		{name: "altered", spoil: func(t *testing.T, dir string) {
			rewrite(t, dir, func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
		}, want: "its checksum does not match"},
		{name: "empty", want: "it is not a snapshot", spoil: func(t *testing.T, dir string) {
			rewrite(t, dir, func([]byte) []byte { return nil })
		}},
		{name: "symbolic link", spoil: func(t *testing.T, dir string) {
			do(t, os.Rename(filepath.Join(dir, current), filepath.Join(dir, "elsewhere")))
			do(t, os.Symlink("elsewhere", filepath.Join(dir, current)))
		}, want: "it is a symbolic link"},
		{name: "named pipe", spoil: func(t *testing.T, dir string) {
			do(t, os.Remove(filepath.Join(dir, current)))
			do(t, unix.Mkfifo(filepath.Join(dir, current), 0o600))
		}, want: "it is not a regular file"},
		{name: "readable by others", want: "other users have access (mode 0644)",
			spoil: func(t *testing.T, dir string) { do(t, os.Chmod(filepath.Join(dir, current), 0o644)) }},
		{name: "of another user", want: "it belongs to user 65534",
			spoil: func(t *testing.T, dir string) { do(t, os.Chown(filepath.Join(dir, current), 65534, -1)) }},
		{name: "directory writable by others", want: "other users have access (mode 0702)",
			spoil: func(t *testing.T, dir string) { do(t, os.Chmod(dir, 0o702)) }},
		{name: "directory readable by others", want: "other users have access (mode 0755)",
			spoil: func(t *testing.T, dir string) { do(t, os.Chmod(dir, 0o755)) }},
		{name: "directory of another user", want: "it belongs to user 65534",
			spoil: func(t *testing.T, dir string) { do(t, os.Chown(dir, 65534, -1)) }},
		{name: "directory is a link", spoil: func(t *testing.T, dir string) {
			do(t, os.Rename(dir, dir+".real"))
			do(t, os.Symlink(dir+".real", dir))
		}, want: "it is a symbolic link"},
		{name: "directory is a file", spoil: func(t *testing.T, dir string) {
			do(t, os.RemoveAll(dir))
			do(t, os.WriteFile(dir, nil, 0o600))
		}, want: "is not a directory"},
		{name: "parent is missing", want: "not found",
			spoil: func(t *testing.T, dir string) { do(t, os.RemoveAll(filepath.Dir(dir))) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir, _ := saved(t)
			if c.spoil != nil {
				c.spoil(t, dir)
			}
			if c.node == "" {
				c.node = "n1"
			}
			if c.at.IsZero() {
				c.at = now
			}
			_, err := Load(dir, c.node, 2*time.Hour, c.at)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v; want one line with %q", err, c.want)
			}
			if errors.Is(err, ErrNone) != (c.want == "not found") {
				t.Errorf("%v: is ErrNone: %t", err, errors.Is(err, ErrNone))
			}
		})
	}
}

func rewrite(t *testing.T, dir string, change func([]byte) []byte) {
	t.Helper()
	file := filepath.Join(dir, current)
	content, err := os.ReadFile(file)
	do(t, err)
	do(t, os.WriteFile(file, change(content), 0o600))
}

func do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustSave(t testing.TB, dir string, store *cluster.Store) Saved {
	t.Helper()
	saved, err := Save(dir, origin(), store)
	do(t, err)
	return saved
}

func mustLoad(t testing.TB, dir string) *Snapshot {
	t.Helper()
	s, err := Load(dir, "n1", time.Hour, now)
	do(t, err)
	return s
}

// FuzzDecode: content that someone with access has altered, with its checksum, takes no more memory
// than in proportion to its size, and does not panic.
func FuzzDecode(f *testing.F) {
	_, good := saved(f)
	f.Add(good[headSize : len(good)-sha256.Size])
	f.Fuzz(func(t *testing.T, content []byte) {
		s, err := read(content)
		if err != nil {
			return
		}
		store := cluster.NewStore(s.Node)
		store.Fold(s.Events())
		if _, err := encode(io.Discard, s.Origin, store); err != nil {
			t.Fatal(err)
		}
	})
}
