//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"kube-proxy/config/option"
	"kube-proxy/event"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane"
	"kube-proxy/test/fake"
)

// memoryOptions is its block of the configuration.
type memoryOptions struct {
	Memory struct {
		SyncPeriod   option.Duration `json:"syncPeriod"`
		DrainTimeout option.Duration `json:"drainTimeout"`
	} `json:"memory"`
}

// memory is a mode that only this test has: its planes are those of test/fake, and a file for each
// family in dir is its kernel. It cannot run if the file "full" exists.
func memory(dir string) mode.Mode {
	file := func(f lb.Family) string { return filepath.Join(dir, f.String()) }
	return mode.Mode{
		Name:             "memory",
		Doc:              "a file for each IP family",
		FallsBackTo:      "nftables",
		NodePortsPrimary: true,
		Block:            "memory",
		Reads:            []string{"memory"},
		Options: func() option.Section {
			v := &memoryOptions{}
			v.Memory.SyncPeriod.Duration = time.Hour
			return option.Section{Title: "memory", Values: v, Fields: []option.Field{
				{Path: "memory.syncPeriod", Flag: "memory-sync-period", Row: "EXT", Help: "time between two looks"},
				{Path: "memory.drainTimeout", Flag: "memory-drain-timeout", Row: "EXT",
					Help: "how long connections go on"}}}
		},
		DrainTimeout: func(all option.Blocks) time.Duration {
			return option.Of(all, &memoryOptions{}).Memory.DrainTimeout.Duration
		},
		Sysctls: func(mode.Settings) []mode.Sysctl {
			return []mode.Sysctl{{Name: "net.ipv4.conf.all.log_martians", Value: "1"}}
		},
		Metrics: []mode.Metric{
			{Row: "EXT", Name: "memory_writes_total", Kind: mode.Counter, Labels: []string{"ip_family", "verb"},
				Help: "Writes of the mode memory"},
			{Row: "EXT", Name: "memory_free", Kind: mode.Gauge, Help: "How much memory there is"},
			{Name: "sync_full_proxy_rules_duration_seconds"},
		},
		Able: func(mode.Settings) error {
			if _, err := os.Stat(filepath.Join(dir, "full")); err == nil {
				return errors.New("the memory is full")
			}
			return nil
		},
		New: func(s mode.Settings) (mode.Plane, error) {
			return &memoryPlane{Plane: fake.New(s.Family), file: file(s.Family)}, nil
		},
		Loader: "remember",
		Render: func(s mode.Settings, want *lb.Table) ([]byte, error) {
			return fmt.Appendf(nil, "# remember %s, mark %d\n%s", s.Family, s.MasqueradeBit, want), nil
		},
		Rules: "memory",
		Remove: func(_ context.Context, what mode.Removal) (r mode.Report, err error) {
			for _, f := range what.Families {
				switch e := os.Remove(file(f)); {
				case e == nil:
					r.Count(1, "memory of %s", f)
				case !errors.Is(e, os.ErrNotExist):
					err = errors.Join(err, e)
				}
			}
			return r, err
		},
	}
}

type memoryPlane struct {
	*fake.Plane
	file            string
	resets, applies atomic.Int64
	reported        bool
}

func (p *memoryPlane) Reset(ctx context.Context, want *lb.Table) (plane.ResetResult, error) {
	p.resets.Add(1)
	r, err := p.Plane.Reset(ctx, want)
	return r, errors.Join(err, p.save())
}

func (p *memoryPlane) Apply(ctx context.Context, changes []lb.Change) (plane.ApplyResult, error) {
	p.applies.Add(1)
	res, err := p.Plane.Apply(ctx, changes)
	return res, errors.Join(err, p.save())
}

func (p *memoryPlane) save() error { return os.WriteFile(p.file, []byte(p.Dump()), 0o644) }

func (p *memoryPlane) Notices() []mode.Notice {
	if p.reported || p.resets.Load() == 0 {
		return nil
	}
	p.reported = true
	return []mode.Notice{{Text: "the memory is in use", Args: []any{"file", filepath.Base(p.file)},
		Event: event.Starting}}
}

func (p *memoryPlane) Measure(emit mode.Emit) error {
	emit("memory_writes_total", float64(p.resets.Load()), "reset")
	emit("memory_writes_total", float64(p.applies.Load()), "apply")
	emit("memory_free", 7)
	return nil
}

// StopAccepting leaves the file "closed".
func (p *memoryPlane) StopAccepting() { _ = os.WriteFile(p.beside("closed"), nil, 0o644) }

// Drain waits until the file "open" is gone, which represents an IPv4 connection.
func (p *memoryPlane) Drain(ctx context.Context) (left int) {
	for ; filepath.Base(p.file) == "IPv4"; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(p.beside("open")); err != nil {
			return 0
		}
		if ctx.Err() != nil {
			return 1
		}
	}
	return 0
}

func (p *memoryPlane) beside(name string) string { return filepath.Join(filepath.Dir(p.file), name) }

func (p *memoryPlane) Close() error { return nil }

// A mode is one value: one that only this test has is configured, serves, emits its metrics and
// notices, has its sysctls and defaults, falls back, renders, and is cleaned up, all through the
// program as a user runs it.
func TestNewMode(t *testing.T) {
	t.Parallel()
	n, memories := newNode(t), t.TempDir()
	start := func(args ...string) *process {
		return n.start(args, env(withMemory+"="+memories))
	}
	serve := func(mode string) *process {
		t.Helper()
		p := start(usual(mode)...)
		p.await(allWritten)
		return p
	}
	once := func(code int, says string, args ...string) {
		t.Helper()
		p := start(args...)
		// help is wrapped
		if got := p.end(0); got != code || !strings.Contains(strings.Join(strings.Fields(p.log()), " "), says) {
			t.Errorf("%v: exit code %d, want %d and %q:\n%s", args, got, code, says, p.log())
		}
	}
	remembers := func(f lb.Family) string {
		data, err := os.ReadFile(filepath.Join(memories, f.String()))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
		return string(data)
	}

	// The help and the errors name it.
	once(0, "mode of the data plane: iptables, nftables, ipvs, ebpf, kernelspace (Windows), userspace, memory; "+
		"default the first of", "--help")
	once(0, "default primary in nftables and ebpf and memory mode, all in the others", "--help")
	once(1, "want ebpf, iptables, ipvs, memory, nftables, userspace, or nothing", "--proxy-mode=magic", "--manifests=m")
	once(0, "in mode memory that of remember", "render", "--help")

	// It renders, with its default of addresses for NodePorts.
	once(0, "# remember IPv4, mark 14 node nodeports 192.0.2.1/32 pods 10.0.0.0/16 10.96.0.1:80/tcp shop/good",
		append([]string{"render"}, usual("memory")...)...)

	// It takes over from another mode, whose rules go, and serves.
	p := serve("nftables")
	p.stop()
	p = serve("memory")
	p.await(regexp.MustCompile(`(?s)"Removed" what="the nftables table kube-proxy of IPv4".*"Removed" what="the ` +
		`nftables table kube-proxy of IPv6"`))
	if got := remembers(lb.IPv4); !strings.Contains(got, "10.96.0.1:80/tcp shop/good") ||
		!strings.Contains(got, "10.0.0.1:8080") {
		t.Errorf("it serves\n%s", got)
	}
	has(t, "its own lines", p.log(), `"Serving" mode="memory" configured="memory"`,
		`"the memory is in use" family="IPv6" file="IPv6"`)
	has(t, "the sysctl that it needs", n.command("cat", "/proc/sys/net/ipv4/conf/all/log_martians"), "1")
	metrics := n.get(metricsURL + "/metrics").body
	has(t, "metrics", metrics, `kubeproxy_mode_info{asked="memory",mode="memory",reason=""} 1`,
		`kubeproxy_memory_writes_total{ip_family="IPv4",verb="reset"} 1`,
		`kubeproxy_memory_writes_total{ip_family="IPv6",verb="apply"} 0`, "\nkubeproxy_memory_free 7\n",
		`kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1`)
	for _, not := range []string{"kubeproxy_sync_proxy_rules_nftables", "kubeproxy_sync_partial", "kubeproxy_iptables",
		"kubeproxy_conntrack_reconciler"} {
		if strings.Contains(metrics, not) {
			t.Errorf("the metrics of another mode are there: %s", not)
		}
	}
	n.write("m/other.yaml", service("other", "10.96.0.2", 80, "10.0.0.2"))
	until(t, func() string {
		if got := remembers(lb.IPv4); !strings.Contains(got, "10.96.0.2:80/tcp shop/other") {
			return "a new Service is not served:\n" + got + "\n" + p.log()
		}
		return ""
	})
	p.stop()
	if remembers(lb.IPv6) == "" {
		t.Error("the rules went with the process")
	}

	// Another mode takes over, and removes its objects.
	p = serve("nftables")
	p.await(regexp.MustCompile(`(?s)"Removed" what="1 memory of IPv4".*"Removed" what="1 memory of IPv6"`))
	if got := remembers(lb.IPv4) + remembers(lb.IPv6); got != "" {
		t.Errorf("after a change of the mode there is\n%s", got)
	}
	if metrics := n.get(metricsURL + "/metrics").body; strings.Contains(metrics, "kubeproxy_memory") {
		t.Error("its metrics are there in mode nftables")
	}
	p.stop()

	// --cleanup removes it too.
	p = serve("memory")
	p.stop()
	once(0, `"Removed" what="1 memory of IPv6"`, "--cleanup")
	if got := remembers(lb.IPv4) + remembers(lb.IPv6); got != "" {
		t.Errorf("after --cleanup there is\n%s", got)
	}

	// If it cannot run, another serves, and reports it.
	write(t, filepath.Join(memories, "full"), nil)
	p = serve("memory")
	has(t, "log", p.log(), `"Mode cannot run on this host" mode="memory" instead="nftables" err="the memory is full"`)
	has(t, "/metrics", n.get(metricsURL+"/metrics").body, `kubeproxy_mode_info{asked="memory",mode="nftables",`+
		`reason="mode memory cannot run on this host, using nftables instead: the memory is full"} 1`)
	if got := n.serves(); !strings.Contains(got, "frontend 10.96.0.2") {
		t.Errorf("the kernel has\n%s", got)
	}
	p.stop()
}
