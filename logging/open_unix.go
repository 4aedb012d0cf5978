//go:build unix

package logging

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// noFollow has open fail where the name is a symbolic link.
const noFollow = syscall.O_NOFOLLOW

// openFile opens the one log file, making it if need be. If it is a symbolic link it must be ours or root's: any other
// user might have us write to a file of ours.
func openFile(name string, mode int) (*os.File, error) {
	const flags = os.O_CREATE | os.O_WRONLY
	opened, err := os.OpenFile(name, flags|mode|noFollow, 0o644)
	if !errors.Is(err, syscall.ELOOP) {
		return opened, err
	}
	var link syscall.Stat_t
	if err := syscall.Lstat(name, &link); err != nil {
		return nil, &fs.PathError{Op: "lstat", Path: name, Err: err}
	}
	if link.Uid != 0 && link.Uid != uint32(os.Geteuid()) {
		return nil, fmt.Errorf("open %s: it is a symbolic link of user %d, which is not followed", name, link.Uid)
	}
	return os.OpenFile(name, flags|mode, 0o644)
}
