package planetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/scenario"
)

// churnTime is how long endpoints flap under traffic.
const churnTime = 2 * time.Second

// mostMoves is how often they flap at most. In mode userspace a released port rests, and a fast
// machine would use up all.
const mostMoves = 5_000

// churnStory has a Service that always has an endpoint, one without changes, and one that is added
// and deleted repeatedly.
func churnStory() string {
	web := func(n int) string {
		// Not pod3, which sends: a pod that is its own backend at the moment when it leaves the
		// Service may get its packet after the node has stopped masquerading it.
		pods := []string{"pod1", "pod2", "node2", "pod4", "pod5"}[:n]
		return churnSlices("web", pods)
	}
	still := service("shop", "still", 2, []string{"{name: http, port: 80}"}) + churnSlices("still", []string{"pod2"})
	noise := service("shop", "noise", 3, []string{"{name: a, port: 1}", "{name: b, port: 2, protocol: UDP}"}) +
		churnSlices("noise", []string{"pod1"})
	var b strings.Builder
	b.WriteString("Endpoints and other Services come and go: no connection to a Service that has an endpoint ever " +
		"fails.\n\nRows: SV-36\n\n-- cluster.yaml --\n")
	b.WriteString(service("shop", "web", 1, []string{"{name: http, port: 80, nodePort: 30080}",
		"{name: dns, port: 53, protocol: UDP}"}))
	b.WriteString(still + web(1) + "-- packets --\nopen still: pod1 -> shop/still:http : pod2\n")
	for _, to := range []string{"client -> shop/web:http", "pod3 -> shop/web:http", "node1 -> shop/web:http",
		"client -> nodeport(shop/web):http", "pod3 -> shop/web:dns"} {
		fmt.Fprintf(&b, "%s : pod1\n", to)
	}
	for i, n := range []int{5, 2, 1, 4, 3} {
		fmt.Fprintf(&b, "-- step s%d/cluster.yaml --\n%s", i, web(n))
		if i%2 == 0 {
			b.WriteString(noise)
		} else {
			fmt.Fprintf(&b, "-- step s%d/delete --\nService shop/noise\n", i)
		}
	}
	return b.String()
}

func churnSlices(name string, pods []string) string {
	ports := []string{"{name: http, port: 8080}", "{name: dns, port: 8080, protocol: UDP}", "{name: a, port: 8080}",
		"{name: b, port: 8081, protocol: UDP}"}
	var eps4, eps6 []string
	for _, p := range pods {
		h, _ := netlab.HostByName(p)
		eps4 = append(eps4, fmt.Sprintf("{addresses: [%q], nodeName: %s}", h.V4, h.Node))
		eps6 = append(eps6, fmt.Sprintf("{addresses: [%q], nodeName: %s}", h.V6, h.Node))
	}
	return slice("shop", name, name+"-v4", false, ports, eps4) + slice("shop", name, name+"-v6", true, ports, eps6)
}

// churn flaps endpoints while connections are made: none may fail or be closed. Planes without
// transactions must never leave a packet without a rule.
func (s *suite) churn(t *testing.T) {
	reported, failures, err := s.tryChurn()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range failures {
		t.Error(f)
	}
	t.Log(strings.Join(reported, "; "))
}

// tryChurn is churn in both families at once; reported describes the amount of work.
func (s *suite) tryChurn() (reported, failures []string, err error) {
	sc, err := scenario.Parse("churn.txtar", []byte(churnStory()), labYAML)
	if err != nil {
		return nil, nil, err
	}
	lab, err := s.labs.get(netlab.Options{Cgroup: s.Sockets})
	if err != nil {
		return nil, nil, err
	}
	defer s.labs.put(lab)
	if err := lab.prepare(sc.Settings); err != nil {
		return nil, nil, err
	}
	var both sync.WaitGroup
	var mu sync.Mutex
	for _, f := range families {
		both.Go(func() {
			r := s.newRun(sc, lab, f)
			made, moves, err := r.churn()
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failures = append(failures, fmt.Sprintf("%v, after %d moves and %d connections: %v", f, moves, made,
					err))
			}
			failures = append(failures, r.failures...)
			reported = append(reported, fmt.Sprintf("%v: %d connections under %d moves", f, made, moves))
		})
	}
	both.Wait()
	slices.Sort(reported)
	return reported, failures, nil
}

// churn plays the states in random order and sends meanwhile.
func (r *run) churn() (made int64, moves int, err error) {
	states, err := statesOf([]*scenario.Scenario{r.sc}, r.family)
	if err != nil {
		return 0, 0, err
	}
	if err := r.onNode(r.start); err != nil {
		return 0, 0, err
	}
	w := &walk{family: r.family, states: states, rnd: rand.New(rand.NewPCG(1, uint64(r.family))), plane: r.plane,
		at: map[string]lb.Owner{}}
	w.table.Node = states[0].node
	err = r.onNode(func() error {
		if _, err := ResetAll(context.Background(), w.plane, &w.table); err != nil {
			return err
		}
		return w.move(states[0])
	})
	var senders []func() error
	if err == nil {
		senders, err = r.senders(&made)
	}
	if err == nil {
		senders = append(senders, func() error {
			moves++
			if moves > mostMoves {
				time.Sleep(time.Millisecond)
				return nil
			}
			return r.onNode(func() error { return w.move(states[w.rnd.IntN(len(states))]) })
		})
		err = forAWhile(senders)
	}
	r.end()
	return made, min(moves, mostMoves), err
}

// senders returns the actions to repeat: a connection for each line of the first state; where the
// line opens one, that one is used.
func (r *run) senders(made *int64) ([]func() error, error) {
	step, _, err := r.replay.Next()
	if err != nil {
		return nil, err
	}
	var out []func() error
	for _, p := range step.State.Packets {
		shots, err := r.resolve(p)
		if err != nil {
			return nil, err
		}
		v := &volley{r: r, p: p, shots: shots, seen: map[string]int{}}
		if p.Verb == scenario.Open {
			if err := v.open(); err != nil {
				return nil, err
			}
			out = append(out, func() error {
				_, err := r.reuse(scenario.Packet{Verb: scenario.KeepsWorking, Conn: p.Conn})
				return err
			})
			continue
		}
		dial := v.dial
		if shots[0].Proto == lb.UDP {
			dial = v.query
		}
		out = append(out, func() error {
			c, err := dial(shots[0], r.s.timeout)
			if err != nil {
				return err
			}
			atomic.AddInt64(made, 1)
			return c.Close()
		})
	}
	return out, nil
}

// query is dial as a resolver does it: it soon repeats a datagram without an answer, from another
// socket. The answer of an endpoint that leaves may be lost with its flow, and mode ebpf ends the
// socket.
func (v *volley) query(shot scenario.Shot, timeout time.Duration) (*netlab.Conn, error) {
	for end := time.Now().Add(timeout); ; {
		c, err := v.dial(shot, resend)
		ended := errors.Is(err, netlab.ErrReset) || errors.Is(err, unix.EDESTADDRREQ)
		if !errors.Is(err, netlab.ErrTimeout) && !(ended && v.r.s.Sockets) || time.Now().After(end) {
			return c, err
		}
	}
}

// forAWhile repeats all these actions, at the same time, until the time is over or one fails. A
// failure of an action that began in time counts, however late.
func forAWhile(things []func() error) error {
	ctx, cancel := context.WithTimeout(context.Background(), churnTime)
	defer cancel()
	var all sync.WaitGroup
	errs := make([]error, len(things))
	for i, do := range things {
		all.Go(func() {
			for ctx.Err() == nil && errs[i] == nil {
				errs[i] = do()
			}
			if errs[i] != nil {
				cancel()
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
