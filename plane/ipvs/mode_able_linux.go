package ipvs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	"kube-proxy/internal/netlink"
	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/internal/netlink/route"
	"kube-proxy/internal/xtables"
	"kube-proxy/mode"
	"kube-proxy/plane"
)

// able probes for each part of the mode. The kernel may load modules for that; nothing else
// changes. The scheduler comes last: its name does not matter where the mode cannot run.
func able(s mode.Settings) error {
	for _, ask := range []func(mode.Settings) error{hasIPVS, hasDevice, hasSets, hasIPTables, hasItsScheduler} {
		if err := ask(s); err != nil {
			return fmt.Errorf("ipvs: %w", err)
		}
	}
	return nil
}

// modules are those that the probes of able may make the kernel load.
func modules(s mode.Settings) []string {
	return append([]string{"ip_vs", "ip_vs_" + schedulerOf(optionsOf(s.Blocks).IPVS.Scheduler), DeviceType, "ip_set",
		"ip_set_hash_ip", "ip_set_hash_ipport", "ip_set_hash_ipportip",
		"ip_set_hash_ipportnet", "ip_set_bitmap_port", "xt_set"}, xtables.Modules(s.Family)...)
}

func hasIPVS(mode.Settings) error {
	c, err := ipvs.Open()
	if err != nil {
		return unsupported(err, ipvs.ErrNoIPVS)
	}
	defer c.Close()
	if _, err := kernel.Sysctl(vsConntrack); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("this kernel's IPVS does not support connection tracking here (CONFIG_IP_VS_NFCT, sysctl "+
			"%s): %w", vsConntrack, plane.ErrUnsupported)
	}
	return nil
}

func hasItsScheduler(s mode.Settings) error {
	c, err := ipvs.Open()
	if err != nil {
		return err
	}
	defer c.Close()
	return checkScheduler(context.Background(), c, s.Family, optionsOf(s.Blocks).IPVS.Scheduler)
}

// hasDevice probes whether the kernel has devices of the type. It requests one with an invalid
// address, which the kernel refuses after it has looked for the type.
func hasDevice(mode.Settings) error {
	ctx := context.Background()
	conn, err := netlink.Open(netlink.Config{Protocol: unix.NETLINK_ROUTE})
	if err != nil {
		return err
	}
	defer conn.Close()
	if link, err := findDevice(ctx, conn); err != nil || link.Index != 0 {
		return err
	}
	var none netlink.Encoder
	none.Bytes(unix.IFLA_ADDRESS, make([]byte, 6))
	switch err := conn.Do(ctx, route.ChangeLink(route.Link{Name: Device, Kind: DeviceType}, 0, none.B), nil); {
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return nil
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("this kernel has no devices of type %s (the module %s): %w", DeviceType, DeviceType,
			plane.ErrUnsupported)
	case err != nil:
		return fmt.Errorf("probe for devices of type %s: %w", DeviceType, err)
	}
	link, err := route.FindLink(ctx, conn, Device) // a kernel that accepts the address
	if err == nil {
		err = conn.Do(ctx, route.DeleteLink(link.Index), nil)
	}
	return err
}

// hasSets probes whether the kernel supports the ipsets of the mode, without creating one.
func hasSets(s mode.Settings) error {
	c, err := ipset.Open()
	if err != nil {
		return unsupported(err, ipset.ErrUnsupported)
	}
	defer c.Close()
	for set := range setCount {
		if err := c.Able(context.Background(), set.made(s.Family)); err != nil {
			return unsupported(err, ipset.ErrUnsupported)
		}
	}
	return nil
}

// unsupported makes an error of another package wrap plane.ErrUnsupported too.
func unsupported(err, is error) error {
	if errors.Is(err, is) {
		return fmt.Errorf("%w: %w", err, plane.ErrUnsupported)
	}
	return err
}

// Extensions of iptables that the mode's chains need, beside those that all modes need.
var chainMatches, chainTargets = []string{"set"}, []string{"SET"}

func hasIPTables(s mode.Settings) error {
	programs, err := xtables.Find(s.Family)
	if err != nil {
		return err
	}
	return programs.Have(chainMatches, chainTargets)
}
