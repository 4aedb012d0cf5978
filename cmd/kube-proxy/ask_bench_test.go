//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// BenchmarkAskTrace has the program ask a proxy with 10,000 Services what becomes of a packet: the whole command, from its start to its end. p50 is what
// docs/performance.md states.
func BenchmarkAskTrace(b *testing.B) {
	n := newNodeLab(b)
	var text bytes.Buffer
	for i := range 10_000 {
		fmt.Fprintf(&text, "---\nkind: Service\nmetadata: {name: s%[1]d, namespace: lab}\nspec: {clusterIP: 10.96.%[2]d.%[3]d, ports: [{port: 80}]}\n---\n"+
			"kind: EndpointSlice\nmetadata: {name: s%[1]d-1, namespace: lab, labels: {kubernetes.io/service-name: s%[1]d}}\naddressType: IPv4\nports: [{port: 8080}]\n"+
			"endpoints: [{addresses: [100.64.%[2]d.%[3]d]}, {addresses: [100.65.%[2]d.%[3]d]}, {addresses: [100.66.%[2]d.%[3]d]}]\n", i, i/250, i%250+1)
	}
	n.apply("all", text.String())
	n.mode = "nftables"
	p := n.serve()
	at := filepath.Join(n.dir, "admin.sock")
	self, err := os.Executable()
	do(b, err)
	ask := func() (time.Duration, error) {
		cmd := exec.Command(self, "trace", "10.1.1.5", "lab/s7777", "--admin-socket="+at)
		cmd.Env = append(os.Environ(), asProgram+"=1")
		began := time.Now()
		out, err := cmd.CombinedOutput()
		if err == nil && !bytes.Contains(out, []byte("as the table says")) {
			err = fmt.Errorf("it says\n%s", out)
		}
		return time.Since(began), err
	}
	until(b, func() string {
		if _, err := ask(); err != nil {
			return fmt.Sprintf("%v\n%s", err, p.log())
		}
		return ""
	})
	var took []time.Duration
	for b.Loop() {
		d, err := ask()
		do(b, err)
		took = append(took, d)
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms-p50")
	b.ReportMetric(float64(took[0].Microseconds())/1000, "ms-min")
}
