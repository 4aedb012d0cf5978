package route

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
)

// Port is a port of a bridge.
type Port struct {
	Link int32 // its index
	// Forwards: its state of the spanning tree is forwarding. Hairpin: it sends frames back.
	// Isolated: it exchanges no frames with other isolated ports.
	Forwards, Hairpin, Isolated bool
}

// Ports lists the ports of all bridges.
func Ports(ctx context.Context, conn netlink.Asker) ([]Port, error) {
	const state, hairpin, isolated, forwarding = 1, 4, 33, 3 // IFLA_BRPORT_*, BR_STATE_FORWARDING
	head := make([]byte, unix.SizeofIfInfomsg)
	head[0] = unix.AF_BRIDGE
	all, err := netlink.Dump(ctx, conn, netlink.Request(unix.RTM_GETLINK, unix.NLM_F_DUMP, head),
		func(m netlink.Message) (p Port, ok bool) {
			if len(m.Body) < unix.SizeofIfInfomsg || m.Body[0] != unix.AF_BRIDGE {
				return p, false
			}
			about := netlink.Attribute(m.Body[unix.SizeofIfInfomsg:], unix.IFLA_PROTINFO)
			if about == nil {
				return p, false
			}
			return Port{Link: int32(netlink.Order.Uint32(m.Body[4:])),
				Forwards: netlink.U8(netlink.Attribute(about, state)) == forwarding,
				Hairpin:  netlink.U8(netlink.Attribute(about, hairpin)) != 0,
				Isolated: netlink.U8(netlink.Attribute(about, isolated)) != 0}, true
		})
	if err != nil {
		return nil, fmt.Errorf("list the ports of bridges: %w", err)
	}
	return all, nil
}

// Stations returns the ports behind which bridges have learned addresses of the link layer.
func Stations(ctx context.Context, conn netlink.Asker) (map[[6]byte]int32, error) {
	at := map[[6]byte]int32{}
	request := netlink.Request(unix.RTM_GETNEIGH, unix.NLM_F_DUMP,
		append([]byte{unix.AF_BRIDGE}, make([]byte, unix.SizeofNdMsg-1)...))
	_, err := netlink.Dump(ctx, conn, request, func(m netlink.Message) (none struct{}, ok bool) {
		if len(m.Body) < unix.SizeofNdMsg || m.Body[0] != unix.AF_BRIDGE {
			return none, false
		}
		if mac := netlink.Attribute(m.Body[unix.SizeofNdMsg:], unix.NDA_LLADDR); len(mac) == 6 {
			at[[6]byte(mac)] = int32(netlink.Order.Uint32(m.Body[4:]))
		}
		return none, false
	})
	if err != nil {
		return nil, fmt.Errorf("list the stations of bridges: %w", err)
	}
	return at, nil
}
