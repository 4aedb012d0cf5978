package userspace

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"kube-proxy/lb"
)

// host has ports. Other programs use some of them.
type host struct {
	others map[uint16]bool
	offers []uint16 // ports that it offers for 0, in this order
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

// Listeners get the ports of the range, each once. A port of another program is skipped, and when
// none is left an error names the range and the flag (CF-44).
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
		// Ports that other programs release are found.
		h.others = nil
		if n := takes(t, p, h, 0); n != 40002 {
			t.Errorf("took %d, which is not the one that the other gave up", n)
		}
	})
}

// Without a range the kernel chooses the port. If it offers one that rests, the request is
// repeated.
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
