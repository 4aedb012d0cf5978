package controlplane

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// roomInMemory is the most that etcd, with its journals of 64 MiB, the programs and the logs need.
const roomInMemory = 1 << 30

// MakeDir makes a folder for a control plane: in memory, where no disk slows etcd down, if there is
// room; a container often has 64 MiB of it.
func MakeDir(prefix string) (string, error) {
	in := "/dev/shm"
	var st unix.Statfs_t
	if err := unix.Statfs(in, &st); err != nil || int64(st.Bavail)*st.Bsize < roomInMemory {
		in = ""
	}
	dir, err := os.MkdirTemp(in, prefix)
	if err != nil {
		return "", fmt.Errorf("make a folder for the control plane: %w", err)
	}
	return dir, nil
}
