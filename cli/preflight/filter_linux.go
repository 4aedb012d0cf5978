package preflight

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	nlconn "kube-proxy/internal/netlink"
	"kube-proxy/internal/xtables"
)

// hookNames are those of the families inet, ip and ip6, by number.
var hookNames = []string{"prerouting", "input", "forward", "output", "postrouting", "ingress"}

// nftChains lists the chains of nf_tables.
func nftChains() (all []Chain, err error) {
	err = kernel.WithNetfilter(func(nf *kernel.Netfilter) error {
		for _, f := range []struct {
			name  string
			proto byte
		}{{"inet", unix.NFPROTO_INET}, {"ip", unix.NFPROTO_IPV4}, {"ip6", unix.NFPROTO_IPV6}} {
			bodies, err := nf.Ask(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, f.proto, nil)
			if err != nil {
				return err
			}
			for _, b := range bodies {
				all = append(all, parseChain(f.name, b))
			}
		}
		return nil
	})
	return all, needsRoot(err)
}

// parseChain reads the attributes of a chain.
func parseChain(family string, body []byte) Chain {
	attribute := func(typ uint16) []byte { return nlconn.Attribute(body, typ) }
	c := Chain{Family: family, Table: nlconn.CStr(attribute(unix.NFTA_CHAIN_TABLE)),
		Name: nlconn.CStr(attribute(unix.NFTA_CHAIN_NAME)), Rules: int(nlconn.BE32(attribute(unix.NFTA_CHAIN_USE)))}
	if policy := attribute(unix.NFTA_CHAIN_POLICY); policy != nil {
		c.Drop = nlconn.BE32(policy) == 0 // NF_DROP
	}
	if number := nlconn.Attribute(attribute(unix.NFTA_CHAIN_HOOK), unix.NFTA_HOOK_HOOKNUM); number != nil {
		if n := nlconn.BE32(number); int(n) < len(hookNames) {
			c.Hook = hookNames[n]
		}
	}
	return c
}

// legacyChains lists the chains of the legacy back end of iptables, where it has tables. The query
// creates none.
func legacyChains(ctx context.Context) (all []Chain, err error) {
	for _, f := range []struct{ family, program string }{{"ip", "iptables"}, {"ip6", "ip6tables"}} {
		tables, err := os.ReadFile("/proc/thread-self/net/" + strings.Replace(f.program, "tables", "_tables_names", 1))
		if errors.Is(err, fs.ErrNotExist) || err == nil && len(strings.TrimSpace(string(tables))) == 0 {
			continue
		}
		if err != nil {
			return nil, needsRoot(err)
		}
		chains, err := savedBy(ctx, f.family, f.program+"-legacy-save")
		if err != nil {
			return nil, fmt.Errorf("reading the tables of the legacy back end (%s): %w",
				strings.Join(strings.Fields(string(tables)), ", "), err)
		}
		all = append(all, chains...)
	}
	return all, nil
}

// savedBy has a program list its chains.
func savedBy(ctx context.Context, family, program string) ([]Chain, error) {
	cmd := exec.CommandContext(ctx, program)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	var said head
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	all, err := readSaved(family, out)
	if e := cmd.Wait(); e != nil {
		err = errors.Join(err, fmt.Errorf("%s: %w: %s", program, e, strings.TrimSpace(string(said))))
	}
	return all, err
}

// readSaved reads the chains in the output of iptables-save, and counts their rules.
func readSaved(family string, r io.Reader) (all []Chain, err error) {
	at := map[[2]string]int{}
	for line, err := range xtables.ReadSaved(r) {
		if err != nil {
			return nil, err
		}
		name := string(line.Chain)
		switch line.Kind {
		case xtables.SavedChain:
			c := Chain{Family: family, Table: line.Table, Name: name, Drop: bytes.HasPrefix(line.Rest, []byte("DROP"))}
			if !bytes.HasPrefix(line.Rest, []byte("-")) {
				c.Hook = strings.ToLower(name)
			}
			at[[2]string{line.Table, name}] = len(all)
			all = append(all, c)
		case xtables.SavedRule:
			if i, ok := at[[2]string{line.Table, name}]; ok {
				all[i].Rules++
			}
		}
	}
	return all, nil
}

// virtualServers counts those of IPVS, if the kernel has it.
func virtualServers(context.Context) (n int, err error) {
	data, err := os.ReadFile("/proc/thread-self/net/ip_vs")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 0 && slices.Contains([]string{"TCP", "UDP", "SCTP", "FWM"}, f[0]) {
			n++
		}
	}
	return n, needsRoot(err)
}

// watched are the programs that a proxy may run, or that people use beside it, with the modules
// that they ask the kernel for even to print their version.
var watched = []struct {
	name    string
	modules []string
}{
	{name: "iptables-nft"}, {name: "iptables-legacy"}, {name: "iptables"}, {name: "ip6tables-nft"},
	{name: "ip6tables-legacy"}, {name: "nft"},
	{"ipset", []string{"nfnetlink", "ip_set"}}, {name: "conntrack"}, {"ipvsadm", []string{"ip_vs"}},
}

// head keeps the first KiB of the output: a version is a line, and an unknown program may print
// without end.
type head []byte

func (h *head) Write(p []byte) (int, error) {
	*h = append(*h, p[:min(len(p), 1<<10-len(*h))]...)
	return len(p), nil
}

// programs finds programs and runs them for their versions, each for a few seconds at most.
func programs(ctx context.Context, s *Setup, m modules) (all []Program) {
	for _, w := range watched {
		p := Program{Name: w.name}
		if path, err := exec.LookPath(w.name); err == nil {
			p.Path, _ = filepath.Abs(path)
			if !s.LoadModules && len(m.missing(w.modules...)) > 0 {
				all = append(all, p)
				continue
			}
			k := within(ctx, programTimeout, func(ctx context.Context) (string, error) {
				cmd := exec.CommandContext(ctx, path, "--version")
				cmd.WaitDelay = programTimeout
				var said head
				cmd.Stdout, cmd.Stderr = &said, &said
				err := cmd.Run()
				line, _, _ := strings.Cut(strings.TrimSpace(string(said)), "\n")
				return line, err
			})
			p.Version, p.Err = k.Value, k.Err
			p.Version = strings.TrimSuffix(p.Version, ".")
		}
		all = append(all, p)
	}
	return all
}
