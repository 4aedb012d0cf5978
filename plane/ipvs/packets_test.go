//go:build linux

package ipvs

import (
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/lb"
	"kube-proxy/test/ipvsfake"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
)

// While connections of a removed Service continue, new ones to it are dropped, as if the Service
// did not exist; closed connections do not keep it (DP-53).
func TestGoneServiceTakesNoMore(t *testing.T) {
	drainTest(t, lb.TCP, func(t *testing.T, d *drainLab) {
		any := d.sets[setMarksAnywhere.name(lb.IPv4)].members
		dropped := func() bool {
			m, has := any[member{addr: d.web.Addr.Addr(), port: d.web.Addr.Port(), proto: lb.TCP}.wire(mark{})]
			return has && m.Mark == d.p.l.mark.drop() && m.Mask == wholeMark
		}
		d.busy(0, 1, 0, 0)
		d.apply(lb.Owner{Name: "ns/web"}, nil)
		if !dropped() {
			t.Errorf("new connections are not dropped: %v", any)
		}
		d.apply(d.service(lb.TCP, 0, 3))
		if dropped() {
			t.Error("new connections are dropped though the Service is back")
		}
		must(t, d.ipvs.SetConns(d.web, d.pod(0), ipvsfake.Conns{Inactive: 7}))
		d.apply(lb.Owner{Name: "ns/web"}, nil)
		if d.weights() != nil || dropped() {
			t.Error("connections that are closed hold the virtual server")
		}
	})
}

// Flows of a UDP or SCTP backend that still serves without new clients continue (DP-50).
func TestServingBackendKeepsFlows(t *testing.T) {
	for _, proto := range []lb.Proto{lb.UDP, lb.SCTP} {
		d := newDrainLab(t, proto)
		serving := func(first, n, serves int) (lb.Owner, []*lb.Frontend) {
			o, fronts := d.service(proto, first, n)
			_, all := d.service(proto, first, serves)
			s := *all[0].Routes[0].To
			s.ID.Scope = lb.Serving
			fronts[0].Serving = &s
			return o, fronts
		}
		d.apply(serving(0, 2, 3))
		d.want("it terminates", 1, 1, 0)
		d.restart()
		d.want("after a restart", 1, 1, 0)
		if n, err := d.p.Audit(t.Context(), true); n != 0 || err != nil {
			t.Errorf("an audit repaired %d, %v", n, err)
		}
		d.apply(serving(0, 3, 3))
		d.want("it is back", 1, 1, 1)
		d.apply(serving(0, 2, 3))
		d.apply(serving(0, 2, 2))
		d.want("it is gone", 1, 1, -1)
	}
}

// After a restart, the plane still knows objects that the kernel refused to remove, though no
// frontend has them.
func TestRefusedRemovalIsKnown(t *testing.T) {
	k, p, table, w := started(t, lb.IPv4)
	np := serviceOf(lb.Key{Addr: w.Addr(192, 1), Port: 30010, Proto: lb.TCP})
	k.refuses(ipvsfake.DelService, np, unix.ENOMEM)
	if _, err := p.Apply(t.Context(), replaced(table, lb.Owner{Name: "ns/svc-10"}, nil)); err == nil {
		t.Fatal("no error")
	}
	k.ipvs.Before = nil
	k.start(t, lb.IPv4, table)
	if _, stays := k.find(np); stays {
		t.Error("it stays for ever")
	}
}

// If rules of mode iptables serve, ours replace them when every frontend is served, however many
// exist. Without such rules, ours are written before any client can connect.
func TestChainsComeInTime(t *testing.T) {
	kerneltest.Every(t)
	w := planetest.World{Family: lb.IPv4}
	for was, want := range map[string]int{"nat KUBE-SERVICES -j KUBE-SVC-ABC": 20, "": 0} {
		k := newLab(t)
		k.rules[lb.IPv4].text = was
		served := -1
		k.rules[lb.IPv4].written = func() { served = len(k.devs[lb.IPv4].addrs) }
		p := k.plane(t, lb.IPv4)
		p.step = 1
		res, err := p.Reset(t.Context(), w.Table(20, 1))
		must(t, err)
		if served != want || (len(res.Later) == 0) != (want > 0) {
			t.Errorf("with the rules %q: the chains came when %d of 20 Services were served, %d are left for later",
				was, served, len(res.Later))
		}
	}
}
