package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
)

// OnlineCPUs returns the number of the machine's processors, regardless of cgroups and affinity
// (PR-10).
func (t Tree) OnlineCPUs() (int, error) {
	file := t.sys("devices/system/cpu/online")
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("count the processors: %w", err)
	}
	n, err := countList(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, fmt.Errorf("count the processors: %s: %w", file, err)
	}
	return n, nil
}

// countList counts the numbers in a list of ranges such as "0-3,8,10-11".
func countList(list string) (int, error) {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		a, err := strconv.ParseUint(first, 10, 16)
		if err != nil {
			return 0, fmt.Errorf("%.80q: want a list such as 0-3,8", list)
		}
		b := a
		if isRange {
			b, err = strconv.ParseUint(last, 10, 16)
			if err != nil || b < a {
				return 0, fmt.Errorf("%.80q: want a list such as 0-3,8", list)
			}
		}
		n += int(b-a) + 1
	}
	return n, nil
}

// Running returns the version of the kernel of the tree.
func (t Tree) Running() (Version, error) {
	b, err := os.ReadFile(t.proc("sys/kernel/osrelease"))
	if err != nil {
		return Version{}, fmt.Errorf("read the kernel release: %w", err)
	}
	return ParseVersion(strings.TrimSpace(string(b)))
}

// ModuleParameter returns a parameter of a module of the kernel, without blanks around.
func (t Tree) ModuleParameter(module, name string) (string, error) {
	b, err := os.ReadFile(t.sys("module", module, "parameters", name))
	if err != nil {
		return "", fmt.Errorf("read parameter %s of module %s: %w", name, module, err)
	}
	return strings.TrimSpace(string(b)), nil
}

// SetModuleParameter sets a parameter of a module. The error wraps unix.EROFS if /sys is read-only.
func (t Tree) SetModuleParameter(module, name, value string) error {
	if err := write(t.sys("module", module, "parameters", name), value); err != nil {
		return fmt.Errorf("set parameter %s of module %s to %s: %w", name, module, value, err)
	}
	return nil
}

// SetOOMScoreAdj sets this process's oom_score_adj, from -1000 (never killed) to 1000, and reports
// whether that was a change. Lowering it needs CAP_SYS_RESOURCE.
func (t Tree) SetOOMScoreAdj(score int) (wrote bool, err error) {
	file, value := t.proc("self/oom_score_adj"), strconv.Itoa(score)
	have, err := os.ReadFile(file)
	if err == nil && strings.TrimSpace(string(have)) == value {
		return false, nil
	}
	if err == nil {
		err = write(file, value)
	}
	if err != nil {
		return false, fmt.Errorf("set oom_score_adj to %s: %w", value, err)
	}
	return true, nil
}

// HasIPVS reports whether this kernel has IPVS already, without making it load the module.
func HasIPVS() bool {
	_, err := os.Stat("/proc/thread-self/net/ip_vs")
	return err == nil
}

// LoadIPVS makes the kernel load ip_vs if it can. The error wraps ErrUnsupported if the kernel has
// none.
func LoadIPVS() error {
	if HasIPVS() {
		return nil
	}
	// A question for the generic netlink family loads the module that has it.
	if err := askForFamily("IPVS"); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("load ip_vs: %w", err)
	}
	if !HasIPVS() {
		return fmt.Errorf("%w: ip_vs is missing (CONFIG_IP_VS, the module ip_vs)", ErrUnsupported)
	}
	return nil
}

// askForFamily requests a family of generic netlink. The kernel loads a module if it has one. The
// error wraps unix.ENOENT without the family.
func askForFamily(name string) error {
	conn, err := netlink.Open(netlink.Config{Protocol: unix.NETLINK_GENERIC})
	if err != nil {
		return err
	}
	defer conn.Close()
	var e netlink.Encoder
	e.Str(unix.CTRL_ATTR_FAMILY_NAME, name)
	head := []byte{unix.CTRL_CMD_GETFAMILY, 1, 0, 0} // struct genlmsghdr: the command, and its version
	return conn.Do(context.Background(), netlink.Request(unix.GENL_ID_CTRL, 0, head, e.B), nil)
}

// LoadConntrack loads nf_conntrack. The error wraps ErrUnsupported if the kernel has none.
func LoadConntrack() error {
	if _, err := Sysctl(conntrackMax); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, asked := askNetfilter(unix.NFNL_SUBSYS_CTNETLINK<<8 | ctGetStats)
	if _, err := Sysctl(conntrackMax); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if asked != nil && !errors.Is(asked, ErrUnsupported) {
		return fmt.Errorf("load nf_conntrack: %w", asked)
	}
	return fmt.Errorf("%w: nf_conntrack is missing (CONFIG_NF_CONNTRACK, the module nf_conntrack)", ErrUnsupported)
}

const (
	conntrackMax = "net.netfilter.nf_conntrack_max"
	ctGetStats   = 5 // IPCTNL_MSG_CT_GET_STATS
)
