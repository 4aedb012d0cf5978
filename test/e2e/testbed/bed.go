// Package testbed joins a netlab, a control plane on its LAN and the real kube-proxy binary in
// node1:
//
//	lab LAN ──┬── node1 172.18.0.2   kube-proxy, pods pod1 … pod3
//	          ├── node2 172.18.0.3   pods pod4, pod5
//	          ├── client, sink
//	          └── api   172.18.0.10  kube-apiserver (its certificate is valid for this address)
//	                    172.18.0.11  the same server by an address that its certificate does not name
//
// Every pod answers on TCP port 8080 with its name and the client's address, and then echoes, so
// that a connection identifies its endpoint.
package testbed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/controlplane"
)

// Addresses of the API server on the lab's LAN.
var (
	APIAddr      = netip.MustParseAddr("172.18.0.10")
	OtherAPIAddr = netip.MustParseAddr("172.18.0.11")
)

// PodRanges are the IPv4 ranges of the pods of the hosts that can be nodes; client is the third.
var PodRanges = map[string]netip.Prefix{netlab.Node1: netlab.Node1Pods4, netlab.Node2: netlab.Node2Pods4,
	netlab.Client: netip.MustParsePrefix("10.1.9.0/24")}

// PodPort is the TCP port on which every pod answers.
const PodPort = 8080

// APIPort is the port of the API server where pods run, as kubeadm has it.
const APIPort = 6443

// Bed is a running test bed.
type Bed struct {
	Lab *netlab.Lab
	API *controlplane.ControlPlane
	// Mode is the mode in which StartProxy starts the proxy, and the mode of the methods that
	// inspect rules.
	Mode Mode
	Dir  string // the proxy, certificates, kubeconfigs, logs and data, in a memory file system

	options    Options
	binary     func() (string, error) // builds kube-proxy at the first call
	kubeconfig string
	api        netns.NsHandle
	ways       int  // of traffic so far
	mounted    bool // the BPF file system
	proxies    []*Proxy
}

// Options of a test bed; the zero value is a good one.
type Options struct {
	Mode     Mode                             // NFTables if zero
	Binary   string                           // kube-proxy to run instead of the built one or that in KUBE_PROXY
	Args     []string                         // more arguments for each StartProxy
	Etcd     string                           // program to run instead of the etcd that is built
	Snapshot string                           // as in controlplane.Config
	Pods     bool                             // as in controlplane.Config; the API server then listens on APIPort
	NoAPI    bool                             // start no API server: API is nil
	Logf     func(format string, args ...any) // receives the progress; nil for none
}

// PeerArgs are Options.Args of an upstream kube-proxy: it ends if it cannot change settings of the
// host, which a namespace may not.
var PeerArgs = []string{"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0",
	"--conntrack-tcp-timeout-close-wait=0"}

// New builds the control plane if it is not built, and starts everything except the proxy. On error
// nothing is left.
func New(ctx context.Context, options Options) (*Bed, error) {
	if options.Logf == nil {
		options.Logf = func(string, ...any) {}
	}
	b := &Bed{options: options, Mode: options.Mode, api: netns.None()}
	if b.Mode.Name == "" {
		b.Mode = NFTables
	}
	b.binary = sync.OnceValues(func() (string, error) {
		if options.Binary != "" {
			return options.Binary, nil
		}
		if given := os.Getenv("KUBE_PROXY"); given != "" {
			return filepath.Abs(given)
		}
		return Build(ctx, b.Dir, "kube-proxy")
	})
	if err := b.start(ctx); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

func (b *Bed) start(ctx context.Context) (err error) {
	var bin string
	if !b.options.NoAPI {
		if bin, err = controlplane.Build(ctx, b.options.Logf, "kube-apiserver", "etcd"); err != nil {
			return err
		}
	}
	if b.Dir, err = controlplane.MakeDir("kube-proxy-e2e-"); err != nil {
		return err
	}
	if b.Lab, err = netlab.New(netlab.Options{Name: "e2e", Cgroup: b.options.Pods || b.Mode == EBPF}); err != nil {
		return err
	}
	if err := b.addAPIHost(); err != nil {
		return fmt.Errorf("add the API server's host to the lab: %w", err)
	}
	for _, host := range b.Lab.Hosts() {
		if !host.Pod() {
			continue
		}
		if _, err := b.Lab.Listen(host.Name, netlab.TCP, PodPort); err != nil {
			return err
		}
	}
	if b.Mode == EBPF {
		if err := os.Mkdir(b.bpffs(), 0o700); err != nil {
			return err
		}
		if err := unix.Mount("bpf", b.bpffs(), "bpf", 0, ""); err != nil {
			return fmt.Errorf("mount a BPF file system: %w", err)
		}
		b.mounted = true
	}
	if b.options.NoAPI {
		return nil
	}
	b.API, err = controlplane.Start(ctx, controlplane.Config{
		Dir: b.Dir, APIServer: filepath.Join(bin, "kube-apiserver"),
		Etcd:  cmp.Or(b.options.Etcd, filepath.Join(bin, "etcd")),
		Netns: handlePath(b.api), Addr: APIAddr, AllAddrs: true,
		Snapshot: b.options.Snapshot, Logf: b.options.Logf, Pods: b.options.Pods, Port: b.apiPort(),
	})
	if err != nil {
		return err
	}
	if b.kubeconfig, err = b.API.Kubeconfig("proxy", controlplane.ProxyUser, nil); err != nil {
		return err
	}
	for name, pods := range map[string][]string{
		netlab.Node1: {netlab.Node1Pods4.String(), netlab.Node1Pods6.String()},
		netlab.Node2: {netlab.Node2Pods4.String(), netlab.Node2Pods6.String()},
	} {
		host, _ := netlab.HostByName(name)
		if err := b.API.PutNode(ctx, controlplane.Node(name, host.V4, pods...)); err != nil {
			return err
		}
	}
	return nil
}

// bpffs is the folder of the BPF file system of mode ebpf.
func (b *Bed) bpffs() string { return filepath.Join(b.Dir, "bpf") }

func (b *Bed) apiPort() int {
	if b.options.Pods {
		return APIPort
	}
	return 0 // any
}

// Close ends every process and removes the lab.
func (b *Bed) Close() error {
	var errs []error
	for _, p := range b.proxies {
		errs = append(errs, p.Kill())
	}
	if b.API != nil {
		errs = append(errs, b.API.Close())
	}
	if b.Lab != nil {
		errs = append(errs, b.Lab.Close())
	}
	if b.api.IsOpen() {
		errs = append(errs, b.api.Close())
	}
	if b.mounted { // without its pins the kernel drops the programs
		errs = append(errs, unix.Unmount(b.bpffs(), 0))
	}
	if b.Dir != "" {
		errs = append(errs, os.RemoveAll(b.Dir))
	}
	return errors.Join(errs...)
}

// Netns returns the path of the network namespace of a host of the lab, as this process sees it.
func (b *Bed) Netns(host string) (string, error) {
	handle, err := b.Lab.Namespace(host)
	if err != nil {
		return "", err
	}
	return handlePath(handle), nil
}

// Launch starts a program on a host of the lab. Errors call it name, and its output goes to the
// file log.
func (b *Bed) Launch(host, name, log string, cmd *exec.Cmd) (*controlplane.Process, error) {
	netns, err := b.Netns(host)
	if err != nil {
		return nil, err
	}
	file, err := os.Create(log)
	if err != nil {
		return nil, fmt.Errorf("make the log of %s: %w", name, err)
	}
	defer file.Close()
	cmd.Stdout, cmd.Stderr = file, file
	return controlplane.StartProcess(name, netns, cmd)
}

func handlePath(handle netns.NsHandle) string { return fmt.Sprintf("/proc/self/fd/%d", int(handle)) }

// NodeOf returns the node of the endpoint with an address: node1 or node2; node2 also for addresses
// outside the lab.
func NodeOf(addr netip.Addr) string {
	if host, ok := netlab.HostByName(netlab.Owner(addr)); ok && host.Node != "" {
		return host.Node
	}
	return netlab.Node2
}

// addAPIHost makes the namespace of the API server and plugs it into the LAN's switch.
func (b *Bed) addAPIHost() (err error) {
	err = netlab.Isolated(0, func() (err error) {
		b.api, err = netns.Get()
		return err
	})
	if err != nil {
		return err
	}
	lan, err := b.Lab.Namespace("switch")
	if err != nil {
		return err
	}
	inside, err := netlink.NewHandleAt(b.api, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer inside.Close()
	outside, err := netlink.NewHandleAt(lan, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink in the switch: %w", err)
	}
	defer outside.Close()

	attrs := netlink.NewLinkAttrs()
	attrs.Name = netlab.Uplink
	if err := inside.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "api",
		PeerNamespace: netlink.NsFd(lan)}); err != nil {
		return fmt.Errorf("add veth: %w", err)
	}
	if err := plug(outside, "api", "br0"); err != nil {
		return err
	}
	for _, name := range []string{"lo", netlab.Uplink} {
		if err := up(inside, name); err != nil {
			return err
		}
	}
	link, err := inside.LinkByName(netlab.Uplink)
	if err != nil {
		return fmt.Errorf("find uplink: %w", err)
	}
	for _, addr := range []netip.Addr{APIAddr, OtherAPIAddr} {
		parsed, err := netlink.ParseAddr(netip.PrefixFrom(addr, netlab.LAN4.Bits()).String())
		if err != nil {
			return err
		}
		if err := inside.AddrAdd(link, parsed); err != nil {
			return fmt.Errorf("add address %s: %w", addr, err)
		}
	}
	return b.routeToPods(inside, link)
}

// routeToPods lets the API server answer a pod that reaches it through a service address, and
// reach pods: the route to them is their node, as in a cluster whose hosts know each other's pod
// ranges.
func (b *Bed) routeToPods(handle *netlink.Handle, link netlink.Link) error {
	for name, pods := range PodRanges {
		node, _ := netlab.HostByName(name)
		err := handle.RouteAdd(&netlink.Route{
			LinkIndex: link.Attrs().Index,
			Dst:       &net.IPNet{IP: pods.Addr().AsSlice(), Mask: net.CIDRMask(pods.Bits(), pods.Addr().BitLen())},
			Gw:        node.V4.AsSlice(),
		})
		if err != nil {
			return fmt.Errorf("add route to the pods of %s: %w", name, err)
		}
	}
	return nil
}

// plug makes a link a port of a bridge and sets it up.
func plug(handle *netlink.Handle, name, bridge string) error {
	master, err := handle.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("find %s: %w", bridge, err)
	}
	link, err := handle.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	if err := handle.LinkSetMaster(link, master); err != nil {
		return fmt.Errorf("make %s a port of %s: %w", name, bridge, err)
	}
	return up(handle, name)
}

func up(handle *netlink.Handle, name string) error {
	link, err := handle.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	if err := handle.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}
