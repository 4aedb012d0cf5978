package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"kube-proxy/plane/all"
	"kube-proxy/plane/nftables"
)

// started is a demo with a unique name and a binary of this tree; its output goes to a file.
type started struct {
	options
	output string
	done   chan error
}

// buildProxy builds kube-proxy as the Makefile does, so that the go tool need not compile it twice.
func buildProxy(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "kube-proxy")
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-o", binary, "./cmd/kube-proxy")
	build.Dir = "../.."
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build kube-proxy: %v\n%s", err, out)
	}
	return binary
}

func start(ctx context.Context, t *testing.T, binary, shop string, once bool) *started {
	t.Helper()
	return startIn(ctx, t, binary, shop, "nftables", once)
}

func startIn(ctx context.Context, t *testing.T, binary, shop, name string, once bool) *started {
	t.Helper()
	mode, _ := all.Modes().Find(name)
	file, err := os.Create(filepath.Join(t.TempDir(), "output"))
	if err != nil {
		t.Fatal(err)
	}
	s := &started{output: file.Name(), done: make(chan error, 1)}
	s.options = options{once: once, proxy: binary, shop: shop, lab: fmt.Sprintf("demotest%d", os.Getpid()),
		connections: 60, mode: mode}
	go func() {
		s.done <- run(ctx, newPrinter(file), s.options)
		file.Close()
	}()
	return s
}

func (s *started) text(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(s.output)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// wait returns the match of a pattern once the output has it.
func (s *started) wait(t *testing.T, pattern string) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if m := re.FindStringSubmatch(s.text(t)); m != nil {
			return m[len(m)-1]
		}
		select {
		case err := <-s.done:
			t.Fatalf("the demo ended: %v\n%s", err, s.text(t))
		default:
		}
	}
	t.Fatalf("no %q in the output:\n%s", pattern, s.text(t))
	return ""
}

// leftNothing checks that the namespaces, the folder and the process are gone.
func (s *started) leftNothing(t *testing.T) {
	t.Helper()
	namespaces, err := filepath.Glob("/run/netns/kp-" + s.lab + "-*")
	if err != nil {
		t.Fatal(err)
	}
	if len(namespaces) > 0 {
		t.Errorf("namespaces are left: %v", namespaces)
	}
	text := s.text(t)
	m := regexp.MustCompile(`pid (\d+) in .* manifests from (\S+)`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("the output does not name process and folder:\n%s", text)
	}
	if _, err := os.Stat("/proc/" + m[1]); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("process %s is left (%v)", m[1], err)
	}
	if _, err := os.Stat(m[2]); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("folder %s is left (%v)", m[2], err)
	}
}

func TestDemo(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	binary := buildProxy(t)
	t.Run("once", func(t *testing.T) { testOnce(t, binary, "nftables") })
	t.Run("once in iptables mode", func(t *testing.T) { testOnce(t, binary, "iptables") })
	t.Run("once in userspace mode", func(t *testing.T) { testOnce(t, binary, "userspace") })
	t.Run("once, and the packets say otherwise", func(t *testing.T) { testOnceWrong(t, binary) })
	t.Run("watch", func(t *testing.T) { testWatch(t, binary) })
}

func testOnce(t *testing.T, binary, m string) {
	s := startIn(t.Context(), t, binary, example, m, true)
	err := <-s.done
	text := s.text(t)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if !strings.Contains(text, "48 of 48 cases match") || strings.Contains(text, notAsSaid) ||
		!strings.Contains(text, m+" mode") {
		t.Errorf("output:\n%s", text)
	}
	s.leftNothing(t)
}

func testOnceWrong(t *testing.T, binary string) {
	dir, _ := testShop(t)
	rewrite(t, dir, packetsFile, func(text string) string {
		text = strings.Replace(text, "pod2, pod5 from node1", "pod2 from node1", 1)
		return strings.Replace(text, ": dropped", ": refused", 1)
	})
	s := start(t.Context(), t, binary, dir, true)
	if err := <-s.done; err == nil || err.Error() != "4 of 48 cases do not match shop.txtar" {
		t.Errorf("error %v", err)
	}
	for _, want := range []string{"says: pod2 from node1; but pod5 answered",
		"says: refused; but 3 of 3 connections were without an answer"} {
		if n := strings.Count(s.text(t), want); n != 2 {
			t.Errorf("%d rows with %q, want 2:\n%s", n, want, s.text(t))
		}
	}
	s.leftNothing(t)
}

func testWatch(t *testing.T, binary string) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := start(ctx, t, binary, example, false)
	dir := s.wait(t, `follows the files in (\S+);`)

	// The demo's proxy has a separate admin socket: the default one is for the machine's
	// kube-proxy.
	command := strings.Fields(s.wait(t, `(?m)^  (\S+ trace .* --admin-socket=\S+)$`))
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil ||
		!strings.HasPrefix(string(out), "node node1\n") || !strings.Contains(string(out), "as the table says") {
		t.Errorf("%q: %v:\n%s", command, err, out)
	}

	command = strings.Fields(s.wait(t, `(?m)^  (\S+ ui --admin-socket=\S+)$`))
	page := exec.CommandContext(ctx, command[0], command[1:]...)
	if printed, err := page.StdoutPipe(); err != nil || page.Start() != nil {
		t.Errorf("%q: %v", command, err)
	} else if url, err := bufio.NewReader(printed).ReadString('\n'); err != nil {
		t.Errorf("%q printed %q: %v", command, url, err)
	} else if a, err := http.Get(strings.TrimSpace(url)); err != nil || a.StatusCode != http.StatusOK {
		t.Errorf("%q: %v, %v", command, a, err)
	}

	rewrite(t, dir, "web.yaml", func(text string) string {
		return regexp.MustCompile(`(?m)^.*pod4\n`).ReplaceAllString(text, "")
	})
	s.wait(t, `(?s)≠ ClusterIP +10\.96\.0\.10:80/tcp +pod3 +pod1 \d+%  pod2 \d+% +pod3 10.*8 rows changed`)

	rewrite(t, dir, "closed.yaml", func(text string) string { return text + "\n : - x" })
	s.wait(t, `kube-proxy says: "Malformed object" problem="\S+closed.yaml:\d+: .*last good objects stay`)

	cancel()
	_ = page.Wait() // killed
	if err := <-s.done; !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
	s.leftNothing(t)
}

// A binary that cannot start is shown with its output, and leaves nothing.
func TestProxyThatDies(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	o := options{once: true, proxy: filepath.Join(dir, "dies"), shop: example,
		lab: fmt.Sprintf("demotest%d", os.Getpid()), mode: nftables.Mode()}
	if err := os.WriteFile(o.proxy, []byte("#!/bin/sh\necho the reason >&2\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filepath.Join(dir, "output"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	err = run(t.Context(), newPrinter(file), o)
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "the reason") {
		t.Errorf("error %v, want the exit status and the log", err)
	}
	s := started{options: o, output: file.Name()}
	s.leftNothing(t)
}
