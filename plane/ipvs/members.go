package ipvs

import (
	"net/netip"

	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/lb"
)

// wire returns the member as ipsets have it.
func (m member) wire(as mark) ipset.Member {
	w := ipset.Member{Addr: m.addr, Net: m.from, Port: m.port, Mark: as.value, Mask: as.mask}
	if m.addr.IsValid() {
		w.Proto = uint8(m.proto)
	}
	return w
}

// memberOf returns a member as the kernel lists it.
func memberOf(s set, w ipset.Member) (member, mark) {
	return member{set: s, addr: w.Addr, port: w.Port, proto: lb.Proto(w.Proto), from: w.Net}, mark{w.Mark, w.Mask}
}

// key returns the key of the frontend that has the member, for sets that name frontends.
func (m member) key() lb.Key {
	k := lb.Key{Addr: m.addr, Port: m.port, Proto: m.proto}
	switch m.set {
	case setNodePortTCP, setNodePortLocalTCP, setHealthCheck:
		k.Proto = lb.TCP
	case setNodePortUDP, setNodePortLocalUDP:
		k.Proto = lb.UDP
	case setNodePortSCTP, setNodePortLocalSCTP:
		k.Addr = netip.Addr{}
	}
	return k
}
