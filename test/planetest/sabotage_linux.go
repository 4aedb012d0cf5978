package planetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/test/scenario"
	"kube-proxy/test/seedtest"
	"kube-proxy/trace"
)

// sabotages is how often Sabotage breaks something in each family.
const sabotages = 6

// Sabotage breaks at random what the plane has in the kernel, one thing at a time ([Config.Drift], Config.Break), and sends packets to
// all Services before it has it mended. Each packet that then meets something else than the table says must be named by trace,
// which compares the table's answer with what the plane reads from the kernel; and whatever an audit finds to mend must be named by the plane's
// Differences, or by trace of some packet. Audits alone must mend all of it; only after Config.Drift, which may take away the whole table, may
// one ask for a Reset.
func Sabotage(t *testing.T, cfg Config) {
	needRoot(t)
	for _, f := range families {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			s := &saboteur{history: newHistory(cfg, f, seedtest.Of(t))}
			err := s.run()
			t.Logf("%d things broken, %d of them mended, %d by a Reset; %d packets met something else, %d were named before they did; %d differences", s.broken, s.mended, s.resets, s.felt, s.named, s.found)
			if err != nil {
				t.Error(err)
			}
			if err == nil && (s.mended == 0 || s.found == 0) {
				t.Error("nothing was broken that anybody could notice")
			}
		})
	}
}

// saboteur breaks things in a town.
type saboteur struct {
	*history
	broken, mended, resets, felt, named, found int
}

func (s *saboteur) run() error { return s.inField(s.work) }

func (s *saboteur) work() error {
	look, ok := looker(s.plane)
	if !ok {
		return errors.New("the plane does not tell what the kernel holds (mode.Looker)")
	}
	for i := range sabotages {
		if err := s.once(look, i); err != nil {
			return s.failed(err)
		}
		// Another world for the next.
		err := s.onNode(func() error {
			_, err := s.plane.Apply(context.Background(), s.change(s.rnd.IntN(townServices)))
			return err
		})
		if err != nil {
			return s.failed(err)
		}
	}
	return nil
}

// once breaks one thing, looks who notices, and has it mended.
func (s *saboteur) once(look Looker, i int) error {
	breaks := []func(lb.Family, *rand.Rand) (string, error){}
	if s.cfg.Drift != nil {
		breaks = append(breaks, func(f lb.Family, rnd *rand.Rand) (string, error) { return "drift", s.cfg.Drift(f, rnd) })
	}
	if s.cfg.Break != nil { // one thing at a time tells more than a whole chain
		breaks = append(breaks, s.cfg.Break, s.cfg.Break)
	}
	how, drift := "", s.cfg.Drift != nil && i%len(breaks) == 0
	err := s.onNode(func() (err error) {
		how, err = breaks[i%len(breaks)](s.family, s.rnd)
		return err
	})
	if err != nil {
		return fmt.Errorf("break something: %w", err)
	}
	s.broken++
	s.note("broken: %s", how)
	var found []trace.Difference
	if err := s.onNode(func() (err error) { found, err = differences(context.Background(), look, &s.table); return err }); err != nil {
		return fmt.Errorf("differences after %s: %w", how, err)
	}
	s.found += len(found)
	named, err := s.ask(look, len(found) > 0)
	if err != nil {
		return fmt.Errorf("after %s: %w", how, err)
	}
	mended, err := s.mend(look, drift)
	switch {
	case err != nil:
		return fmt.Errorf("mend after %s: %w", how, err)
	case mended && len(found) == 0 && named == 0:
		return fmt.Errorf("after %s an audit mended something that nobody had named", how)
	case !mended && len(found) > 0:
		return fmt.Errorf("after %s no audit counts anything as mended, and it was there to see:\n%s", how, listed(found))
	case mended:
		s.mended++
	}
	if err := s.onNode(func() (err error) { found, err = differences(context.Background(), look, &s.table); return err }); err != nil || len(found) > 0 {
		return fmt.Errorf("mended after %s, and still different: %v\n%s", how, err, listed(found))
	}
	return nil
}

// mend has audits put all right, or a Reset where one asks for it and may; it reports whether there was anything to do. One audit looks at
// a part, so that there are many until nothing differs.
func (s *saboteur) mend(look Looker, mayReset bool) (mended bool, err error) {
	err = s.onNode(func() error {
		var left []trace.Difference
		for range 10 {
			n, err := s.plane.Audit(context.Background(), true)
			switch {
			case err != nil && mayReset && errors.Is(err, plane.ErrStateLost):
				mended = true
				s.resets++
				return s.reset()
			case err != nil:
				return fmt.Errorf("audit: %w", err)
			case n > 0:
				mended = true
				continue
			}
			if left, err = differences(context.Background(), look, &s.table); err != nil || len(left) == 0 {
				return err
			}
		}
		return fmt.Errorf("audits leave what differs:\n%s", listed(left))
	})
	return mended, err
}

// ask sends a packet to each row from each kind of client, and asks trace and the plane about it. It returns how many packets are named
// as met otherwise than the table says. One that is met so and not named is an error; but that of a client that meets itself, of whom what
// the kernel holds says nothing apart, may be named by a difference alone.
func (s *saboteur) ask(look Looker, differs bool) (named int, err error) {
	r := &run{s: &suite{Config: s.cfg, patience: s.patience}, sc: &scenario.Scenario{}, lab: s.lab, family: s.family, table: &s.table, ports: townPorts()}
	sent := s.sendAll(r, 500*time.Millisecond)
	var unnamed []packetSent
	err = s.onNode(func() error {
		for _, packet := range r.inquiry.order {
			f := r.inquiry.met[packet]
			f.answer = trace.Ask(&s.table, r.how(), packet)
			k, err := look.Follow(context.Background(), packet)
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
			s.felt++
			itself := slices.ContainsFunc(f.answer.Backends, func(b trace.Backend) bool { return b.Hairpin })
			if !said && !(itself && differs) {
				i := slices.IndexFunc(sent, func(p packetSent) bool { return p.packet == packet })
				unnamed = append(unnamed, sent[i])
			}
		}
		return nil
	})
	s.named += named
	if err != nil || len(unnamed) == 0 {
		return named, err
	}
	return named, s.again(look, unnamed)
}

// packetSent is a packet with what is needed to send it again.
type packetSent struct {
	packet trace.Packet
	line   scenario.Packet
	shot   scenario.Shot
}

// sendAll makes a connection to each row from each kind of client.
func (s *saboteur) sendAll(r *run, patience time.Duration) []packetSent {
	var all []packetSent
	callers := s.callers()[:5] // three pods, the node, and one from outside
	for _, row := range s.table.Sorted() {
		if row.Kind == lb.HealthCheck {
			continue
		}
		to := netip.AddrPortFrom(row.Key.Addr, row.Key.Port)
		if row.Key.IsNodePort() {
			to = netip.AddrPortFrom(hostAddr(netlab.Node1, s.six()), row.Key.Port)
		}
		for _, from := range callers {
			shot := scenario.Shot{Local: from.addr(s.six()), To: to, Proto: row.Key.Proto, Key: row.Key}
			line := scenario.Packet{From: from.host}
			all = append(all, packetSent{r.way(from.host, shot, netip.Addr{}), line, shot})
		}
	}
	s.shoot(r, all, patience)
	return all
}

func (s *saboteur) shoot(r *run, all []packetSent, patience time.Duration) {
	var sending sync.WaitGroup
	for _, p := range all {
		sending.Go(func() {
			v := &volley{r: r, p: p.line, seen: map[string]int{}}
			if c, err := v.shoot(p.shot, patience); err == nil {
				c.Close()
			}
		})
	}
	sending.Wait()
}

// again sends packets once more and waits for long, for a busy machine answers late. What then still meets something else is an error.
func (s *saboteur) again(look Looker, unnamed []packetSent) error {
	r := &run{s: &suite{Config: s.cfg, patience: s.patience}, sc: &scenario.Scenario{}, lab: s.lab, family: s.family, table: &s.table, ports: townPorts()}
	s.shoot(r, unnamed, 5*time.Second)
	return s.onNode(func() error {
		for _, p := range unnamed {
			f := r.inquiry.met[p.packet]
			f.answer = trace.Ask(&s.table, r.how(), p.packet)
			other := r.otherFate(p.packet, f)
			if other == "" {
				continue
			}
			k, err := look.Follow(context.Background(), p.packet)
			if err != nil || len(trace.Compare(f.answer, k)) == 0 {
				return fmt.Errorf("%s\nand the plane, which reads the kernel, says so not: %v, %s %v\n%s", other, err, k.Verdict, k.Backends, strings.Join(k.Way, "\n"))
			}
		}
		return nil
	})
}

// townPorts are those at which the hosts of a town listen.
func townPorts() []uint16 {
	ports := slices.Clone(Ports)
	for i := range townServices {
		ports = append(ports, uint16(townPort+i))
	}
	return ports
}
