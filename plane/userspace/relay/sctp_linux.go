package relay

import (
	"errors"
	"net/netip"
)

type messages struct{}

func tuneSCTP(fd int, cfg Config) error                { return errors.ErrUnsupported }
func (c *conn) prepareSCTP(to netip.AddrPort) error    { return errors.ErrUnsupported }
func (l *loop) moveMessages(c *conn, from int) outcome { return sourceFailed }
