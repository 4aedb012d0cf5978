package preflight

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	nlconn "kube-proxy/internal/netlink"
	rtnl "kube-proxy/internal/netlink/route"
)

// programTimeout is how long a program may take to print its version.
const programTimeout = 5 * time.Second

// queryCommand opens a connection for a probe of interfaces and routes.
func queryCommand[T any](ask func(conn *nlconn.Conn) (T, error)) (none T, err error) {
	conn, err := nlconn.Open(nlconn.Config{Protocol: unix.NETLINK_ROUTE})
	if err != nil {
		return none, err
	}
	defer conn.Close()
	return ask(conn)
}

func links(ctx context.Context) ([]Link, error) {
	return queryCommand(func(conn *nlconn.Conn) (all []Link, err error) {
		list, err := rtnl.Links(ctx, conn)
		if err != nil {
			return nil, err
		}
		addrs, err := rtnl.Addresses(ctx, conn, 0)
		if err != nil {
			return nil, err
		}
		byLink := map[int32][]netip.Prefix{}
		for _, a := range addrs {
			byLink[a.Index] = append(byLink[a.Index], netip.PrefixFrom(a.Addr, a.Bits))
		}
		for _, l := range list {
			filter, _ := kernel.Sysctl("net/ipv4/conf/" + l.Name + "/rp_filter")
			all = append(all, Link{Name: l.Name, Type: l.Kind, Index: int(l.Index), MTU: int(l.MTU),
				Up: l.Flags&unix.IFF_UP != 0, Addrs: byLink[l.Index], RPFilter: filter})
		}
		return all, nil
	})
}

// routes lists the main table, which is where a cluster's networks would clash.
func routes(ctx context.Context) ([]Route, error) {
	return queryCommand(func(conn *nlconn.Conn) (all []Route, err error) {
		for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
			list, err := rtnl.Entries(ctx, conn, family)
			if err != nil {
				return nil, err
			}
			for _, r := range list {
				all = append(all, Route{Dst: r.Dst, Link: int(r.Link)})
			}
		}
		return all, nil
	})
}

// listening lists listening TCP sockets, and bound UDP ones, with the programs that own them, as
// far as visible.
func listening(ctx context.Context) (all []Socket, err error) {
	inodes := map[string][]int{}
	for _, proto := range []string{"tcp", "tcp6", "udp", "udp6"} {
		data, err := os.ReadFile("/proc/thread-self/net/" + proto)
		if errors.Is(err, fs.ErrNotExist) {
			continue // no IPv6
		}
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(data)) {
			at, inode, ok := parseSocket(line, strings.HasPrefix(proto, "udp"))
			if !ok {
				continue
			}
			inodes[inode] = append(inodes[inode], len(all))
			all = append(all, Socket{At: at, Proto: proto[:3]})
		}
	}
	open, _ := filepath.Glob("/proc/[0-9]*/fd/*") // the pattern is right
	for _, fd := range open {
		if ctx.Err() != nil {
			break
		}
		to, err := os.Readlink(fd)
		if err != nil {
			continue
		}
		inode, ok := strings.CutPrefix(to, "socket:[")
		if !ok {
			continue
		}
		for _, i := range inodes[strings.TrimSuffix(inode, "]")] {
			pid := strings.Split(fd, "/")[2]
			name, _ := os.ReadFile("/proc/" + pid + "/comm")
			all[i].Owner = fmt.Sprintf("process %s (%s)", pid, strings.TrimSpace(string(name)))
		}
	}
	return all, nil
}

// parseSocket reads a line of /proc/net/tcp or udp; not ok for a socket that does not listen.
func parseSocket(line string, udp bool) (at netip.AddrPort, inode string, ok bool) {
	f := strings.Fields(line)
	if len(f) < 10 {
		return at, "", false
	}
	const listen, bound = "0A", "07" // TCP_LISTEN, TCP_CLOSE
	if f[3] != listen && (!udp || f[3] != bound) {
		return at, "", false
	}
	host, port, found := strings.Cut(f[1], ":")
	raw, err := hex.DecodeString(host)
	n, perr := strconv.ParseUint(port, 16, 16)
	if !found || err != nil || perr != nil || len(raw)%4 != 0 {
		return at, "", false
	}
	for word := range slices.Chunk(raw, 4) { // each in the order of the machine
		binary.NativeEndian.PutUint32(word, binary.BigEndian.Uint32(word))
	}
	a, valid := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(a, uint16(n)), f[9], valid
}

// asked are the sysctls that Judge reads.
var asked = []string{
	ipForward, ipv6Forwarding, "net.ipv4.conf.all.rp_filter", bridgeCalls, bridgeCalls6,
	routeLocalnet, conntrackMax, conntrackCount, conntrackBuckets, portRange, portsReserved,
}

func readSysctls(read func(name string) (string, error)) (map[string]string, error) {
	all := map[string]string{}
	for _, name := range asked {
		value, err := read(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, needsRoot(err)
		}
		all[name] = value
	}
	if all[ipForward] == "" { // every kernel with IPv4 has it
		return nil, fmt.Errorf("%s is not visible: is /proc mounted, with /proc/sys?", ipForward)
	}
	return all, nil
}

// sysctlFolders are the folders of sysctl --system; a file of one hides those of its name in later
// ones.
var sysctlFolders = []string{"etc/sysctl.d", "run/sysctl.d", "usr/local/lib/sysctl.d", "usr/lib/sysctl.d",
	"lib/sysctl.d"}

// sysctlFiles reads the machine's settings at boot; the last assignment of a name wins.
func sysctlFiles(root string) ([]Assignment, error) {
	files := map[string]string{}
	for _, folder := range slices.Backward(sysctlFolders) {
		list, err := os.ReadDir(filepath.Join(root, folder))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range list {
			if strings.HasSuffix(e.Name(), ".conf") {
				files[e.Name()] = filepath.Join(root, folder, e.Name())
			}
		}
	}
	var paths []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		paths = append(paths, files[name])
	}
	paths = append(paths, filepath.Join(root, "etc/sysctl.conf"))
	last := map[string]int{}
	var all []Assignment
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, needsRoot(err)
		}
		for _, a := range parseSysctls(path, string(data)) {
			if i, ok := last[a.Name]; ok {
				all[i] = a
				continue
			}
			last[a.Name] = len(all)
			all = append(all, a)
		}
	}
	return all, nil
}

// parseSysctls reads a file of sysctl.d.
func parseSysctls(file, text string) (all []Assignment) {
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimPrefix(strings.TrimSpace(line), "-")
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok {
			continue
		}
		name = strings.TrimSpace(name)
		if i := strings.IndexAny(name, "./"); i >= 0 && name[i] == '/' { // slashes between parts, dots within
			name = strings.Map(func(r rune) rune {
				switch r {
				case '/':
					return '.'
				case '.':
					return '/'
				}
				return r
			}, name)
		}
		all = append(all, Assignment{Name: name, Value: strings.TrimSpace(value), Where: fmt.Sprintf("%s:%d", file, n)})
	}
	return all
}
