package userspace

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"kube-proxy/lb"
	"kube-proxy/plane/internal/relay"
)

const (
	// portRest is how long a released port is not used for another listener: longer than the kernel
	// remembers idle flows.
	portRest = 3 * time.Minute
	// portTries is the number of resting ports of the kernel's choice that are declined.
	portTries = 16
)

// ErrNoPort is wrapped by errors for a listener for which no port of the range is free.
var ErrNoPort = errors.New("no port is left")

// ports assigns ports to listeners at all addresses of a family. It is pure except for the clock.
type ports struct {
	first, last uint16 // both 0: any
	next        map[lb.Proto]int
	used        map[port]bool
	promised    map[port]bool      // reserved for listeners that prefer them
	resting     map[port]time.Time // the end of the rest
	queue       []resting          // in the order of their ends
	quotas      map[lb.Proto]*relay.Groups
}

// port is a port of a protocol.
type port struct {
	proto  lb.Proto
	number uint16
}

// resting is a port that a Service released. It counts for the Service until its rest ends.
// Otherwise a Service that is created and deleted repeatedly would soon make all ports rest.
type resting struct {
	port
	service string
}

func newPorts(first, last uint16) *ports {
	return &ports{first: first, last: last, next: map[lb.Proto]int{}, used: map[port]bool{},
		resting: map[port]time.Time{}, quotas: map[lb.Proto]*relay.Groups{}}
}

// quota returns the quota of a protocol's ports. The node keeps half of the ephemeral ports for its
// own connections.
func (p *ports) quota(proto lb.Proto) *relay.Groups {
	if q := p.quotas[proto]; q != nil {
		return q
	}
	size, of := max(1, relay.EphemeralPorts()/2), "half of net.ipv4.ip_local_port_range"
	if p.last != 0 {
		// One more than the range has, or a single namespace would not get all of a few ports.
		size, of = p.size()+1, fmt.Sprintf("the ports %d-%d, --proxy-port-range", p.first, p.last)
	}
	p.quotas[proto] = relay.NewGroups(relay.NewBudget(size), of+", for "+proto.String())
	return p.quotas[proto]
}

// size returns the number of ports in the range.
func (p *ports) size() int { return int(p.last) - int(p.first) + 1 }

// take finds a port for a listener of a Service by trying to listen, first at prefer if that is not
// 0. listen gets 0 for any port, and returns the actual one; its error wraps syscall.EADDRINUSE if
// another program has the port. refuse closes the last listener.
func (p *ports) take(service string, proto lb.Proto, prefer uint16, listen func(uint16) (uint16, error),
	refuse func()) error {
	p.wake()
	q := p.quota(proto)
	if _, err := q.Take(service); err != nil {
		if p.last != 0 && q.Budget().Used() >= int64(p.size()) { // all ports of the range are in use
			return p.ofRange(proto, listen)
		}
		return err
	}
	err := p.find(proto, prefer, listen, refuse)
	if err != nil {
		q.Give(service)
	}
	return err
}

func (p *ports) find(proto lb.Proto, prefer uint16, listen func(uint16) (uint16, error), refuse func()) error {
	if prefer != 0 && !p.used[port{proto, prefer}] && (p.last == 0 || p.first <= prefer && prefer <= p.last) {
		if _, err := listen(prefer); err == nil {
			p.used[port{proto, prefer}] = true
			return nil
		} else if !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
	}
	if p.last == 0 {
		return p.any(proto, listen, refuse)
	}
	return p.ofRange(proto, listen)
}

// any takes a port of the kernel's choice.
func (p *ports) any(proto lb.Proto, listen func(uint16) (uint16, error), refuse func()) error {
	for range portTries {
		n, err := listen(0)
		if err != nil {
			if errors.Is(err, syscall.EADDRINUSE) {
				err = fmt.Errorf("%w: the kernel has no free port for %s (net.ipv4.ip_local_port_range): %w",
					ErrNoPort, proto, err)
			}
			return err
		}
		at := port{proto, n}
		if _, rests := p.resting[at]; !rests && !p.used[at] && !p.promised[at] {
			p.used[at] = true
			return nil
		}
		refuse()
	}
	return fmt.Errorf("%w: the kernel offers only ports that were released less than %v ago "+
		"(net.ipv4.ip_local_port_range)", ErrNoPort, portRest)
}

// ofRange takes the next free port of the range. The first one is random, so that two proxies, or a
// process and its successor, do not collide.
func (p *ports) ofRange(proto lb.Proto, listen func(uint16) (uint16, error)) error {
	size := p.size()
	if _, begun := p.next[proto]; !begun {
		p.next[proto] = rand.IntN(size)
	}
	used, rest, others := 0, 0, 0
	for range size {
		at := port{proto, p.first + uint16(p.next[proto])}
		p.next[proto] = (p.next[proto] + 1) % size
		if p.used[at] || p.promised[at] {
			used++
			continue
		}
		if _, rests := p.resting[at]; rests {
			rest++
			continue
		}
		_, err := listen(at.number)
		if err == nil {
			p.used[at] = true
			return nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
		others++
	}
	return fmt.Errorf("%w: of the %d ports %d-%d (--proxy-port-range) this proxy uses %d for %s, other programs have "+
		"%d, "+
		"and %d were given up less than %v ago; give it a wider range", ErrNoPort, size, p.first, p.last, used, proto,
		others, rest, portRest)
}

// give releases a port of a Service. The port then rests.
func (p *ports) give(service string, proto lb.Proto, n uint16) {
	at := port{proto, n}
	if !p.used[at] {
		return
	}
	delete(p.used, at)
	p.resting[at] = time.Now().Add(portRest)
	p.queue = append(p.queue, resting{at, service})
}

// wake frees the ports whose rest is over.
func (p *ports) wake() {
	now := time.Now()
	for len(p.queue) > 0 && !now.Before(p.resting[p.queue[0].port]) {
		r := p.queue[0]
		p.queue = p.queue[1:]
		delete(p.resting, r.port)
		p.quota(r.proto).Give(r.service)
	}
}
