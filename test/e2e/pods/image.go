package pods

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"kube-proxy/test/e2e/controlplane"
)

// ProxyImage is the image of `make image`, under the name in these tests.
const ProxyImage = "localhost/kube-proxy"

// pauseImage is the name of the image of the first process of each pod.
const pauseImage = "localhost/pause:e2e"

// ImageProxy makes the image as `make image` does, with the tags e2e and e2e-minimal, unless
// KUBE_PROXY_IMAGE names an archive of it. It returns the archive.
func ImageProxy(ctx context.Context, dir string) (archive string, err error) {
	if given := os.Getenv("KUBE_PROXY_IMAGE"); given != "" {
		return filepath.Abs(given)
	}
	root, err := controlplane.Root()
	if err != nil {
		return "", err
	}
	archive = filepath.Join(dir, "kube-proxy-image.tar")
	cmd := exec.CommandContext(ctx, "make", "image", "IMAGE="+ProxyImage, "TAG=e2e", "ARGS=-o "+archive)
	cmd.Dir = filepath.Join(root, "..", "..")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("make image: %w\n%s", err, out)
	}
	return archive, nil
}

// BuildPause builds the program that is the first process of each pod, into dir.
func BuildPause(ctx context.Context, dir string) (program string, err error) {
	root, err := controlplane.Root()
	if err != nil {
		return "", err
	}
	program = filepath.Join(dir, "pause")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "./pods/pause")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build pause: %w\n%s", err, out)
	}
	return program, nil
}

// buildPause writes an image archive with the program pause alone into dir.
func buildPause(ctx context.Context, dir string) (archive string, err error) {
	program, err := BuildPause(ctx, dir)
	if err != nil {
		return "", err
	}
	archive = filepath.Join(dir, "pause.tar")
	return archive, WriteImages(archive, Image{Names: []string{pauseImage}, Entrypoint: []string{"/pause"},
		Files: []File{{Name: "pause", Source: program}}})
}

// Image is a container image of one layer for this machine's architecture.
type Image struct {
	Names           []string // NAME:TAG each
	Entrypoint, Cmd []string
	Files           []File
}

// File is a file of an image: a copy of Source, else Data, else a symbolic link to Link, else a
// folder that all may write to.
type File struct {
	Name, Source, Link string
	Data               []byte
}

// WriteImages writes an archive for [Node.Import].
func WriteImages(archive string, images ...Image) error {
	var manifest []map[string]any
	var parts []content
	for i, image := range images {
		config, layer, err := image.build()
		if err != nil {
			return fmt.Errorf("make the image %s: %w", image.Names[0], err)
		}
		configFile, layerFile := fmt.Sprintf("config%d.json", i), fmt.Sprintf("layer%d.tar", i)
		parts = append(parts, content{layerFile, layer}, content{configFile, config})
		manifest = append(manifest, map[string]any{"Config": configFile, "RepoTags": image.Names,
			"Layers": []string{layerFile}})
	}
	text, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, p := range append(parts, content{"manifest.json", text}) {
		if err := w.WriteHeader(&tar.Header{Name: p.name, Mode: 0o644, Size: int64(len(p.data))}); err != nil {
			return err
		}
		if _, err := w.Write(p.data); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(archive, b.Bytes(), 0o644)
}

type content struct {
	name string
	data []byte
}

func (i Image) build() (config, layer []byte, err error) {
	layer, err = layerOf(i.Files)
	if err != nil {
		return nil, nil, err
	}
	config, err = json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": i.Entrypoint, "Cmd": i.Cmd,
			"Env": []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(layer)}},
	})
	return config, layer, err
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// RegistryFiles are the files of the image as the registry of upstream's agnhost serves them:
// NAME:TAG of the image's first name.
func RegistryFiles(image Image) ([]File, error) {
	config, layer, err := image.build()
	if err != nil {
		return nil, err
	}
	part := func(kind string, data []byte) map[string]any {
		return map[string]any{"mediaType": "application/vnd.oci.image." + kind, "digest": digest(data),
			"size": len(data)}
	}
	manifest, err := json.Marshal(map[string]any{"schemaVersion": 2,
		"mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config":    part("config.v1+json", config), "layers": []any{part("layer.v1.tar", layer)}})
	if err != nil {
		return nil, err
	}
	name, tag, _ := strings.Cut(image.Names[0], ":")
	root := "var/registry/" + name
	at := func(folder string, data []byte) string {
		hash := strings.TrimPrefix(digest(data), "sha256:")
		return root + "/" + folder + "/sha256/" + hash[:2] + "/" + hash + "/data"
	}
	return []File{{Name: root + "/manifests/" + tag, Data: []byte(digest(manifest))},
		{Name: at("manifests", manifest), Data: manifest},
		{Name: at("blobs", config), Data: config}, {Name: at("blobs", layer), Data: layer}}, nil
}

func layerOf(files []File) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		header, data := &tar.Header{Name: f.Name, Mode: 0o755}, f.Data
		switch {
		case f.Source != "":
			var err error
			data, err = os.ReadFile(f.Source)
			if err != nil {
				return nil, err
			}
		case f.Link != "":
			header.Typeflag, header.Linkname = tar.TypeSymlink, f.Link
		case f.Data == nil:
			header.Typeflag, header.Mode = tar.TypeDir, 0o1777
		}
		header.Size = int64(len(data))
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}
