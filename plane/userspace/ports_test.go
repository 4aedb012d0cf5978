package userspace

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/lb"
)

// host has ports, some of which others use.
type host struct {
	others map[uint16]bool
	offers []uint16 // what it offers for 0, in this order
	opened uint16
	tries  int
}

func (h *host) listen(n uint16) (uint16, error) {
	h.tries++
	if n == 0 {
		if len(h.offers) == 0 {
			return 0, fmt.Errorf("bind: %w", syscall.EADDRINUSE)
		}
		n, h.offers = h.offers[0], h.offers[1:]
	}
	if h.others[n] {
		return 0, fmt.Errorf("bind: %w", syscall.EADDRINUSE)
	}
	h.opened = n
	return n, nil
}

func (h *host) refuse() { h.opened = 0 }

func takes(t *testing.T, p *ports, h *host, prefer uint16) uint16 {
	t.Helper()
	h.opened = 0
	if err := p.take("ns/x:p", lb.UDP, prefer, h.listen, h.refuse); err != nil {
		t.Fatal(err)
	}
	return h.opened
}

// Listeners have the ports of the range, each once; one that another program has is passed over, and when none is left an error names the
// range and the flag (CF-44).
func TestPortsOfARangeCF44(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, h := newPorts(40000, 40004), &host{others: map[uint16]bool{40002: true}}
		got := map[uint16]bool{}
		for range 4 {
			got[takes(t, p, h, 0)] = true
		}
		if len(got) != 4 || got[40002] || !got[40000] || !got[40004] {
			t.Errorf("took %v", got)
		}
		err := p.take("ns/x:p", lb.UDP, 0, h.listen, h.refuse)
		if !errors.Is(err, ErrNoPort) || !strings.Contains(err.Error(), "40000-40004 (--proxy-port-range)") {
			t.Errorf("exhausted: %v", err)
		}
		// Another protocol has ports of its own.
		if err := p.take("ns/x:p", lb.TCP, 0, h.listen, h.refuse); err != nil {
			t.Error(err)
		}
		// What others give up is found, a while later.
		h.others = nil
		time.Sleep(portForeign)
		if n := takes(t, p, h, 0); n != 40002 {
			t.Errorf("took %d, which is not the one that the other gave up", n)
		}
	})
}

// A port that was given up rests before it serves another Service, and may be taken again by the one that it was for.
func TestPortsRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, h := newPorts(40000, 40000), &host{}
		takes(t, p, h, 0)
		p.give("ns/x:p", lb.UDP, 40000)
		time.Sleep(portRest - time.Second)
		if err := p.take("ns/x:p", lb.UDP, 0, h.listen, h.refuse); !errors.Is(err, ErrNoPort) || !strings.Contains(err.Error(), "1 were given up") {
			t.Errorf("error %v", err)
		}
		if n := takes(t, p, h, 40000); n != 40000 {
			t.Errorf("took %d", n)
		}
		p.give("ns/x:p", lb.UDP, 40000)
		p.give("ns/x:p", lb.UDP, 40000)
		time.Sleep(portRest)
		if n := takes(t, p, h, 0); n != 40000 || len(p.queue) != 0 || len(p.resting) != 0 {
			t.Errorf("took %d; %d rest, %d are queued", n, len(p.resting), len(p.queue))
		}
	})
}

// Without a range the kernel says which; it is asked again where it offers one that rests.
func TestAnyPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, h := newPorts(0, 0), &host{offers: []uint16{5, 5, 5, 6}}
		if n := takes(t, p, h, 0); n != 5 {
			t.Fatal(n)
		}
		p.give("ns/x:p", lb.UDP, 5)
		if n := takes(t, p, h, 0); n != 6 || h.tries != 4 {
			t.Errorf("took %d after %d tries", n, h.tries)
		}
		if err := p.take("ns/x:p", lb.UDP, 0, h.listen, h.refuse); !errors.Is(err, ErrNoPort) {
			t.Error(err)
		}
		for range portTries {
			h.offers = append(h.offers, 5)
		}
		if err := p.take("ns/x:p", lb.UDP, 0, h.listen, h.refuse); !errors.Is(err, ErrNoPort) || h.opened != 0 {
			t.Errorf("error %v, port %d is open", err, h.opened)
		}
	})
}

// The port of the process before is taken where it is free and in the range.
func TestPreferredPort(t *testing.T) {
	for _, c := range []struct {
		first, last, prefer uint16
		others              bool
		got                 bool
	}{
		{0, 0, 700, false, true}, {0, 0, 700, true, false}, {600, 800, 700, false, true}, {600, 650, 700, false, false},
	} {
		p, h := newPorts(c.first, c.last), &host{others: map[uint16]bool{700: c.others}, offers: []uint16{9}}
		if n := takes(t, p, h, c.prefer); (n == c.prefer) != c.got {
			t.Errorf("%+v: took %d", c, n)
		}
	}
	p, h := newPorts(0, 0), &host{offers: []uint16{9}}
	takes(t, p, h, 700)
	if n := takes(t, p, h, 700); n == 700 {
		t.Error("one port for two listeners")
	}
	failing := errors.New("too many open files")
	if err := newPorts(0, 0).take("ns/x:p", lb.TCP, 700, func(uint16) (uint16, error) { return 0, failing }, nil); !errors.Is(err, failing) {
		t.Errorf("error %v", err)
	}
}
