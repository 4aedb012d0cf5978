package controlplane

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Root is the folder of this module, test/e2e: the nearest folder at or above the working
// directory, or its test/e2e, that holds apiserver/go.mod.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find test/e2e: %w", err)
	}
	for at := dir; ; at = filepath.Dir(at) {
		for _, root := range []string{at, filepath.Join(at, "test", "e2e")} {
			if _, err := os.Stat(filepath.Join(root, "apiserver", "go.mod")); err == nil {
				return root, nil
			}
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("find test/e2e: not at or above %s", dir)
		}
	}
}

// Programs has the paths of a control plane's programs.
type Programs struct {
	APIServer string
	Etcd      string
}

// PodPrograms are the paths of the programs that pods need beside a control plane.
type PodPrograms struct {
	ControllerManager string
	Kubelet           string
}

// program is a program of the module in apiserver/.
type program struct{ name, pkg, ldflags string }

const kubernetesFlags = "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3"

// Build builds kube-apiserver and etcd from their Go module into bin/, unless they were built from
// the same go.mod and go.sum by the same Go. A build takes minutes; logf gets a line every 15 s.
func Build(ctx context.Context, logf func(format string, args ...any)) (*Programs, error) {
	bin, err := build(ctx, logf, "stamp",
		program{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", kubernetesFlags},
		program{"etcd", "go.etcd.io/etcd/server/v3", "-s -w"})
	if err != nil {
		return nil, err
	}
	return &Programs{APIServer: filepath.Join(bin, "kube-apiserver"), Etcd: filepath.Join(bin, "etcd")}, nil
}

// BuildForPods is Build for kube-controller-manager and kubelet.
func BuildForPods(ctx context.Context, logf func(format string, args ...any)) (*PodPrograms, error) {
	bin, err := build(ctx, logf, "stamp-pods",
		program{"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager", kubernetesFlags},
		program{"kubelet", "k8s.io/kubernetes/cmd/kubelet", kubernetesFlags})
	if err != nil {
		return nil, err
	}
	return &PodPrograms{ControllerManager: filepath.Join(bin, "kube-controller-manager"),
		Kubelet: filepath.Join(bin, "kubelet")}, nil
}

// BuildKubeadm builds kubeadm, which prints the objects that it installs.
func BuildKubeadm(ctx context.Context, logf func(format string, args ...any)) (path string, err error) {
	bin, err := build(ctx, logf, "stamp-kubeadm", program{"kubeadm", "k8s.io/kubernetes/cmd/kubeadm", kubernetesFlags})
	return filepath.Join(bin, "kubeadm"), err
}

// build builds programs with a common stamp file and returns their folder.
func build(ctx context.Context, logf func(format string, args ...any), stampName string,
	programs ...program) (bin string, err error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	source, bin := filepath.Join(root, "apiserver"), filepath.Join(root, "bin")
	unlock, err := lockBuild(bin)
	if err != nil {
		return "", err
	}
	defer unlock()
	stamp, err := buildStamp(source)
	if err != nil {
		return "", err
	}
	var files, names []string
	for _, p := range programs {
		files, names = append(files, filepath.Join(bin, p.name)), append(names, p.name)
	}
	stampFile := filepath.Join(bin, stampName)
	if built, err := os.ReadFile(stampFile); err == nil && string(built) == stamp && exist(files...) {
		return bin, nil
	}
	logf("building %s (a few minutes, once)", strings.Join(names, " and "))
	defer every(15*time.Second, func(since time.Duration) { logf("still building, %v", since) })()
	for i, p := range programs {
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", files[i], "-ldflags", p.ldflags, p.pkg)
		cmd.Dir = source
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build %s: %w\n%s", p.name, err, out)
		}
	}
	if err := os.WriteFile(stampFile, []byte(stamp), 0o644); err != nil {
		return "", fmt.Errorf("note the build: %w", err)
	}
	return bin, nil
}

func exist(files ...string) bool {
	for _, file := range files {
		if _, err := os.Stat(file); err != nil {
			return false
		}
	}
	return true
}

// lockBuild makes the bin folder if it is missing, and waits until no other process builds into it:
// `go test ./...` runs several.
func lockBuild(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make folder for built programs: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open build lock: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("take build lock: %w", err), lock.Close())
	}
	return func() { lock.Close() }, nil // closing gives the lock back
}

// buildStamp identifies the inputs of a build of the module in dir.
func buildStamp(dir string) (string, error) {
	sum := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "", fmt.Errorf("read the API server's module: %w", err)
		}
		sum.Write(content)
	}
	return runtime.Version() + " " + hex.EncodeToString(sum.Sum(nil)), nil
}

// every calls f each period with the time since the call, until the returned function is called.
func every(period time.Duration, f func(since time.Duration)) (stop func()) {
	start := time.Now()
	done := make(chan struct{})
	go func() {
		ticker := time.NewTicker(period)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				f(time.Since(start).Round(time.Second))
			case <-done:
				return
			}
		}
	}()
	return func() { close(done) }
}
