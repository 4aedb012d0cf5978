package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/mdlayher/netlink"
	rtnetlink "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/ipvswire"
	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane"
	"kube-proxy/plane/iptables"
)

// able asks for each thing that the mode is made of. The question has a kernel load modules that it has, and changes nothing else.
// What only the name of a scheduler is wrong with comes last: where the mode cannot run at all, that does not matter.
func able(s mode.Settings) error {
	for _, ask := range []func(mode.Settings) error{hasIPVS, hasDevice, hasIPSetTypes, hasIPTables, hasItsScheduler} {
		if err := ask(s); err != nil {
			return fmt.Errorf("ipvs: %w", err)
		}
	}
	return nil
}

func hasIPVS(mode.Settings) error {
	c, err := ipvswire.Open()
	if errors.Is(err, ipvswire.ErrNoIPVS) {
		return fmt.Errorf("%w: load it before kube-proxy starts: %w", err, plane.ErrUnsupported)
	}
	if err != nil {
		return told(err)
	}
	return c.Close()
}

func hasItsScheduler(s mode.Settings) error {
	c, err := ipvswire.Open()
	if err != nil {
		return told(err)
	}
	defer c.Close()
	return checkScheduler(context.Background(), c, s.Family, s.IPVS.Scheduler)
}

// told says what to do about a refusal.
func told(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: run as root, or with CAP_NET_ADMIN", err)
	}
	return err
}

// hasDevice finds out whether there can be a device for the service addresses. A device with an address that none can have is
// refused by who would make it, after the kernel has looked for that.
func hasDevice(mode.Settings) error {
	link, err := rtnetlink.LinkByName(Device)
	switch {
	case err == nil && link.Type() != DeviceType:
		return fmt.Errorf("there is a device %s of type %s, and it must be of type %s: rename or delete it", Device, link.Type(), DeviceType)
	case err == nil:
		return nil
	case !errors.As(err, &rtnetlink.LinkNotFoundError{}):
		return fmt.Errorf("look for device %s: %w", Device, err)
	}
	none := rtnetlink.LinkAttrs{Name: Device, HardwareAddr: make(net.HardwareAddr, 6)}
	asked := &rtnetlink.GenericLink{LinkAttrs: none, LinkType: DeviceType}
	switch err := rtnetlink.LinkAdd(asked); {
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return nil
	case err == nil: // a kernel that does not mind
		return rtnetlink.LinkDel(asked)
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("this kernel has no devices of type %s (the module %s): %w", DeviceType, DeviceType, plane.ErrUnsupported)
	default:
		return told(fmt.Errorf("ask for devices of type %s: %w", DeviceType, err))
	}
}

// ipsetTypes are those of the sets that the mode makes, each with the revision of it that can do what is asked of it: marks of
// packets (skbinfo) came with Linux 3.18.
var ipsetTypes = []struct {
	name     string
	revision uint8
}{{"hash:ip,port", 5}, {"hash:ip,port,ip", 0}, {"hash:ip,port,net", 0}, {"hash:ip", 0}, {"bitmap:port", 0}}

func hasIPSetTypes(s mode.Settings) error {
	nf, err := kernel.OpenNetfilter()
	if err != nil {
		return err
	}
	defer nf.Close()
	for _, t := range ipsetTypes {
		if err := hasIPSetType(nf, s.Family, t.name, t.revision); err != nil {
			return err
		}
	}
	return nil
}

// hasIPSetType asks for a type, as ipset does before it makes a set. A kernel that has it as a module loads it.
func hasIPSetType(nf *kernel.Netfilter, f lb.Family, name string, revision uint8) error {
	const (
		cmdType     = 13 // IPSET_CMD_TYPE
		attrType    = 3  // IPSET_ATTR_*
		attrRev     = 4
		attrFamily  = 5
		unknownType = unix.Errno(4098) // IPSET_ERR_FIND_TYPE
	)
	family := uint8(unix.NFPROTO_IPV4)
	if f == lb.IPv6 {
		family = unix.NFPROTO_IPV6
	}
	bodies, err := nf.Ask(unix.NFNL_SUBSYS_IPSET<<8|cmdType, 0, unix.AF_INET, func(ae *netlink.AttributeEncoder) {
		ae.Uint8(attrProtocol, ipsetProtocol)
		ae.String(attrType, name)
		ae.Uint8(attrFamily, family)
	})
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP): // netfilter knows no such subsystem
		return fmt.Errorf("this kernel has no ipsets (CONFIG_IP_SET, the module ip_set): %w", plane.ErrUnsupported)
	case errors.Is(err, unknownType):
		return fmt.Errorf("this kernel has no ipsets of type %s: %w", name, plane.ErrUnsupported)
	case err != nil:
		return told(fmt.Errorf("ask for ipsets of type %s: %w", name, err))
	}
	var has uint8
	for _, b := range bodies {
		err = kernel.Attributes(b, func(ad *netlink.AttributeDecoder) {
			if ad.Type() == attrRev {
				has = ad.Uint8()
			}
		})
		if err != nil {
			return fmt.Errorf("ask for ipsets of type %s: %w", name, err)
		}
	}
	if has < revision {
		return fmt.Errorf("this kernel has ipsets of type %s in revision %d at most, and %d is needed: %w", name, has, revision, plane.ErrUnsupported)
	}
	return nil
}

// Extensions of iptables that the chains of the mode need beside those that all need.
var chainMatches, chainTargets = []string{"set"}, []string{"SET"}

func hasIPTables(s mode.Settings) error {
	programs, err := iptables.Find(s.Family)
	if err != nil {
		return err
	}
	return programs.Have(chainMatches, chainTargets)
}
