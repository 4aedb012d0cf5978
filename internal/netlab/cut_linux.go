package netlab

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// Cut takes a host's cable out of the LAN's switch, or plugs it in again. The host's links stay up,
// so it notices nothing, and every packet to it and from it is lost.
func (l *Lab) Cut(host string, cut bool) error {
	ns, err := l.Namespace(switchHost)
	if err != nil {
		return err
	}
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return fmt.Errorf("netlab: enter the switch: %w", err)
	}
	defer h.Close()
	port, err := h.LinkByName(host)
	if err != nil {
		return fmt.Errorf("netlab: the switch has no port for %s: %w", host, err)
	}
	if cut {
		return h.LinkSetNoMaster(port)
	}
	bridge, err := h.LinkByName("br0")
	if err != nil {
		return fmt.Errorf("netlab: find the switch's bridge: %w", err)
	}
	return h.LinkSetMaster(port, bridge)
}
