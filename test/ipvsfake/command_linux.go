package ipvsfake

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
)

// hz is the clock of the tested kernels, in ticks a second. The kernel keeps timeouts of
// persistence in ticks, in 32 bits.
const hz = 250

// The forwarding method of tunnels, and the mask of all methods.
const (
	forwardTunnel = 2
	forwardMask   = 7
)

func knows(family uint16) bool { return family == unix.AF_INET || family == unix.AF_INET6 }

// serviceKey reads the attributes that name a service (ip_vs_genl_parse_service).
func serviceKey(attr []byte) (key, [][]byte, error) {
	if attr == nil {
		return key{}, nil, unix.EINVAL
	}
	a, err := parse(attr, svcLengths)
	if err != nil || a[svcAF] == nil || a[svcMark] == nil && (a[svcPort] == nil || a[svcProtocol] == nil ||
		a[svcAddr] == nil) {
		return key{}, nil, unix.EINVAL
	}
	at := key{family: u16(a[svcAF])}
	if !knows(at.family) {
		return key{}, nil, unix.EAFNOSUPPORT
	}
	if a[svcMark] != nil {
		at.mark = u32(a[svcMark])
		return at, a, nil
	}
	at.proto, at.addr, at.port = u16(a[svcProtocol]), filled(a[svcAddr]), uint16(a[svcPort][0])<<8|uint16(a[svcPort][1])
	return at, a, nil
}

// wanted are the other attributes of a service.
type wanted struct {
	scheduler      string
	flags, timeout uint32
	netmask        [4]byte
}

// serviceWanted reads them.
func serviceWanted(a [][]byte) (w wanted, err error) {
	if a[svcScheduler] == nil || a[svcFlags] == nil || a[svcTimeout] == nil || a[svcNetmask] == nil {
		return w, unix.EINVAL
	}
	w.flags = u32(a[svcFlags]) // all bits count: the mask is complete
	w.scheduler, w.timeout, w.netmask = netlink.CStr(a[svcScheduler]), u32(a[svcTimeout]), [4]byte(a[svcNetmask])
	return w, nil
}

// check refuses like ip_vs_add_service and ip_vs_edit_service.
func (k *Kernel) check(family uint16, w wanted) error {
	if w.scheduler != "none" && !slices.Contains(k.cfg.Schedulers, w.scheduler) {
		return unix.ENOENT
	}
	if plen := u32(w.netmask[:]); family == unix.AF_INET6 && (plen < 1 || plen > 128) {
		return unix.EINVAL
	}
	return nil
}

func (w wanted) apply(s *service) {
	s.scheduler, s.flags, s.ticks, s.netmask = w.scheduler, w.flags|flagHashed, w.timeout*hz, w.netmask
}

// change carries out a command that changes something (ip_vs_genl_set_cmd).
func (k *Kernel) change(cmd Command, attrs [][]byte) error {
	if cmd == SetConfig {
		return k.setTimeouts(attrs)
	}
	at, a, err := serviceKey(attrs[attrService])
	if err != nil {
		return err
	}
	s := k.services[at]
	var w wanted
	if cmd == NewService || cmd == SetService {
		w, err = serviceWanted(a)
		if err != nil {
			return err
		}
	}
	if cmd != NewService && s == nil {
		return unix.ESRCH
	}
	switch cmd {
	case NewService:
		if s != nil {
			return unix.EEXIST
		}
		if err := k.check(at.family, w); err != nil {
			return err
		}
		k.made++
		s = &service{key: at, made: k.made, destinations: map[name]*destination{}}
		w.apply(s)
		k.services[at] = s
	case SetService:
		if err := k.check(at.family, w); err != nil {
			return err
		}
		w.apply(s)
	case DelService:
		k.remove(s)
	default:
		return k.changeDestination(cmd, s, attrs[attrDest])
	}
	return nil
}

func (k *Kernel) setTimeouts(attrs [][]byte) error {
	for _, a := range attrs[attrTCP : attrUDP+1] {
		if a != nil && u32(a) > (1<<31-1)/hz {
			return unix.EINVAL
		}
	}
	for i, a := range attrs[attrTCP : attrUDP+1] {
		if a != nil && u32(a) != 0 {
			k.timeouts[i] = u32(a)
		}
	}
	return nil
}

// remove removes a service with its destinations.
func (k *Kernel) remove(s *service) {
	for _, d := range s.destinations {
		k.throwAway(d)
	}
	delete(k.services, s.key)
}

// throwAway keeps a destination with connections: they continue, and it has them again if it
// returns.
func (k *Kernel) throwAway(d *destination) {
	if d.conns != (Conns{}) {
		k.trash = append(k.trash, d)
	}
}

// readDestination reads a destination (ip_vs_genl_parse_dest); with whole all attributes are
// required.
func readDestination(attr []byte, whole bool) (*destination, error) {
	if attr == nil {
		return nil, unix.EINVAL
	}
	a, err := parse(attr, destLengths)
	if err != nil || a[destAddr] == nil || a[destPort] == nil {
		return nil, unix.EINVAL
	}
	if a[destFamily] == nil {
		return nil, unix.EINVAL // the kernel would use the service's, and ours is always set
	}
	d := &destination{name: name{family: u16(a[destFamily]), addr: filled(a[destAddr]),
		port: uint16(a[destPort][0])<<8 | uint16(a[destPort][1])}}
	if !whole {
		return d, nil
	}
	if a[destForwarding] == nil || a[destWeight] == nil || a[destUpper] == nil || a[destLower] == nil {
		return nil, unix.EINVAL
	}
	d.forwarding, d.weight, d.upper, d.lower = u32(a[destForwarding])&forwardMask, u32(a[destWeight]),
		u32(a[destUpper]), u32(a[destLower])
	return d, nil
}

func (k *Kernel) changeDestination(cmd Command, s *service, attr []byte) error {
	d, err := readDestination(attr, cmd != DelDest)
	if err != nil {
		return err
	}
	if !knows(d.family) {
		return unix.EAFNOSUPPORT
	}
	if d.family != s.family && cmd != DelDest && d.forwarding != forwardTunnel {
		return unix.EINVAL
	}
	if cmd != DelDest && (int32(d.weight) < 0 || d.lower > d.upper) {
		return unix.ERANGE
	}
	was := s.destinations[d.name]
	switch cmd {
	case NewDest:
		if was != nil {
			return unix.EEXIST
		}
		if at := slices.IndexFunc(k.trash, func(o *destination) bool {
			return o.of.key == s.key && o.name == d.name
		}); at >= 0 {
			d.conns = k.trash[at].conns
			if k.trash[at].of == s {
				d.stats = k.trash[at].stats
			}
			k.trash = slices.Delete(k.trash, at, at+1)
		} else if !reachable(d.family, addrOf(d.family, d.addr)) {
			return unix.EINVAL
		}
		k.made++
		d.of, d.made = s, k.made
		s.destinations[d.name] = d
	case SetDest, DelDest:
		if was == nil {
			return unix.ENOENT
		}
		if cmd == DelDest {
			k.throwAway(was)
			delete(s.destinations, d.name)
			break
		}
		d.of, d.made, d.conns, d.stats = was.of, was.made, was.conns, was.stats
		*was = *d
	default:
		return unix.EINVAL
	}
	return nil
}

// broadcast are the addresses of broadcast where there is loopback.
var broadcast = map[netip.Addr]bool{netip.AddrFrom4([4]byte{255, 255, 255, 255}): true,
	netip.AddrFrom4([4]byte{127, 255, 255, 255}): true}

// reachable reports whether ip_vs_new_dest takes an address, on a machine with only loopback.
func reachable(family uint16, a netip.Addr) bool {
	if family == unix.AF_INET {
		return !a.IsUnspecified() && !a.IsMulticast() && !broadcast[a]
	}
	return !a.IsUnspecified() && !a.IsMulticast() && !a.IsLinkLocalUnicast() && !a.Is4In6()
}
