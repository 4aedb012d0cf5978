package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestNotices plays worlds without mutations. The program never answers wrongly; the test notices
// one that calls delivered packets dropped.
func TestNotices(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root; make unit runs it as root")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "kube-proxy")
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-o", program, "./cmd/kube-proxy")
	build.Dir = "../.."
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build kube-proxy: %v\n%s", err, out)
	}
	liar := filepath.Join(dir, "liar")
	script := fmt.Sprintf("#!/bin/sh\ncase $1 in\ntrace) %[1]s \"$@\" | sed 's/\"delivered\"/\"dropped\"/' ;;\n"+
		"*) exec %[1]s \"$@\" ;;\nesac\n", program)
	if err := os.WriteFile(liar, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	play := func(program, mode string, query int) (out string, err error) {
		var b bytes.Buffer
		err = run(t.Context(), &b, options{seed: plain, rounds: 1, program: program, modes: []string{mode},
			query: query, only: []int{}})
		return b.String(), err
	}
	for _, mode := range []string{"nftables", "iptables", "userspace", "ebpf"} {
		out, err := play(program, mode, -1)
		if err != nil {
			t.Errorf("mode %s: %v\n%s", mode, err, out)
		}
	}
	out, err := play(liar, "nftables", 0)
	if err == nil || !strings.Contains(err.Error(), "1 of 1 answers are wrong") {
		t.Errorf("a program that lies was not noticed: %v\n%s", err, out)
	}
}

// plain is the seed of a world whose connections all end at backends, some of them of the node.
const plain = 12
