//go:build linux

package ipvs

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/lb"
)

// After a restart, the plane still recognises a virtual server of a removed NodePort with open
// connections as ours, and removes it when they have ended; also if the kernel refused the member
// that shows it.
func TestLeavingNodePortSurvivesRestart(t *testing.T) {
	for _, refused := range []error{nil, unix.ENOMEM} {
		leavingNodePortSurvivesRestart(t, refused)
	}
}

func leavingNodePortSurvivesRestart(t *testing.T, refused error) {
	k, p, table, w := started(t, lb.IPv4)
	k.connections(always(1))
	changes := replaced(table, lb.Owner{Name: "ns/svc-10"}, nil)
	k.refuse = func(what string) error {
		if strings.HasPrefix(what, "add ") && strings.Contains(what, setMarksAnywhere.name(lb.IPv4)) {
			return refused
		}
		return nil
	}
	if _, err := p.Apply(t.Context(), changes); !errors.Is(err, refused) {
		t.Fatalf("%v, want %v", err, refused)
	}
	k.refuse = nil
	at := lb.Key{Addr: w.Addr(192, 1), Port: 30010, Proto: lb.TCP}
	m, has := k.sets[setMarksAnywhere.name(lb.IPv4)].members[member{addr: at.Addr, port: at.Port, proto: at.Proto}.wire(
		mark{})]
	if has == (refused != nil) || m.Mask != 0 {
		t.Errorf("the NodePort has the member %v: new connections must be refused, as where nothing listens", m)
	}
	p2 := k.start(t, lb.IPv4, table)
	k.connections(always(0))
	for range 5 {
		hasten(p2)
		must(t, only(p2.Audit(t.Context(), true)))
	}
	for _, v := range k.ipvs.State() {
		for _, d := range v.Destinations {
			if d.Weight == 0 {
				t.Errorf("%v to %v is still there", v.ServiceID, d.Addr)
			}
		}
	}
}
