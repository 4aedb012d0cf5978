package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// KC-08: the manifest has the fields that krew requires, and names an archive whose program is the
// plugin and runs.
func TestManifest(t *testing.T) {
	t.Chdir("../..")
	out := filepath.Join(t.TempDir(), "out")
	on := platform{"kubectl-svcproxy", runtime.GOOS, runtime.GOARCH}
	err := build(t.Context(), plan{version: "0.1.0", url: "https://example.org/v1/", platforms: []platform{on}}, out)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(out, "svcproxy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var m struct {
		APIVersion, Kind string
		Metadata         struct{ Name string }
		Spec             struct {
			Version, ShortDescription, Description, Caveats string
			Platforms                                       []struct {
				Selector         struct{ MatchLabels map[string]string }
				URI, SHA256, Bin string
			}
		}
	}
	if err := yaml.UnmarshalStrict(text, &m); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if m.APIVersion != "krew.googlecontainertools.github.com/v1alpha2" || m.Kind != "Plugin" ||
		m.Metadata.Name != "svcproxy" || m.Spec.Version != "v0.1.0" || m.Spec.ShortDescription == "" ||
		len(m.Spec.ShortDescription) > 80 || len(m.Spec.Platforms) != 1 {
		t.Fatalf("%s", text)
	}
	p := m.Spec.Platforms[0]
	if p.Selector.MatchLabels["os"] != on.os || p.Selector.MatchLabels["arch"] != on.arch ||
		!strings.HasPrefix(p.URI, "https://example.org/v1/kubectl-svcproxy-") {
		t.Errorf("%+v", p)
	}
	archive, err := os.ReadFile(filepath.Join(out, filepath.Base(p.URI)))
	if err != nil {
		t.Fatal(err)
	}
	if sum(archive) != p.SHA256 {
		t.Errorf("the manifest has another sum: %+v", p)
	}
	names := unpack(t, filepath.Join(out, filepath.Base(p.URI)), out)
	if !slices.Equal(names, []string{"LICENSE", p.Bin}) {
		t.Errorf("the archive has %v", names)
	}
	help, err := exec.Command(filepath.Join(out, p.Bin), "--help").CombinedOutput()
	if err != nil || !strings.Contains(string(help), "Usage: kubectl svcproxy COMMAND") {
		t.Errorf("%v: %s", err, help)
	}
}

func unpack(t *testing.T, archive, to string) (names []string) {
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err == nil {
			err = os.WriteFile(filepath.Join(to, h.Name), body, os.FileMode(h.Mode))
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
}
