package controlplane

import (
	"cmp"
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
// directory, or its test/e2e, that holds upstream/go.mod.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find test/e2e: %w", err)
	}
	for at := dir; ; at = filepath.Dir(at) {
		for _, root := range []string{at, filepath.Join(at, "test", "e2e")} {
			if _, err := os.Stat(filepath.Join(root, "upstream", "go.mod")); err == nil {
				return root, nil
			}
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("find test/e2e: not at or above %s", dir)
		}
	}
}

// Kubernetes is the version of Kubernetes' programs.
const Kubernetes = "v1.37.2"

// program is what Build builds.
type program struct {
	module string // its folder in test/e2e, "upstream" if empty
	pkg    string
	test   bool // the package's tests, as `go test -c` builds them
	static bool // runs in an image without libraries
}

var programs = map[string]program{
	"kube-apiserver":          {pkg: "k8s.io/kubernetes/cmd/kube-apiserver"},
	"kube-controller-manager": {pkg: "k8s.io/kubernetes/cmd/kube-controller-manager"},
	"kube-scheduler":          {pkg: "k8s.io/kubernetes/cmd/kube-scheduler"},
	"kubeadm":                 {pkg: "k8s.io/kubernetes/cmd/kubeadm"},
	"kubectl":                 {pkg: "k8s.io/kubernetes/cmd/kubectl"},
	"kubelet":                 {pkg: "k8s.io/kubernetes/cmd/kubelet"},
	"etcd":                    {pkg: "go.etcd.io/etcd/server/v3"},
	"e2e.test":                {pkg: "kube-proxy/test/e2e/upstream", test: true},
	"agnhost":                 {pkg: "k8s.io/kubernetes/test/images/agnhost"},
	"regression-issue-74839":  {pkg: "k8s.io/kubernetes/test/images/regression-issue-74839", static: true},
	"ginkgo":                  {pkg: "github.com/onsi/ginkgo/v2/ginkgo"},
	"coredns":                 {module: "coredns", pkg: "kube-proxy/test/e2e/coredns", static: true},
	"flanneld":                {module: "flannel", pkg: "github.com/flannel-io/flannel"},
	"kube-router":             {module: "kuberouter", pkg: "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"},
}

// Build builds programs from their Go modules into a folder and returns that folder. It skips those
// that were built there from the same files of their module's folder by the same Go. A build takes
// minutes; logf gets a line every 15 s.
func Build(ctx context.Context, logf func(format string, args ...any), names ...string) (bin string, err error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	bin = filepath.Join(root, "bin")
	unlock, err := lockBuild(bin)
	if err != nil {
		return "", err
	}
	defer unlock()
	for _, name := range names {
		p, ok := programs[name]
		if !ok {
			return "", fmt.Errorf("build %s: no module has it", name)
		}
		module := filepath.Join(root, cmp.Or(p.module, "upstream"))
		if err := p.build(ctx, module, filepath.Join(bin, name), logf); err != nil {
			return "", fmt.Errorf("build %s: %w", name, err)
		}
	}
	return bin, nil
}

// Source returns the folder with the source of Kubernetes.
func Source(ctx context.Context) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	cmd.Dir = filepath.Join(root, "upstream")
	dir, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("find the source of Kubernetes: %w", err)
	}
	return strings.TrimSpace(string(dir)), nil
}

// build builds the program from the module in the folder source, unless it is built.
func (p program) build(ctx context.Context, source, file string, logf func(format string, args ...any)) error {
	stamp, err := buildStamp(source)
	if err != nil {
		return err
	}
	if built, err := os.ReadFile(file + ".stamp"); err == nil && string(built) == stamp {
		return nil
	}
	logf("building %s (a few minutes, once)", filepath.Base(file))
	stop := every(15*time.Second, func(since time.Duration) { logf("still building, %v", since) })
	defer stop()
	verb := []string{"build"}
	if p.test {
		verb = []string{"test", "-c"}
	}
	ldflags := "-s -w -X k8s.io/component-base/version.gitVersion=" + Kubernetes
	cmd := exec.CommandContext(ctx, "go", append(verb, "-trimpath", "-o", file, "-ldflags", ldflags, p.pkg)...)
	cmd.Dir = source
	if p.static {
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	if err := os.WriteFile(file+".stamp", []byte(stamp), 0o644); err != nil {
		return fmt.Errorf("note the build: %w", err)
	}
	return nil
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
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", fmt.Errorf("read the module: %w", err)
	}
	sum := sha256.New()
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return "", fmt.Errorf("read the module: %w", err)
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
