package ipvsfake

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"kube-proxy/internal/netlink/ipvs"
)

// ErrLost, returned by [Kernel.Before], makes the kernel carry out a message and lose its answer.
var ErrLost = errors.New("the answer is lost")

// Config configures the kernel. The zero Config has all features.
type Config struct {
	// Absent is a kernel without ip_vs.
	Absent bool
	// Schedulers are those that the kernel has or can load; nil means all of Linux.
	Schedulers []string
	// Unprivileged is a process without CAP_NET_ADMIN.
	Unprivileged bool
}

// Schedulers are all that Linux has.
var Schedulers = []string{"dh", "fo", "lblc", "lblcr", "lc", "mh", "nq", "ovf", "rr", "sed", "sh", "twos", "wlc", "wrr"}

// Request is a message that is about to be carried out.
type Request struct {
	N           int // the how manyth message it is since the kernel was made, from 1 on, of all connections
	Command     Command
	Service     ipvs.ServiceID // zero if the message has no readable one
	Destination netip.AddrPort
}

// Command is the command of a message, as in IPVS_CMD_….
type Command uint8

// The commands.
const (
	NewService Command = 1
	SetService Command = 2
	DelService Command = 3
	GetService Command = 4
	NewDest    Command = 5
	SetDest    Command = 6
	DelDest    Command = 7
	GetDest    Command = 8
	SetConfig  Command = 12
	GetConfig  Command = 13
	GetInfo    Command = 15
)

// Writes reports whether the command is one that changes services or destinations.
func (c Command) Writes() bool {
	switch c {
	case NewService, SetService, DelService, NewDest, SetDest, DelDest:
		return true
	}
	return false
}

// Conns are the connections of a destination, by number.
type Conns struct{ Active, Inactive, Persistent uint32 }

// Kernel is an IPVS of one network namespace. It is safe for concurrent use, also from within
// Before and the callbacks of a connection.
type Kernel struct {
	// Before, if not nil, is called before each message to IPVS, and may use the kernel. Its error
	// is the answer, and the message is not carried out; with ErrLost it is, without an answer.
	Before func(Request) error

	cfg Config

	mu       sync.Mutex
	family   uint16 // its number
	messages int
	made     int // how many services and destinations were created
	services map[key]*service
	trash    []*destination // removed with connections
	timeouts [3]uint32      // TCP, TCP FIN, UDP; in seconds
}

// New makes a kernel that has no services.
func New(cfg Config) *Kernel {
	if cfg.Schedulers == nil {
		cfg.Schedulers = Schedulers
	}
	return &Kernel{cfg: cfg, family: 0x1b, services: map[key]*service{}, timeouts: [3]uint32{15 * 60, 2 * 60, 5 * 60}}
}

// Connect makes a connection to the kernel.
func (k *Kernel) Connect() *Conn { return &Conn{kernel: k} }

// Messages returns the number of messages so far.
func (k *Kernel) Messages() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.messages
}

// SetFamilyID gives the family another number, as when the module is loaded again.
func (k *Kernel) SetFamilyID(id uint16) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.family = id
}

// Flush removes all services.
func (k *Kernel) Flush() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range k.services {
		k.remove(s)
	}
}

// SetConns sets the number of connections of a destination.
func (k *Kernel) SetConns(id ipvs.ServiceID, addr netip.AddrPort, n Conns) error {
	return k.withDestination(id, addr, func(d *destination) { d.conns = n })
}

// SetStats sets the counters of a destination.
func (k *Kernel) SetStats(id ipvs.ServiceID, addr netip.AddrPort, s ipvs.Stats) error {
	return k.withDestination(id, addr, func(d *destination) { d.stats = s })
}

// SetServiceStats sets the counters of a service.
func (k *Kernel) SetServiceStats(id ipvs.ServiceID, s ipvs.Stats) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	of := k.services[keyOf(id)]
	if of == nil {
		return fmt.Errorf("there is no virtual server %s", id)
	}
	of.stats = s
	return nil
}

func (k *Kernel) withDestination(id ipvs.ServiceID, addr netip.AddrPort, f func(*destination)) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.services[keyOf(id)]; s != nil {
		family := uint16(ipvs.FamilyOf(addr.Addr()))
		if d := s.destinations[name{family, addrBytes(addr.Addr()), addr.Port()}]; d != nil {
			f(d)
			return nil
		}
	}
	return fmt.Errorf("there is no real server %s of virtual server %s", addr, id)
}

// VirtualServer is a service with its destinations.
type VirtualServer struct {
	ipvs.Service
	Destinations []ipvs.DestinationState // sorted by address
}

// State returns all services: those by address first, each kind sorted by its name.
func (k *Kernel) State() []VirtualServer {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []VirtualServer
	for _, s := range k.services {
		v := VirtualServer{Service: s.state()}
		for _, d := range s.destinations {
			v.Destinations = append(v.Destinations, d.state())
		}
		slices.SortFunc(v.Destinations, func(a, b ipvs.DestinationState) int { return a.Addr.Compare(b.Addr) })
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b VirtualServer) int {
		return cmp.Or(cmp.Compare(a.Mark, b.Mark), cmp.Compare(a.Family, b.Family), a.Addr.Compare(b.Addr),
			cmp.Compare(a.Proto, b.Proto))
	})
	return all
}

// String returns the state as ipvsadm-save -n prints it, sorted.
func (k *Kernel) String() string {
	var b strings.Builder
	for _, v := range k.State() {
		b.WriteString(ipvs.SaveService(v.Service))
		for _, d := range v.Destinations {
			b.WriteString(ipvs.SaveDestination(v.ServiceID, d.Destination))
		}
	}
	return b.String()
}
