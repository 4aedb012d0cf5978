package ebpf

import (
	"path/filepath"
	"slices"
	"time"

	"kube-proxy/config/option"
)

// Options are the values of the block ebpf.
type Options struct {
	EBPF struct {
		SocketLB         string   `json:"socketLB"`
		ProtectNodePorts bool     `json:"protectNodePorts"`
		StaleSockets     string   `json:"staleSockets"`
		Cgroup           string   `json:"cgroup"`
		BPFFS            string   `json:"bpffs"`
		Exempt           []string `json:"exempt"`
		// Heartbeat is the age of the proxy's last sign of life from which the packet path serves
		// new connections; 0 for never.
		Heartbeat option.Duration `json:"heartbeat"`
	} `json:"ebpf"`
}

// scopes are the values of socketLB.
var scopes = []string{"all", "host", "off"}

// staleSockets are the values of that name.
var staleSockets = []string{"udp", "all", "none"}

// leastHeartbeat is the least time without a heartbeat: a write of all rules may take seconds.
const leastHeartbeat = 5 * time.Second

func newOptions() *Options {
	v := &Options{}
	v.EBPF.SocketLB, v.EBPF.StaleSockets = "all", "udp"
	v.EBPF.Heartbeat.Duration = 10 * time.Minute
	return v
}

func optionsOf(all option.Blocks) *Options { return option.Of(all, newOptions()) }

// options is the mode's section of the configuration.
func options() option.Section {
	v := newOptions()
	return option.Section{Title: "ebpf", Order: 35, OnlyInMode: true, Values: v, Check: v.check, Fields: []option.Field{
		{Path: "ebpf.socketLB", Flag: "ebpf-socket-lb", Row: "EB-01",
			Help: "sockets that eBPF programs connect directly to endpoints: all, host (only the node's own), or " +
				"off; packets of other sockets are translated"},
		{Path: "ebpf.protectNodePorts", Flag: "ebpf-protect-nodeports", Row: "EB-02",
			Help: "refuse bind() by programs of the node to the port of a NodePort"},
		{Path: "ebpf.staleSockets", Flag: "ebpf-stale-sockets", Row: "EB-13", Restart: option.AtStart,
			Help: "connected sockets that are closed when their endpoint is removed: udp, all (TCP too), or none"},
		{Path: "ebpf.exempt", Flag: "ebpf-exempt", Row: "EB-14",
			Help: "path patterns of network namespaces (files) and cgroups (folders) whose sockets eBPF programs " +
				"do not connect; their packets are translated"},
		{Path: "ebpf.heartbeat", Flag: "ebpf-heartbeat", Row: "EB-30", Restart: option.AtStart,
			Help: "time after the end of the proxy from which eBPF programs connect no new sockets, and packets are " +
				"translated; 0 means never, else at least 5s"},
		{Path: "ebpf.cgroup", Flag: "ebpf-cgroup", Row: "EB-03", Restart: option.AtStart,
			Help: "folder of the cgroup v2 whose sockets are served; by default the root, which contains all cgroups"},
		{Path: "ebpf.bpffs", Flag: "ebpf-bpffs", Row: "EB-04", Restart: option.AtStart,
			Help: "mount point of the BPF file system, which the proxy mounts if missing; default /sys/fs/bpf"},
	}}
}

func (o *Options) check(r *option.Report) {
	v := o.EBPF
	if !slices.Contains(scopes, v.SocketLB) {
		r.Wrong("ebpf.socketLB", v.SocketLB, "want all, host or off")
	}
	if !slices.Contains(staleSockets, v.StaleSockets) {
		r.Wrong("ebpf.staleSockets", v.StaleSockets, "want udp, all or none")
	}
	if d := v.Heartbeat.Duration; d != 0 && d < leastHeartbeat {
		r.Wrong("ebpf.heartbeat", d.String(), "want 0, for never, or at least 5s")
	}
	for _, p := range v.Exempt {
		if _, err := filepath.Match(p, ""); err != nil || !filepath.IsAbs(p) {
			r.Wrong("ebpf.exempt", p, "want an absolute path, perhaps with wildcards, of network namespaces or cgroups")
		}
	}
	for path, folder := range map[string]string{"ebpf.cgroup": v.Cgroup, "ebpf.bpffs": v.BPFFS} {
		if folder != "" && !filepath.IsAbs(folder) {
			r.Wrong(path, folder, "want an absolute path")
		}
	}
}
