package ipvs_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/test/ipvsfake"
)

func openFake(t testing.TB, k *ipvsfake.Kernel) *ipvs.Conn {
	t.Helper()
	c, err := ipvs.New(t.Context(), k.Connect())
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// The fake passes the tests of the kernel too.
func TestFake(t *testing.T) {
	t.Run("holds the requested services", func(t *testing.T) {
		c := openFake(t, ipvsfake.New(ipvsfake.Config{}))
		do(t, c, ops(samples)...)
		expect(t, c, samples)
		empty(t, c)
	})
	t.Run("verbs", func(t *testing.T) { verbs(t, openFake(t, ipvsfake.New(ipvsfake.Config{}))) })
	t.Run("many", func(t *testing.T) { many(t, openFake(t, ipvsfake.New(ipvsfake.Config{})), 6000) })
}

// Open returns distinct errors at once for a kernel without IPVS, and for one that forbids it.
func TestOpenSaysWhatIsMissing(t *testing.T) {
	for _, q := range []struct {
		cfg  ipvsfake.Config
		want error
	}{
		{ipvsfake.Config{Absent: true}, ipvs.ErrNoIPVS},
		{ipvsfake.Config{Unprivileged: true}, unix.EPERM},
	} {
		if c, err := ipvs.New(t.Context(), ipvsfake.New(q.cfg).Connect()); c != nil || !errors.Is(err, q.want) {
			t.Errorf("%+v: %v, %v", q.cfg, c, err)
		}
	}
	c, err := ipvs.Open() // this machine has IPVS, or the error says that it lacks it
	if err == nil {
		c.Close()
	} else if !errors.Is(err, ipvs.ErrNoIPVS) && !errors.Is(err, unix.EPERM) {
		t.Error(err)
	}
}

// smallBuffer is a kernel connection whose buffer holds only a few answers.
type smallBuffer struct {
	*ipvsfake.Conn
	room int
}

func (c smallBuffer) Each(ctx context.Context, messages []byte, outcome func(int, error)) error {
	return c.Conn.Each(ctx, messages, func(i int, err error) {
		if i >= c.room {
			err = errors.Join(netlink.ErrNoAnswer, unix.ENOBUFS)
		}
		outcome(i, err)
	})
}

// If the buffer is smaller than requested, answers are lost once, and the next pieces are smaller.
func TestLittleRoomForAnswers(t *testing.T) {
	k := ipvsfake.New(ipvsfake.Config{})
	c, err := ipvs.New(t.Context(), smallBuffer{k.Connect(), 50})
	must(t, err)
	batch := make([]ipvs.Op, 2000)
	for i := range batch {
		batch[i] = ipvs.Op{Verb: ipvs.NewService, Service: mark}
		batch[i].Service.Mark = uint32(i + 1)
	}
	lost := 0
	err = c.Do(t.Context(), batch, func(_ int, err error) { lost++ })
	if !errors.Is(err, netlink.ErrNoAnswer) || lost > 300 || len(k.State()) != len(batch) {
		t.Errorf("%d answers were lost, %v", lost, err)
	}
	for i := range batch {
		batch[i].Verb = ipvs.DelService
	}
	if err := c.Do(t.Context(), batch, nil); err != nil || len(k.State()) != 0 {
		t.Errorf("then %v", err)
	}
}

// Each list queries the number of the family again, because it changes when the module is reloaded.
func TestFamilyNumberChanges(t *testing.T) {
	k := ipvsfake.New(ipvsfake.Config{})
	c := openFake(t, k)
	k.SetFamilyID(77)
	if err := c.Do(t.Context(), ops(samples), nil); !errors.Is(err, unix.ENOENT) {
		t.Errorf("with the old number: %v", err)
	}
	expect(t, c, nil)
	do(t, c, ops(samples)...)
	expect(t, c, samples)
}

// Operations allocate no garbage, neither one nor ten thousand.
func TestNoGarbage(t *testing.T) {
	c, err := ipvs.New(t.Context(), silent{})
	must(t, err)
	batch := make([]ipvs.Op, 10000)
	for i := range batch {
		batch[i] = ipvs.Op{Verb: ipvs.NewDestination, Service: sticky, Destination: samples[sticky][0]}
	}
	ctx := t.Context()
	for _, n := range []int{1, len(batch)} {
		if got := testing.AllocsPerRun(5, func() {
			if err := c.Do(ctx, batch[:n], nil); err != nil {
				t.Error(err)
			}
		}); got > 0 {
			t.Errorf("%d operations make %v pieces of garbage", n, got)
		}
	}
}

// silent does nothing and reports success.
type silent struct{}

func (silent) Do(_ context.Context, request []byte, f func(netlink.Message) error) error {
	m := netlink.Message{Type: 99}
	switch {
	case request[4] == unix.GENL_ID_CTRL:
		m.Type, m.Body = unix.GENL_ID_CTRL, []byte{unix.CTRL_CMD_NEWFAMILY, 1, 0, 0, 6, 0, unix.CTRL_ATTR_FAMILY_ID, 0,
			99, 0, 0, 0}
	default:
		m.Body = []byte{14, 1, 0, 0} // IPVS_CMD_SET_INFO
	}
	return f(m)
}

func (silent) Each(_ context.Context, messages []byte, outcome func(int, error)) error {
	for i := 0; len(messages) > 0; i++ {
		outcome(i, nil)
		messages = messages[netlink.Order.Uint32(messages):]
	}
	return nil
}

func (silent) Close() error { return nil }

// canned answers each request with the same bytes.
type canned struct {
	silent
	typ  uint16
	body []byte
}

func (c canned) Do(_ context.Context, _ []byte, f func(netlink.Message) error) error {
	if f == nil {
		return nil
	}
	return f(netlink.Message{Type: c.typ, Body: c.body})
}

// FuzzAnswers: any answer gives a value or an error.
func FuzzAnswers(f *testing.F) {
	k := ipvsfake.New(ipvsfake.Config{})
	c := openFake(f, k)
	do(f, c, ops(samples)...)
	for _, body := range answers(f, k) {
		f.Add(body)
	}
	r := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		b := make([]byte, r.IntN(200))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		at := &swapped{silent{}}
		c, err := ipvs.New(t.Context(), at)
		must(t, err)
		at.Transport = canned{typ: 99, body: body}
		s, err := c.Service(t.Context(), sticky.ServiceID)
		if err == nil && (s.Family != ipvs.IPv4 && s.Family != ipvs.IPv6 || s.Mark == 0 &&
			ipvs.FamilyOf(s.Addr.Addr()) != s.Family) {
			t.Errorf("%x is the service %+v", body, s)
		}
		all, _ := c.Destinations(t.Context(), sticky.ServiceID)
		for _, d := range all {
			if !d.Addr.Addr().IsValid() {
				t.Errorf("%x is the destination %+v", body, d)
			}
		}
		c.Timeouts(t.Context())
		at.Transport = canned{typ: unix.GENL_ID_CTRL, body: body}
		c.Services(t.Context(), func(ipvs.ServiceState) error { return nil })
	})
}

type swapped struct{ netlink.Transport }

// answers returns the bodies of all answers of the fake.
func answers(t testing.TB, k *ipvsfake.Kernel) (all [][]byte) {
	spy := &spied{k.Connect(), &all}
	c, err := ipvs.New(t.Context(), spy)
	must(t, err)
	list(t, c)
	if _, err := c.Timeouts(t.Context()); err != nil {
		t.Fatal(err)
	}
	return all
}

type spied struct {
	*ipvsfake.Conn
	seen *[][]byte
}

func (s *spied) Do(ctx context.Context, request []byte, f func(netlink.Message) error) error {
	return s.Conn.Do(ctx, request, func(m netlink.Message) error {
		*s.seen = append(*s.seen, append([]byte(nil), m.Body...))
		return f(m)
	})
}
