// Command krew makes kubectl svcproxy a release for krew: an archive for each platform, and the
// manifest that names them.
//
//	make krew URL=https://example.org/releases/v1.37.0 && kubectl krew install --manifest=bin/krew/svcproxy.yaml
package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"

	"kube-proxy/config"
)

// platforms are where people sit.
var platforms = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64"}

// archive is one entry of the manifest.
type archive struct{ OS, Arch, File, SHA256, Bin string }

// manifest is krew's format, version v1alpha2.
var manifest = template.Must(template.New("").Parse(`apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: svcproxy
spec:
  version: {{.Version}}
  shortDescription: Ask the kube-proxy of each node about Services
  description: |
    Follows a packet from a Pod to a Service on the Pod's node, shows the state of the proxies of all
    nodes with problems first, and serves their status page. It needs to list pods and to create
    pods/exec in the namespace of kube-proxy, and changes nothing.
  caveats: |
    The cluster must run this project's kube-proxy: the plugin runs "kube-proxy connect" in its pods.
  platforms:
{{- range .Archives}}
  - selector:
      matchLabels: {os: {{.OS}}, arch: {{.Arch}}}
    uri: {{$.URL}}/{{.File}}
    sha256: {{.SHA256}}
    bin: {{.Bin}}
{{- end}}
`))

func main() {
	out := flag.String("o", "bin/krew", "folder of the archives and of the manifest")
	url := flag.String("url", "", "where the archives will be")
	only := flag.String("platforms", strings.Join(platforms, ","), "platforms to build for")
	flag.Parse()
	if err := run(context.Background(), *out, *url, strings.Split(*only, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "krew:", err)
		os.Exit(1)
	}
}

// run writes an archive for each platform and the manifest into the folder out. It runs in the root
// of the repository.
func run(ctx context.Context, out, url string, platforms []string) error {
	if !strings.HasPrefix(url, "https://") {
		return fmt.Errorf("-url %q: want the https address of the folder where the archives will be", url)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	var archives []archive
	for _, on := range platforms {
		a, err := pack(ctx, out, on)
		if err != nil {
			return fmt.Errorf("make the archive for %s: %w", on, err)
		}
		archives = append(archives, a)
	}
	var text strings.Builder
	err := manifest.Execute(&text, struct {
		Version, URL string
		Archives     []archive
	}{config.Compatible, strings.TrimSuffix(url, "/"), archives})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "svcproxy.yaml"), []byte(text.String()), 0o644)
}

// pack builds the plugin for a platform into an archive with the licence.
func pack(ctx context.Context, out, on string) (archive, error) {
	a := archive{Bin: "kubectl-svcproxy"}
	a.OS, a.Arch, _ = strings.Cut(on, "/")
	if a.OS == "windows" {
		a.Bin += ".exe"
	}
	a.File = fmt.Sprintf("kubectl-svcproxy-%s-%s.tar.gz", a.OS, a.Arch)
	program := filepath.Join(out, a.OS+"-"+a.Arch, a.Bin)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", program,
		"./cmd/kubectl-svcproxy")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+a.OS, "GOARCH="+a.Arch)
	if said, err := cmd.CombinedOutput(); err != nil {
		return a, fmt.Errorf("%w: %s", err, said)
	}
	file, err := os.Create(filepath.Join(out, a.File))
	if err != nil {
		return a, err
	}
	defer file.Close()
	sum := sha256.New()
	zip, _ := gzip.NewWriterLevel(io.MultiWriter(file, sum), gzip.BestCompression) // the level is valid
	w := tar.NewWriter(zip)
	for _, name := range []string{program, "LICENSE"} {
		body, err := os.ReadFile(name)
		if err != nil {
			return a, err
		}
		// Without times and owners, so that two builds are equal.
		head := &tar.Header{Name: filepath.Base(name), Size: int64(len(body)), Mode: 0o755}
		if err := w.WriteHeader(head); err != nil {
			return a, err
		}
		if _, err := w.Write(body); err != nil {
			return a, err
		}
	}
	for _, c := range []interface{ Close() error }{w, zip, file} {
		if err := c.Close(); err != nil {
			return a, err
		}
	}
	a.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return a, nil
}
