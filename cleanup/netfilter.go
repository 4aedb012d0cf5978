package cleanup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"kube-proxy/lb"
	"kube-proxy/plane/iptables"
)

// ask sends a request to a subsystem of netfilter and returns the answers, without struct nfgenmsg. A kernel without
// the subsystem gives none.
func ask(typ uint16, flags netlink.HeaderFlags, family byte, attrs []byte) ([][]byte, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open a netfilter socket: %w", err)
	}
	defer conn.Close()
	msgs, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(typ), Flags: netlink.Request | flags},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attrs...),
	})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) { // netfilter knows no such subsystem
		return nil, nil
	}
	if errors.Is(err, unix.EPERM) {
		return nil, fmt.Errorf("%w: run as root, or with CAP_NET_ADMIN", err)
	}
	if err != nil {
		return nil, err
	}
	var bodies [][]byte
	for _, m := range msgs {
		if len(m.Data) > 4 && uint16(m.Header.Type)>>8 == typ>>8 { // not an acknowledgement
			bodies = append(bodies, m.Data[4:])
		}
	}
	return bodies, nil
}

// decode calls f for each attribute.
func decode(b []byte, f func(ad *netlink.AttributeDecoder)) error {
	ad, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return err
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		f(ad)
	}
	return ad.Err()
}

// hasChains reports whether tables of iptables, of the nft back end, have chains of a kube-proxy; or, if firewall is set,
// the kubelet's KUBE-FIREWALL, where a rule of a kube-proxy may be.
func hasChains(fam lb.Family, firewall bool) (bool, error) {
	proto := byte(unix.NFPROTO_IPV4)
	if fam == lb.IPv6 {
		proto = unix.NFPROTO_IPV6
	}
	const getChain = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETCHAIN
	bodies, err := ask(getChain, netlink.Dump, proto, nil)
	if err != nil {
		return false, err
	}
	some := false
	for _, b := range bodies {
		var table, name string
		err := decode(b, func(ad *netlink.AttributeDecoder) {
			switch ad.Type() {
			case unix.NFTA_CHAIN_TABLE:
				table = ad.String()
			case unix.NFTA_CHAIN_NAME:
				name = ad.String()
			}
		})
		if err != nil {
			return false, err
		}
		some = some || iptables.Leftover(table, name) || firewall && table == "filter" && name == "KUBE-FIREWALL"
	}
	return some, nil
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

func ipsetAttrs(name string) []byte {
	ae := netlink.NewAttributeEncoder()
	ae.Uint8(attrProtocol, ipsetProtocol)
	if name != "" {
		ae.String(attrSetName, name)
	}
	b, err := ae.Encode()
	if err != nil { // a name is never too long
		panic(err)
	}
	return b
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
	bodies, err := ask(unix.NFNL_SUBSYS_IPSET<<8|ipsetList, netlink.Acknowledge|netlink.Dump, unix.AF_INET, ipsetAttrs(""))
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, name := range setNames(fam) {
		known[name] = true
	}
	byName := map[string]*ipset{}
	var sets []*ipset
	for _, b := range bodies {
		var name string
		var entries []entry
		err := decode(b, func(ad *netlink.AttributeDecoder) {
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
	ad.ByteOrder = binary.BigEndian
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
	_, err := ask(unix.NFNL_SUBSYS_IPSET<<8|ipsetDestroy, netlink.Acknowledge, unix.AF_INET, ipsetAttrs(name))
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

// setNames are the names of DP-32, and those of earlier versions.
func setNames(fam lb.Family) []string {
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
