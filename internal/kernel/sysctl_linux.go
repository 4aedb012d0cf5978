package kernel

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Tree is the root of the kernel's settings. The zero value is the running system; tests use
// folders.
type Tree struct {
	// Proc and Sys replace /proc and /sys; "" for those themselves.
	Proc, Sys string
}

// Live reports whether the tree is the running system's.
func (t Tree) Live() bool { return t == Tree{} }

func (t Tree) proc(parts ...string) string { return under(t.Proc, "/proc", parts) }

func (t Tree) sys(parts ...string) string { return under(t.Sys, "/sys", parts) }

func under(root, usual string, parts []string) string {
	root = cmp.Or(root, usual)
	return filepath.Join(append([]string{root}, parts...)...)
}

// Sysctl returns the value of the sysctl of the running system, see [Tree.Sysctl].
func Sysctl(name string) (string, error) { return Tree{}.Sysctl(name) }

// SetSysctl sets the sysctl of the running system, see [Tree.SetSysctl].
func SetSysctl(name, value string) (wrote bool, err error) { return Tree{}.SetSysctl(name, value) }

// Sysctl returns the trimmed value of the sysctl. Names are as for sysctl(8): net.ipv4.ip_forward,
// or with slashes where a part has a dot, net/ipv4/conf/eth0.100/forwarding.
func (t Tree) Sysctl(name string) (string, error) {
	file, err := t.sysctlFile(name)
	if err != nil {
		return "", err
	}
	value, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read sysctl %s: %w", name, err)
	}
	return strings.TrimSpace(string(value)), nil
}

// SetSysctl sets the sysctl unless it has the value, and reports whether it wrote. So a read-only
// /proc/sys with the right values is no error. It compares runs of blanks as one.
func (t Tree) SetSysctl(name, value string) (wrote bool, err error) {
	have, err := t.Sysctl(name)
	if err != nil {
		return false, err
	}
	if strings.Join(strings.Fields(have), " ") == strings.Join(strings.Fields(value), " ") {
		return false, nil
	}
	file, err := t.sysctlFile(name)
	if err != nil {
		return false, err
	}
	if err := write(file, value); err != nil {
		switch {
		case errors.Is(err, unix.EROFS):
			err = fmt.Errorf("%w; set it outside of this container, or run the container privileged", err)
		case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
			err = fmt.Errorf("%w; set it outside of this container or network namespace", err)
		}
		return false, fmt.Errorf("set sysctl %s from %s to %s: %w", name, have, value, err)
	}
	return true, nil
}

// write writes to an existing file: an unknown setting must not become a file.
func write(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// sysctlFile returns the file of a sysctl. /proc/sys/net shows the namespace of the thread that
// opens it.
func (t Tree) sysctlFile(name string) (string, error) {
	path := name
	if i := strings.IndexAny(name, "./"); i >= 0 && name[i] == '.' {
		path = strings.NewReplacer(".", "/", "/", ".").Replace(name)
	}
	if !filepath.IsLocal(path) || path == "." || strings.ContainsAny(path, " \t\n") {
		return "", fmt.Errorf("sysctl %q: not a name", name)
	}
	return t.proc("sys", path), nil
}
