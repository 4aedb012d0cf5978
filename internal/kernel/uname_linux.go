package kernel

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Running returns the version of the kernel that runs.
func Running() (Version, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return Version{}, fmt.Errorf("ask for the kernel's release: %w", err)
	}
	return ParseVersion(unix.ByteSliceToString(u.Release[:]))
}
