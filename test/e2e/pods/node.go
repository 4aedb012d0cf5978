package pods

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/controlplane"
	"kube-proxy/test/e2e/testbed"
)

// Node is a containerd and a kubelet on a host of the lab.
type Node struct {
	process *controlplane.Process // the parent of all others; they die with it
	dir     string
	cgroup  string // path of the pods' control groups, from the root of each hierarchy
	logf    func(format string, args ...any)
}

// NodeCgroup is the folder of a node's control group of version 2, in its own mount namespace: what
// the root is on other machines.
const NodeCgroup = "/run/node-cgroup"

// machine is the script of the first process of the node. Settings that a kubelet makes for the
// whole machine appear to be made: it has a copy of this machine's sysctls, which no namespace
// divides. Sockets, logs, locks and pinned eBPF programs belong to the node.
const machine = `
mount -t tmpfs tmpfs /run
mount --make-rshared / # as systemd does
mount -t tmpfs tmpfs /var/log
mount -t bpf bpf /sys/fs/bpf
mapfile -t hierarchies < <(awk '$3 ~ /^cgroup2?$/ {print $2}' /proc/self/mounts)
for sysctl in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
	kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
	shown=$DIR/$(echo "${sysctl%=*}" | tr / -)
	echo "${sysctl#*=}" >"$shown"
	mount -o bind,ro "$shown" "/proc/sys/${sysctl%=*}"
done
for hierarchy in "${hierarchies[@]}"; do
	mkdir -p "$hierarchy$CGROUP"
	for knob in cpuset.cpus cpuset.mems; do # a new group has none where control groups are of version 1
		[[ ! -e $hierarchy/$knob || -s $hierarchy$CGROUP/$knob ]] || cat "$hierarchy/$knob" >"$hierarchy$CGROUP/$knob"
	done
done
unified=$(awk '$3 == "cgroup2" {print $2; exit}' /proc/self/mounts)
if [[ $unified ]]; then
	echo 0 >"$unified$CGROUP/cgroup.procs" # with all that it starts
	mkdir -p "$NODE_CGROUP"
	mount -o bind "$unified$CGROUP" "$NODE_CGROUP"
fi
containerd --config "$DIR/containerd.toml" >>"$DIR/containerd.log" 2>&1 &
until ctr --address "$DIR/containerd.sock" version >/dev/null 2>&1; do kill -0 $!; sleep 0.1; done
"$KUBELET" --config "$DIR/kubelet.yaml" --kubeconfig "$KUBECONFIG" --hostname-override "$NODE" --node-ip "$ADDRESS" \
	--root-dir "$DIR/kubelet" --cert-dir "$DIR/pki" \
	>>"$DIR/kubelet.log" 2>&1 &
wait -n
`

// NodeOptions configure a Node.
type NodeOptions struct {
	Host    string // node1, node2 or client
	Kubelet string // path of the program
	// Network gives pods without hostNetwork an address of testbed.PodRanges, by this CNI plugin of
	// Debian, "ptp" or "bridge"; without it such pods do not start.
	Network string
	Logf    func(format string, args ...any)
}

// StartNode starts containerd and the kubelet on a host and waits until containerd answers. The bed
// must have been made for pods.
func StartNode(ctx context.Context, bed *testbed.Bed, o NodeOptions) (*Node, error) {
	host := o.Host
	n := &Node{dir: filepath.Join(bed.Dir, host), cgroup: fmt.Sprintf("/e2e-%d-%s", os.Getpid(), host), logf: o.Logf}
	for _, folder := range []string{"", "manifests", "plugins", "cni"} {
		if err := os.MkdirAll(filepath.Join(n.dir, folder), 0o755); err != nil {
			return nil, err
		}
	}
	kubeconfig, err := bed.API.Kubeconfig("kubelet-"+host, controlplane.KubeletUser(host), nil)
	if err != nil {
		return nil, err
	}
	files := map[string]string{"containerd.toml": containerdConfig, "kubelet.yaml": kubeletConfig}
	if o.Network != "" {
		network, ok := podNetworks[o.Network]
		if !ok {
			return nil, fmt.Errorf("network %q of pods: want one of %q", o.Network,
				slices.Sorted(maps.Keys(podNetworks)))
		}
		files["cni/pods.conflist"] = network
	}
	pods := testbed.PodRanges[host]
	for name, content := range files {
		content = strings.NewReplacer("DIR", n.dir, "CGROUP", n.cgroup, "PAUSE", pauseImage, "CLUSTERDNS",
			controlplane.ClusterDNS, "SUBNET", pods.String(), "FIRST", firstPod(pods).String()).Replace(content)
		if err := os.WriteFile(filepath.Join(n.dir, name), []byte(content), 0o644); err != nil {
			return nil, err
		}
	}
	cmd := exec.Command("unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "bash", "-ec",
		machine)
	cmd.Env = append(os.Environ(), "DIR="+n.dir, "CGROUP="+n.cgroup, "KUBELET="+o.Kubelet, "KUBECONFIG="+kubeconfig,
		"NODE="+host, "NODE_CGROUP="+NodeCgroup, "ADDRESS="+netlab.Addr(host, false).String())
	if n.process, err = bed.Launch(host, host, filepath.Join(n.dir, "machine.log"), cmd); err != nil {
		return nil, err
	}
	if err := n.awaitContainerd(ctx); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	pause, err := buildPause(ctx, n.dir)
	if err == nil {
		err = n.Import(ctx, pause)
	}
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func (n *Node) awaitContainerd(ctx context.Context) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		_, err := n.ctr(ctx, "version")
		if err == nil {
			return nil
		}
		select {
		case <-n.process.Done():
			return fmt.Errorf("containerd ended:\n%s", n.Log())
		default:
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("containerd does not answer: %w\n%s", err, n.Log())
		}
	}
}

// ctr runs a command of containerd's client, where the kubelet has its containers.
func (n *Node) ctr(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "ctr", append([]string{"--address", filepath.Join(n.dir, "containerd.sock"),
		"--namespace", "k8s.io"}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("ctr %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// Import loads the images of an archive, as an administrator does on a node.
func (n *Node) Import(ctx context.Context, archive string) error {
	out, err := n.ctr(ctx, "images", "import", archive)
	if err == nil {
		n.logf("%s", strings.Join(strings.Fields(out), " "))
	}
	return err
}

// Log returns the end of the logs of containerd and the kubelet.
func (n *Node) Log() string {
	var b strings.Builder
	for _, name := range []string{"machine.log", "containerd.log", "kubelet.log"} {
		content, err := os.ReadFile(filepath.Join(n.dir, name))
		if err != nil {
			content = []byte(err.Error())
		}
		lines := strings.Split(strings.TrimSpace(string(content)), "\n")
		fmt.Fprintf(&b, "== %s\n%s\n", name, strings.Join(lines[max(0, len(lines)-25):], "\n"))
	}
	return b.String()
}

// Close ends all processes of the node, those in containers too, and removes its control groups.
func (n *Node) Close() error {
	errs := []error{n.process.Kill()}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		err := n.removeGroups()
		if err == nil || time.Now().After(deadline) {
			return errors.Join(append(errs, err)...)
		}
	}
}

// removeGroups removes the control groups of the pods, in each hierarchy that this machine has.
func (n *Node) removeGroups() error {
	roots, err := filepath.Glob("/sys/fs/cgroup/*" + n.cgroup)
	if err != nil {
		return err
	}
	for _, root := range append(roots, "/sys/fs/cgroup"+n.cgroup) {
		var folders []string
		err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				folders = append(folders, path)
			}
			return nil // a missing one needs no removal
		})
		if err != nil {
			return err
		}
		for i := len(folders) - 1; i >= 0; i-- {
			if err := os.Remove(folders[i]); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// containerdConfig is that of containerd 1.6 and later. Not every kernel has AppArmor, and root of
// a machine that is itself a container may not lower oom_score_adj.
const containerdConfig = `version = 2
root = "DIR/containerd"
state = "/run/containerd"
[grpc]
  address = "DIR/containerd.sock"
[ttrpc]
  address = "DIR/containerd.sock.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "PAUSE"
  tolerate_missing_hugetlb_controller = true
  disable_hugetlb_controller = true
  disable_apparmor = true
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "DIR/cni"
`

// podNetworks are configurations of CNI plugins. ptp routes pods one by one, as netlab does; bridge
// has one network for all of a node. The addresses are behind those of netlab's pods.
var podNetworks = map[string]string{
	"ptp":    podNetwork(`"type": "ptp"`),
	"bridge": podNetwork(`"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true`),
}

func podNetwork(plugin string) string {
	return `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {` + plugin + `, "ipam": {"type": "host-local", "dataDir": "DIR/addresses",
    "ranges": [[{"subnet": "SUBNET", "rangeStart": "FIRST"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
`
}

// firstPod is the first address that a network assigns.
func firstPod(pods netip.Prefix) netip.Addr {
	at := pods.Addr().As4()
	at[3] = 32
	return netip.AddrFrom4(at)
}

// kubeletConfig makes a kubelet leave the machine unchanged. Control groups of version 1 are
// accepted, because this machine may be old.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
failSwapOn: false
cgroupDriver: cgroupfs
cgroupRoot: CGROUP
enforceNodeAllocatable: []
protectKernelDefaults: true
containerRuntimeEndpoint: unix://DIR/containerd.sock
staticPodPath: DIR/manifests
volumePluginDir: DIR/plugins
authentication:
  anonymous: {enabled: true} # the API server has no certificate for it
  webhook: {enabled: false}
  x509: {clientCAFile: ""}
authorization: {mode: AlwaysAllow}
readOnlyPort: 0
registerWithTaints: [{key: node.kubernetes.io/not-ready, effect: NoSchedule}]
evictionHard: {memory.available: 1Mi, nodefs.available: 0%, imagefs.available: 0%}
imageGCHighThresholdPercent: 100 # never
maxPods: 110
clusterDNS: [CLUSTERDNS]
clusterDomain: cluster.local
syncFrequency: 5s
`

// pid is the first process of the node, which sees its files.
func (n *Node) pid() int {
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", n.process.Pid(), n.process.Pid()))
	if err != nil {
		return 0
	}
	var pid int
	fmt.Sscan(string(children), &pid)
	return pid
}
