//go:build linux

package ebpf

import (
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
type neighbour struct{ hook, name, cgroup string }

func (n neighbour) String() string { return fmt.Sprintf("%s at %s of %s", n.name, n.hook, n.cgroup) }

// whose says who connects sockets by that program; "" if nobody is known to.
func (n neighbour) whose() string {
	for prefix, who := range translators {
		if strings.HasPrefix(n.name, prefix) {
			return who
		}
	}
	return ""
}

// neighbours lists the programs of others at our hooks, in a cgroup and in those below it. The
// kernel runs the programs of all: those of a cgroup below do not replace ours.
func neighbours(f lb.Family, cgroup string) (all []neighbour, err error) {
	ours := map[string]bool{}
	for _, h := range hooks(f) {
		ours[h.name] = true
	}
	err = filepath.WalkDir(cgroup, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it has gone meanwhile
		}
		if err != nil || !d.IsDir() {
			return err
		}
		for _, h := range hooks(f) {
			at, err := programsAt(path, h)
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			for _, p := range at.Programs {
				if name := programName(p.ID); name != "" && !ours[name] {
					all = append(all, neighbour{h.name, name, path})
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

// programName returns the name of a program; "" if it has gone.
func programName(id ebpf.ProgramID) string {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return ""
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return ""
	}
	if info.Name == "" {
		return "a program without a name"
	}
	return info.Name
}

// alone is an error if another program connects sockets to endpoints: both would translate.
func alone(all []neighbour) error {
	for _, n := range all {
		if who := n.whose(); who != "" {
			return fmt.Errorf("the program %s connects sockets to endpoints too: turn that off in %s, or use mode "+
				"nftables: %w",
				n, who, plane.ErrUnsupported)
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
