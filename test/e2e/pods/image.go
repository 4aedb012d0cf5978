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

	"kube-proxy/test/e2e/controlplane"
)

// pauseImage is the name of the image of the first process of each pod.
const pauseImage = "localhost/pause:e2e"

// buildPause writes an image archive with the program pause alone into dir.
func buildPause(ctx context.Context, dir string) (archive string, err error) {
	root, err := controlplane.Root()
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "pause")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "./pods/pause")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build pause: %w\n%s", err, out)
	}
	binary, err := os.ReadFile(program)
	if err != nil {
		return "", err
	}
	layer, err := tarOf(file{"pause", binary})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(layer)
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/pause"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	if err != nil {
		return "", err
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{pauseImage},
		"Layers": []string{"layer.tar"}}})
	if err != nil {
		return "", err
	}
	image, err := tarOf(file{"layer.tar", layer}, file{"config.json", config}, file{"manifest.json", manifest})
	if err != nil {
		return "", err
	}
	archive = filepath.Join(dir, "pause.tar")
	return archive, os.WriteFile(archive, image, 0o644)
}

type file struct {
	name    string
	content []byte
}

func tarOf(files ...file) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: 0o755, Size: int64(len(f.content))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}
