//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
)

// BenchmarkAskTrace measures kube-proxy trace, why and status with 10,000 Services and 5,000 rules
// of another program, from the start of the command to its end (NT-09): the time, the CPU time of
// the command and the proxy, which load changes little, and how much the proxy's memory grows.
func BenchmarkAskTrace(b *testing.B) {
	for _, mode := range []string{"nftables", "iptables"} {
		b.Run(mode, func(b *testing.B) { askTrace(b, mode) })
	}
}

func askTrace(b *testing.B, mode string) {
	n := newNodeLab(b)
	rules := []byte("table inet firewall { chain forward { type filter hook forward priority 0;\n")
	for i := range 5000 {
		rules = fmt.Appendf(rules, "ip saddr 10.200.%d.%d tcp dport 80 drop\n", i/250, i%250)
	}
	load := n.Command(netlab.Node1, "nft", "-f", "-")
	load.Stdin = bytes.NewReader(append(rules, "}; }\n"...))
	do(b, load.Run())
	var text bytes.Buffer
	for i := range 10_000 {
		fmt.Fprintf(&text, "---\nkind: Service\nmetadata: {name: s%[1]d, namespace: lab}\n"+
			"spec: {clusterIP: 10.96.%[2]d.%[3]d, ports: [{port: 80}]}\n---\n"+
			"kind: EndpointSlice\nmetadata: {name: s%[1]d-1, namespace: lab, labels: {kubernetes.io/service-name: "+
			"s%[1]d}}\naddressType: IPv4\nports: [{port: 8080}]\n"+
			"endpoints: [{addresses: [100.64.%[2]d.%[3]d]}, {addresses: [100.65.%[2]d.%[3]d]}, {addresses: "+
			"[100.66.%[2]d.%[3]d]}]\n", i, i/250, i%250+1)
	}
	n.apply("all", text.String())
	n.mode = mode
	p := n.serve()
	at := filepath.Join(n.dir, "admin.sock")
	var own time.Duration // CPU time of the commands
	ask := func(c question) (time.Duration, error) {
		cmd := program(b, append(c.args, "--admin-socket="+at)...)
		began := time.Now()
		out, err := cmd.CombinedOutput()
		took := time.Since(began)
		own += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		if err == nil && !bytes.Contains(out, []byte(c.says)) {
			err = fmt.Errorf("%s says\n%s", c.args, out)
		}
		return took, err
	}
	for _, c := range []question{
		{"trace", []string{"trace", "10.1.1.11", "lab/s7777"}, "as the table says"},
		{"why", []string{"why", "lab/s7777"}, "lab/s7777"},
		{"status", []string{"status"}, "10000 in force"},
	} {
		b.Run(c.name, func(b *testing.B) {
			until(b, func() string {
				if _, err := ask(c); err != nil {
					return fmt.Sprintf("%v\n%s", err, p.log())
				}
				return ""
			})
			var took []time.Duration
			pid := p.cmd.Process.Pid
			do(b, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)) // the peak begins again
			before, spent := memoryOf(b, pid, "VmRSS"), cpuOf(b, pid)
			own = 0
			for b.Loop() {
				d, err := ask(c)
				do(b, err)
				took = append(took, d)
			}
			b.ReportMetric(memoryOf(b, pid, "VmHWM")-before, "MiB-more")
			spent = cpuOf(b, pid) - spent
			b.ReportMetric(float64((spent+own).Microseconds())/1000/float64(len(took)), "ms-CPU")
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms-p50")
			b.ReportMetric(float64(took[0].Microseconds())/1000, "ms-min")
		})
	}
}

// question is a command that a person runs, and a part of its answer.
type question struct {
	name string
	args []string
	says string
}

// memoryOf returns a field of a process's status, in MiB.
func memoryOf(b *testing.B, pid int, field string) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	do(b, err)
	for line := range strings.Lines(string(text)) {
		var kib float64
		if n, _ := fmt.Sscanf(line, field+": %f kB", &kib); n == 1 {
			return kib / 1024
		}
	}
	b.Fatalf("process %d has no %s", pid, field)
	return 0
}

// cpuOf returns the CPU time that a process has used.
func cpuOf(b *testing.B, pid int) time.Duration {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	do(b, err)
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+2:]))
	var ticks int64 // of 10 ms: the 14th and the 15th field of the line
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		do(b, err)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
