//go:build linux

package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
)

// ask asks a subsystem of netfilter. A kernel without the subsystem answers nothing.
func ask(typ uint16, flags int, family byte, attrs func(*netlink.AttributeEncoder)) (bodies [][]byte, err error) {
	err = kernel.WithNetfilter(func(nf *kernel.Netfilter) (err error) {
		bodies, err = nf.Ask(typ, flags, family, attrs)
		return err
	})
	return bodies, err
}

// ipset is one of the kernel's.
type ipset struct {
	name    string
	entries []entry
}

// entry is a member of an ipset; what a set does not hold is zero.
type entry struct {
	addr  netip.Addr
	proto uint8
	port  uint16
}

// What golang.org/x/sys/unix does not have, from ip_set.h.
const (
	ipsetDestroy  = 3 // IPSET_CMD_*
	ipsetList     = 7
	ipsetProtocol = 6 // the version of the protocol that all kernels since 2.6.39 know
	ipsetBusy     = unix.Errno(4100)

	attrProtocol = 1 // IPSET_ATTR_*
	attrSetName  = 2
	attrData     = 7
	attrADT      = 8
	attrIP       = 1 // within data
	attrPort     = 4
	attrProto    = 7
)

// ipsetAttrs encodes a request about a set; about all if name is empty.
func ipsetAttrs(name string) func(*netlink.AttributeEncoder) {
	return func(ae *netlink.AttributeEncoder) {
		ae.Uint8(attrProtocol, ipsetProtocol)
		if name != "" {
			ae.String(attrSetName, name)
		}
	}
}

// hasIPSets reports whether the kernel has ipsets already: to ask itself would load them.
func hasIPSets() bool {
	if _, err := os.Stat("/sys/module"); err != nil {
		return true
	}
	_, err := os.Stat("/sys/module/ip_set")
	return err == nil
}

// listIPSets returns the ipsets of a family that a kube-proxy made (DP-32).
func listIPSets(fam lb.Family) ([]*ipset, error) {
	if !hasIPSets() {
		return nil, nil
	}
	bodies, err := ask(unix.NFNL_SUBSYS_IPSET<<8|ipsetList, unix.NLM_F_ACK|unix.NLM_F_DUMP, unix.AF_INET, ipsetAttrs(""))
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, name := range SetNames(fam) {
		known[name] = true
	}
	byName := map[string]*ipset{}
	var sets []*ipset
	for _, b := range bodies {
		var name string
		var entries []entry
		err := kernel.Attributes(b, func(ad *netlink.AttributeDecoder) {
			switch ad.Type() {
			case attrSetName:
				name = ad.String()
			case attrADT:
				ad.Nested(func(ad *netlink.AttributeDecoder) error {
					for ad.Next() {
						var e entry
						ad.Nested(e.decode)
						entries = append(entries, e)
					}
					return nil
				})
			}
		})
		if err != nil {
			return nil, err
		}
		if !known[name] {
			continue
		}
		if byName[name] == nil { // a large one comes in parts
			byName[name] = &ipset{name: name}
			sets = append(sets, byName[name])
		}
		byName[name].entries = append(byName[name].entries, entries...)
	}
	return sets, nil
}

func (e *entry) decode(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case attrIP:
			ad.Nested(func(ad *netlink.AttributeDecoder) error {
				for ad.Next() {
					e.addr, _ = netip.AddrFromSlice(ad.Bytes())
				}
				return nil
			})
		case attrPort:
			e.port = ad.Uint16()
		case attrProto:
			e.proto = ad.Uint8()
		}
	}
	return nil
}

// destroyIPSet destroys a set; that there is none is no error.
func destroyIPSet(name string) error {
	_, err := ask(unix.NFNL_SUBSYS_IPSET<<8|ipsetDestroy, unix.NLM_F_ACK, unix.AF_INET, ipsetAttrs(name))
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, ipsetBusy):
		return fmt.Errorf("destroy ipset %s: %w", name, errInUse)
	case err != nil:
		return fmt.Errorf("destroy ipset %s: %w", name, err)
	}
	return nil
}

var errInUse = errors.New("rules use it")

// SetNames are the names of the ipsets of a family (DP-32), and those of earlier versions.
func SetNames(fam lb.Family) []string {
	names := []string{
		"LOOP-BACK", "CLUSTER-IP", "EXTERNAL-IP", "EXTERNAL-IP-LOCAL",
		"LOAD-BALANCER", "LOAD-BALANCER-LOCAL", "LOAD-BALANCER-FW", "LOAD-BALANCER-SOURCE-IP", "LOAD-BALANCER-SOURCE-CIDR",
		"NODE-PORT-TCP", "NODE-PORT-LOCAL-TCP", "NODE-PORT-UDP", "NODE-PORT-LOCAL-UDP",
		"NODE-PORT-SCTP", "NODE-PORT-LOCAL-SCTP", "NODE-PORT-SCTP-HASH", "NODE-PORT-LOCAL-SCTP-HASH",
		"HEALTH-CHECK-NODE-PORT", "IPVS-IPS",
	}
	prefix := "KUBE-"
	if fam == lb.IPv6 {
		prefix = "KUBE-6-"
	}
	for i, n := range names {
		names[i] = prefix + n
		if len(names[i]) > 31 { // IPSET_MAXNAMELEN, where upstream cuts them too
			names[i] = names[i][:31]
		}
	}
	return names
}
