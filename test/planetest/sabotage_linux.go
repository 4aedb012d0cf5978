package planetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"kube-proxy/mode"
	"kube-proxy/nodetrace"
	"kube-proxy/plane"
	"kube-proxy/trace"
)

// sabotageEvery is after how many steps a History breaks something.
const sabotageEvery = 6

// moreSabotage is the number of further faults at the end if none was noticed.
const moreSabotage = 20

// sabotage breaks one thing in the kernel ([Config.Break], or [Config.Drift] each third time),
// sends packets to all Services, and lets the plane repair it.
//
// Trace must report each packet whose outcome differs from the table. Differences, or trace of some
// packet, must report everything that an audit repairs. Audits must repair all of it. One may
// request a Reset only after Drift, which may remove the whole table.
func (h *history) sabotage(i int) error {
	look, ok := tracer(h.plane)
	if !ok {
		return errors.New("the plane does not report what the kernel holds (mode.Tracer)")
	}
	h.forgetAll()
	// Objects that no Service needs any more stay in the kernel until a full audit. Differences
	// does not report damage to them, and an audit may repair it before it removes them. So they
	// go first.
	if _, err := h.repair(look, false); err != nil {
		return fmt.Errorf("audit before something is broken: %w", err)
	}
	how, drift := "drift", i%3 == 0 && h.cfg.Drift != nil
	err := h.onNode(func() (err error) {
		if drift {
			return h.cfg.Drift(h.family, h.rnd)
		}
		how, err = h.cfg.Break(h.family, h.rnd)
		return err
	})
	if err != nil {
		return fmt.Errorf("break something: %w", err)
	}
	h.broken++
	h.note("broken: %s", how)
	var found []trace.Difference
	if err := h.onNode(func() (err error) {
		found, err = differences(context.Background(), look, &h.table)
		return err
	}); err != nil {
		return fmt.Errorf("differences after %s: %w", how, err)
	}
	h.found += len(found)
	named, err := h.ask(look, len(found) > 0)
	if err != nil {
		return fmt.Errorf("after %s: %w", how, err)
	}
	repaired, err := h.repair(look, drift)
	switch {
	case err != nil:
		return fmt.Errorf("repair after %s: %w", how, err)
	case repaired && len(found) == 0 && named == 0:
		return fmt.Errorf("after %s an audit repaired something that was not named", how)
	case !repaired && len(found) > 0:
		return fmt.Errorf("after %s no audit counts a repair, and these differed:\n%s", how, listed(found))
	case repaired:
		h.repaired++
	}
	return nil
}

// repair calls audits until nothing differs, and Reset if an audit requests it and may. It reports
// whether anything was repaired. An audit checks only a part, so many may be needed.
func (h *history) repair(look mode.Tracer, mayReset bool) (repaired bool, err error) {
	err = h.onNode(func() error {
		var left []trace.Difference
		for range 10 {
			n, err := h.plane.Audit(context.Background(), true)
			switch {
			case err != nil && mayReset && errors.Is(err, plane.ErrStateLost):
				repaired = true
				err = h.reset()
			case err == nil && n > 0:
				repaired = true
				continue
			}
			if err != nil {
				return fmt.Errorf("audit: %w", err)
			}
			left, err = differences(context.Background(), look, &h.table)
			if err != nil || len(left) == 0 {
				return err
			}
		}
		return fmt.Errorf("audits leave differences:\n%s", listed(left))
	})
	return repaired, err
}

// ask sends a packet to each frontend from each kind of client, and queries trace and the plane
// about it. It returns the number of packets that they report as differing from the table. A packet
// that differs and is not reported is an error. For a client that is its own backend any difference
// suffices, because the kernel has no separate state for such a client.
func (h *history) ask(look mode.Tracer, differs bool) (named int, err error) {
	callers := h.callers()[:5] // three pods, the node, and one from outside
	calls := h.calls(callers, 500*time.Millisecond)
	r := h.shoot(calls)
	for _, c := range calls {
		if c.err == nil && c.row.Affinity > 0 {
			h.learn(c.visitor(), c)
		}
	}
	unnamed := map[trace.Packet]bool{}
	err = h.onNode(func() error {
		for _, packet := range r.inquiry.order {
			f := r.inquiry.met[packet]
			k, err := look.TracePacket(context.Background(), packet, nodetrace.Kernel)
			if err != nil {
				return fmt.Errorf("follow %s: %w", packet, err)
			}
			said := len(trace.Compare(f.answer, k)) > 0
			if said {
				named++
			}
			if r.otherFate(packet, f) == "" {
				continue
			}
			h.felt++
			itself := slices.ContainsFunc(f.answer.Backends, func(b trace.Backend) bool { return b.Hairpin })
			unnamed[packet] = !said && !(itself && differs)
		}
		return nil
	})
	h.named += named
	calls = slices.DeleteFunc(calls, func(c *call) bool { return !unnamed[r.way(c.from.host, c.shot, c.shot.Local)] })
	if err != nil || len(calls) == 0 {
		return named, err
	}
	return named, h.again(look, calls)
}

// again sends packets once more with a long timeout, because a busy machine answers late. A packet
// that still has another outcome is an error.
func (h *history) again(look mode.Tracer, unnamed []*call) error {
	for _, c := range unnamed {
		c.timeout = 5 * time.Second
	}
	r := h.shoot(unnamed)
	return h.onNode(func() error {
		for _, packet := range r.inquiry.order {
			f := r.inquiry.met[packet]
			other := r.otherFate(packet, f)
			if other == "" {
				continue
			}
			k, err := look.TracePacket(context.Background(), packet, nodetrace.Kernel)
			if err != nil || len(trace.Compare(f.answer, k)) == 0 {
				return fmt.Errorf("%s\nand the plane, which reads the kernel, does not say so: %v, %s %v\n%s", other,
					err, k.Verdict, k.Backends, strings.Join(k.Way, "\n"))
			}
		}
		return nil
	})
}

// townPorts returns the listening ports of the hosts of a town.
func townPorts() []uint16 {
	ports := slices.Clone(Ports)
	for i := range townServices {
		ports = append(ports, uint16(townPort+i))
	}
	return ports
}
