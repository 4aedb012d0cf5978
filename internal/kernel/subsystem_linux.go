package kernel

import (
	"errors"

	"golang.org/x/sys/unix"
)

// WithNetfilter calls f with a client. A kernel without the subsystem is no error.
func WithNetfilter(f func(*Netfilter) error) error {
	nf, err := OpenNetfilter()
	if errors.Is(err, ErrUnsupported) {
		return nil
	}
	if err != nil {
		return err
	}
	defer nf.Close()
	err = f(nf)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) { // netfilter has no such subsystem
		return nil
	}
	return err
}
