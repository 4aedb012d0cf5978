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

// packages are those of the programs in the module in apiserver/.
var packages = map[string]string{
	"kube-apiserver":          "k8s.io/kubernetes/cmd/kube-apiserver",
	"kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
	"kubeadm":                 "k8s.io/kubernetes/cmd/kubeadm",
	"kubectl":                 "k8s.io/kubernetes/cmd/kubectl",
	"kubelet":                 "k8s.io/kubernetes/cmd/kubelet",
	"etcd":                    "go.etcd.io/etcd/server/v3",
}

const ldflags = "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3"

// Build builds programs from their Go module into a folder and returns that folder. It skips those
// that were built there from the same go.mod and go.sum by the same Go. The names are
// kube-apiserver, etcd, kube-controller-manager, kubelet, kubeadm and kubectl. A build takes
// minutes; logf gets a line every 15 s.
func Build(ctx context.Context, logf func(format string, args ...any), programs ...string) (bin string, err error) {
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
	for _, name := range programs {
		file := filepath.Join(bin, name)
		if built, err := os.ReadFile(file + ".stamp"); err == nil && string(built) == stamp {
			continue
		}
		logf("building %s (a few minutes, once)", name)
		stop := every(15*time.Second, func(since time.Duration) { logf("still building, %v", since) })
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", file, "-ldflags", ldflags, packages[name])
		cmd.Dir = source
		out, err := cmd.CombinedOutput()
		stop()
		if err != nil {
			return "", fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
		if err := os.WriteFile(file+".stamp", []byte(stamp), 0o644); err != nil {
			return "", fmt.Errorf("note the build: %w", err)
		}
	}
	return bin, nil
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
