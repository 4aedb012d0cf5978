//go:build linux

package ebpf

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"kube-proxy/lb"
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
	at, err := atHooks(cgroup, hooks(f))
	if err != nil {
		return nil, fmt.Errorf("look for programs of others: %w", err)
	}
	owners, err := identify(programsOf(at))
	if err != nil {
		return nil, fmt.Errorf("look for programs of others: %w", err)
	}
	for _, a := range at {
		n := neighbour{hook: a.hook.name, cgroup: cmp.Or(a.cgroup, "a cgroup above "+cgroup)}
		o, ours := owners[a.program]
		switch {
		case !ours:
			n.name, n.whose = nameOf(a.program)
		case o.node != 0 && !slices.Contains(cookies, o.node): // 0: it is loading, and serves no socket
			n.name = a.hook.name
			n.whose = fmt.Sprintf("the kube-proxy of network namespace %d (kube-proxy --cleanup there)", o.node)
		}
		if n.name != "" {
			all = append(all, n)
		}
	}
	return all, nil
}

// nameOf returns the name of a program of others, and who connects sockets by it. The name is "" if
// the program has gone.
func nameOf(id ebpf.ProgramID) (name, whose string) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return "", ""
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return "", ""
	}
	return cmp.Or(info.Name, "a program without a name"), whoseIs(info.Name)
}

// occupied adds the names of programs that leave no room at a hook of a cgroup to the error of an
// attachment: those that were attached there or above without BPF_F_ALLOW_MULTI.
func occupied(cgroup string, h hook, because error) error {
	at, err := programsAt(cgroup, h, true)
	if !errors.Is(because, unix.EPERM) || err != nil {
		return because
	}
	var there []neighbour
	for _, p := range at.Programs {
		if name, _ := nameOf(p.ID); name != "" {
			there = append(there, neighbour{hook: h.name, name: name, cgroup: cgroup})
		}
	}
	if len(there) == 0 {
		return because
	}
	return fmt.Errorf("%w: %s, or a cgroup above, allows no other program there; until it is gone, packet rules serve "+
		"all connections: have its owner attach it with BPF_F_ALLOW_MULTI, or use mode nftables", because, words(there))
}

// alone is an error if another program connects sockets to endpoints: both would translate.
func alone(all []neighbour) error {
	for _, n := range all {
		if n.whose != "" {
			return fmt.Errorf("the program %s connects sockets to endpoints too; until it is gone, packet rules serve "+
				"all connections: turn that off in %s, or use mode nftables", n, n.whose)
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
