package kernel

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrUnsupported is wrapped by errors about features that the kernel lacks. Planes report it as
// plane.ErrUnsupported.
var ErrUnsupported = errors.New("not supported by this kernel")

// NFTables returns nil if the kernel has nf_tables and this process may use it. Otherwise the error
// wraps ErrUnsupported or fs.ErrPermission, or is a socket error.
//
// The kernel loads the module if it has one.
func NFTables() error {
	errno, err := askNetfilter(getGeneration)
	if err != nil {
		return fmt.Errorf("probe nf_tables: %w", err)
	}
	return nftablesAnswer(errno)
}

// nftablesAnswer explains the kernel's answer to a query for nf_tables' generation.
func nftablesAnswer(errno unix.Errno) error {
	switch errno {
	case 0:
		return nil
	case unix.EPERM:
		return fmt.Errorf("nf_tables needs root, or the capability NET_ADMIN in this network namespace: %w", errno)
	case unix.EINVAL, unix.EOPNOTSUPP: // nfnetlink has no such subsystem, and no module supplied it
		return fmt.Errorf("%w: nf_tables is missing (the module nf_tables of Linux 5.10 or later, CONFIG_NF_TABLES)",
			ErrUnsupported)
	}
	return fmt.Errorf("probe nf_tables: %w", errno)
}
