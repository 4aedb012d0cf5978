//go:build linux

package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"kube-proxy/lb"
	"kube-proxy/plane"
)

// translators are the first letters of the names of programs that connect sockets to endpoints of
// Services, by who has them.
var translators = map[string]string{
	"cil_sock": "Cilium (kubeProxyReplacement, socketLB)", "sock4_": "Cilium (kubeProxyReplacement)",
	"sock6_":         "Cilium (kubeProxyReplacement)",
	"calico_connect": "Calico (bpfConnectTimeLoadBalancing)", "calico_sendmsg": "Calico (bpfConnectTimeLoadBalancing)",
	"cali_ctlb": "Calico (bpfConnectTimeLoadBalancing)",
}

// neighbour is a program of others at one of our hooks.
type neighbour struct {
	hook, name, cgroup string
	whose              string // "" if it is not known to connect sockets
}

func (n neighbour) String() string { return fmt.Sprintf("%s at %s of %s", n.name, n.hook, n.cgroup) }

// whoseIs says who connects sockets by a program of that name; "" if it is not known.
func whoseIs(name string) string {
	for prefix, who := range translators {
		if strings.HasPrefix(name, prefix) {
			return who
		}
	}
	return ""
}

// neighbours lists the programs of others at our hooks, in a cgroup, above it and in those below
// it. The kernel runs the programs of all: those of a cgroup below do not replace ours. Programs of
// a proxy whose network namespace has none of the cookies are of others too.
func neighbours(f lb.Family, cgroup string, cookies ...uint64) (all []neighbour, err error) {
	err = filepath.WalkDir(cgroup, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it has gone meanwhile
		}
		if err != nil || !d.IsDir() {
			return err
		}
		for _, h := range hooks(f) {
			at, err := programsAt(path, h, path == cgroup)
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			for _, p := range at.Programs {
				n := neighbour{hook: h.name, cgroup: path}
				if n.name, n.whose = look(p.ID, h.name, cookies); n.name != "" {
					all = append(all, n)
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for programs of others: %w", err)
	}
	return all, nil
}

// look returns the name of a program at a hook, and who connects sockets by it. The name is "" if
// it has gone, or is of the proxy of a network namespace with one of the cookies.
func look(id ebpf.ProgramID, hook string, cookies []uint64) (name, whose string) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return "", ""
	}
	defer p.Close()
	info, err := p.Info()
	switch {
	case err != nil || info.Name == cookieName:
		return "", ""
	case info.Name == "":
		return "a program without a name", ""
	case info.Name != hook:
		return info.Name, whoseIs(info.Name)
	}
	node, ok := nodeOf(info)
	if !ok || node == 0 || slices.Contains(cookies, node) { // 0: it is loading, and serves no socket
		return "", ""
	}
	return hook, fmt.Sprintf("the kube-proxy of network namespace %d (kube-proxy --cleanup there; if that "+
		"namespace is gone, remove its folder of the BPF file system)", node)
}

// nodeOf returns the cookie in the settings of one of our programs.
func nodeOf(info *ebpf.ProgramInfo) (cookie uint64, ok bool) {
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			continue
		}
		settings, err := []byte(nil), error(nil)
		if is, e := m.Info(); e == nil && is.Name == "config" {
			settings, err = m.LookupBytes(uint32(0))
		}
		m.Close()
		if err == nil && len(settings) >= 8 { // in every layout the cookie is first
			return binary.NativeEndian.Uint64(settings), true
		}
	}
	return 0, false
}

// alone is an error if another program connects sockets to endpoints: both would translate.
func alone(all []neighbour) error {
	for _, n := range all {
		if n.whose != "" {
			return fmt.Errorf("the program %s connects sockets to endpoints too: turn that off in %s, or use mode "+
				"nftables: %w",
				n, n.whose, plane.ErrUnsupported)
		}
	}
	return nil
}

// words names a few programs.
func words(all []neighbour) string {
	var names []string
	for _, n := range all[:min(len(all), 5)] {
		names = append(names, n.String())
	}
	slices.Sort(names)
	if more := len(all) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}
