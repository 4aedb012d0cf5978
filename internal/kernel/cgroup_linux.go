package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// MountInfo lists the mounts of the calling thread.
const MountInfo = "/proc/thread-self/mountinfo"

// Cgroup2 returns the root of the cgroup v2 hierarchy, by a list like [MountInfo]; "" if it is not
// mounted. In a container its own hierarchy may be mounted beside the host's: the real root is the
// one without cgroup.type.
func Cgroup2(mounts string) (found string, err error) {
	all, err := os.ReadFile(mounts)
	if err != nil {
		return "", fmt.Errorf("find the cgroup v2 hierarchy: %w", err)
	}
	for line := range strings.Lines(string(all)) {
		before, after, _ := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if !strings.HasPrefix(after, "cgroup2 ") || len(fields) < 5 {
			continue
		}
		found = fields[4]
		if _, err := os.Stat(filepath.Join(found, "cgroup.type")); errors.Is(err, fs.ErrNotExist) {
			return found, nil
		}
	}
	return found, nil
}
