package controlplane

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// newControlPlane starts one on 127.0.0.1.
func newControlPlane(t *testing.T) *ControlPlane {
	bin, err := Build(t.Context(), t.Logf, "kube-apiserver", "etcd")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := MakeDir("e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	c, err := Start(t.Context(), Config{Dir: dir, APIServer: filepath.Join(bin, "kube-apiserver"),
		Etcd: filepath.Join(bin, "etcd"), Logf: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Objects survive a restart of both processes, and a restored snapshot does not have later ones.
func TestRestartAndRestore(t *testing.T) {
	c := newControlPlane(t)
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(c.Create(ctx, Service("before", 80), Slice("before", 8080, nil, netip.MustParseAddr("100.64.0.1"))))
	must(c.StopAPIServer())
	must(c.StopEtcd())
	snapshot := filepath.Join(t.TempDir(), "snapshot")
	must(c.Snapshot(snapshot))
	must(c.StartEtcd(ctx))
	must(c.StartAPIServer(ctx))
	must(c.Create(ctx, Service("after", 80)))
	if got := services(t, ctx, c); !slices.Equal(got, []string{"after", "before"}) {
		t.Fatalf("services are %q, want after and before", got)
	}
	must(c.APIServer().Kill())
	must(c.Etcd().Kill())
	must(c.Restore(snapshot))
	must(c.StartEtcd(ctx))
	must(c.StartAPIServer(ctx))
	if got := services(t, ctx, c); !slices.Equal(got, []string{"before"}) {
		t.Fatalf("services are %q, want before", got)
	}
	must(c.CreateLoad(ctx, 0, 100, 10))
	must(c.DeleteAll(ctx))
}

// services lists the names of all services except the API server's own, which it creates some time
// after it is ready.
func services(t *testing.T, ctx context.Context, c *ControlPlane) (names []string) {
	t.Helper()
	list, err := c.Client.CoreV1().Services("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list.Items {
		if s.Name != "kubernetes" {
			names = append(names, s.Name)
		}
	}
	return names
}
