package kernel

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Sysctl returns the value of the sysctl, without blanks around. The name is written as sysctl(8) takes it:
// net.ipv4.ip_forward, or with slashes where a part has a dot, net/ipv4/conf/eth0.100/forwarding.
func Sysctl(name string) (string, error) {
	file, err := sysctlFile(name)
	if err != nil {
		return "", err
	}
	value, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read sysctl %s: %w", name, err)
	}
	return strings.TrimSpace(string(value)), nil
}

// SetSysctl sets the sysctl unless it has the value already, and reports whether it wrote. So a machine
// whose /proc/sys is read-only but set up well is no error. Runs of blanks in values count as one.
func SetSysctl(name, value string) (wrote bool, err error) {
	have, err := Sysctl(name)
	if err != nil {
		return false, err
	}
	if strings.Join(strings.Fields(have), " ") == strings.Join(strings.Fields(value), " ") {
		return false, nil
	}
	file, err := sysctlFile(name)
	if err != nil {
		return false, err
	}
	if err := os.WriteFile(file, []byte(value), 0o644); err != nil {
		if errors.Is(err, unix.EROFS) {
			err = fmt.Errorf("%w; set it outside of this container, or run the container privileged", err)
		}
		return false, fmt.Errorf("set sysctl %s from %s to %s: %w", name, have, value, err)
	}
	return true, nil
}

// sysctlFile returns the file of a sysctl. /proc/sys/net shows the namespace of the thread that opens it.
func sysctlFile(name string) (string, error) {
	path := name
	if i := strings.IndexAny(name, "./"); i >= 0 && name[i] == '.' {
		path = strings.NewReplacer(".", "/", "/", ".").Replace(name)
	}
	if !filepath.IsLocal(path) || path == "." || strings.ContainsAny(path, " \t\n") {
		return "", fmt.Errorf("sysctl %q: not a name", name)
	}
	return filepath.Join("/proc/sys", path), nil
}
