package conformance

import (
	"context"
	"fmt"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"kube-proxy/test/e2e/controlplane"
	"kube-proxy/test/e2e/pods"
)

// programs are those of this machine that the tests run in containers, besides busybox. Their
// libraries are also those of agnhost.
// A shell of busybox would prefer its own, and Debian's static busybox wget crashes where the image
// has libraries of the resolver.
var programs = []string{"sh", "bash", "curl", "conntrack", "dig", "getent", "ip", "iperf", "iptables", "nc", "socat",
	"ss", "wget"}

// invalidState is the program, and the image, that sends a packet which conntrack finds invalid
// (kubernetes/kubernetes #74839).
const invalidState = "regression-issue-74839"

// dnsImage is the name of CoreDNS's image.
const dnsImage = "localhost/coredns:e2e"

// writeImages makes an archive with the images that the tests name, as far as they can be made, and
// CoreDNS's. bin has the programs that were built.
func writeImages(ctx context.Context, bin, dir string) (archive string, err error) {
	out, err := exec.CommandContext(ctx, filepath.Join(bin, "e2e.test"), "--list-images").Output()
	if err != nil {
		return "", fmt.Errorf("list the images of e2e.test: %w", err)
	}
	named := func(bases ...string) (names []string) {
		for name := range strings.FieldsSeq(string(out)) {
			base, _, _ := strings.Cut(path.Base(name), ":")
			if slices.Contains(bases, base) {
				names = append(names, name)
			}
		}
		return names
	}
	pause, err := pods.BuildPause(ctx, dir)
	if err != nil {
		return "", err
	}
	tools, err := machinePrograms(ctx)
	if err != nil {
		return "", err
	}
	pauseImage := pods.Image{Names: named("pause"), Entrypoint: []string{"/pause"},
		Files: []pods.File{{Name: "pause", Source: pause}}}
	served := pauseImage
	served.Names = []string{"pause:testing"}
	registry, err := pods.RegistryFiles(served)
	if err != nil {
		return "", err
	}
	coredns := pods.File{Name: "coredns", Source: filepath.Join(bin, "coredns")}
	agnhost := append(slices.Clone(tools), pods.File{Name: "agnhost", Source: filepath.Join(bin, "agnhost")},
		pods.File{Name: "agnhost-2", Link: "agnhost"}, pods.File{Name: "uploads"}, coredns)
	agnhost = append(agnhost, registry...)
	source, err := controlplane.Source(ctx)
	if err != nil {
		return "", err
	}
	for _, name := range []string{"localhost.crt", "localhost.key"} { // of `agnhost porter`
		agnhost = append(agnhost, pods.File{Name: name, Source: filepath.Join(source, "test", "images", "agnhost",
			"porter", name)})
	}
	archive = filepath.Join(dir, "upstream-images.tar")
	return archive, pods.WriteImages(archive,
		pods.Image{Names: named("agnhost"), Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}, Files: agnhost},
		pods.Image{Names: named("busybox", "glibc-dns-testing", "distroless-iptables"), Cmd: []string{"sh"},
			Files: tools},
		pods.Image{Names: named("nginx"), Entrypoint: []string{"/agnhost", "test-webserver"}, Files: agnhost},
		pauseImage,
		pods.Image{Names: []string{dnsImage}, Entrypoint: []string{"/coredns"},
			Files: []pods.File{coredns}},
		pods.Image{Names: named(invalidState), Entrypoint: []string{"/" + invalidState},
			Files: []pods.File{{Name: invalidState, Source: filepath.Join(bin, invalidState)}}})
}

// machinePrograms are this machine's programs with their libraries, and busybox for all others.
func machinePrograms(ctx context.Context) ([]pods.File, error) {
	files := []pods.File{{Name: "tmp"}, {Name: "etc"}, {Name: "run"}, {Name: "var/run"}}
	libraries := map[string]bool{}
	for _, name := range programs {
		source, err := exec.LookPath(name)
		if err != nil {
			return nil, fmt.Errorf("find a program for the images of the tests: %w", err)
		}
		files = append(files, pods.File{Name: "bin/" + name, Source: source})
		out, err := exec.CommandContext(ctx, "ldd", source).Output()
		if err != nil {
			return nil, fmt.Errorf("find the libraries of %s: %w", source, err)
		}
		for field := range strings.FieldsSeq(string(out)) {
			if strings.HasPrefix(field, "/") && !libraries[field] {
				libraries[field] = true
				files = append(files, pods.File{Name: strings.TrimPrefix(field, "/"), Source: field})
			}
		}
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return nil, fmt.Errorf("find a program for the images of the tests: %w", err)
	}
	files = append(files, pods.File{Name: "bin/busybox", Source: busybox})
	applets, err := exec.CommandContext(ctx, busybox, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("list the applets of busybox: %w", err)
	}
	for name := range strings.FieldsSeq(string(applets)) {
		if name != "busybox" && !slices.Contains(programs, name) {
			files = append(files, pods.File{Name: "bin/" + name, Link: "busybox"})
		}
	}
	return files, nil
}
