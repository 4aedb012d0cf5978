package netlink

import (
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// answerTo returns a message as the kernel would send it.
func answerTo(seq uint32, typ, flags uint16, body ...byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, seq)
	return append(append(b, 0, 0, 0, 0), body...)
}

// stuffed returns a connection that has received only b.
func stuffed(b []byte) *Conn { return &Conn{unread: b, closed: true} }

func TestEnds(t *testing.T) {
	failed := binary.NativeEndian.AppendUint32(nil, uint32(0xffffffff-uint32(unix.ENOSPC)+1))
	done := func(body ...byte) []byte { return answerTo(7, unix.NLMSG_DONE, unix.NLM_F_MULTI, body...) }
	part := func(flags uint16) []byte { return answerTo(7, 100, unix.NLM_F_MULTI|flags, 1, 2, 3, 4) }
	for _, c := range []struct {
		what  string
		acked bool
		bytes [][]byte
		n     int
		want  error
	}{
		{"a dump", false, [][]byte{part(0), part(0), done(0, 0, 0, 0)}, 2, nil},
		{"an end without a number", true, [][]byte{part(0), done()}, 1, nil},
		{"a dump that fails at its end", false, [][]byte{part(0), done(failed...)}, 1, unix.ENOSPC},
		{"a dump that was interrupted", false, [][]byte{part(0), part(unix.NLM_F_DUMP_INTR), done(0, 0, 0, 0)}, 2,
			ErrInterrupted},
		{"a dump that its last message says was interrupted", false,
			[][]byte{part(0), answerTo(7, unix.NLMSG_DONE, unix.NLM_F_DUMP_INTR, 0, 0, 0, 0)}, 1, ErrInterrupted},
		{"one of many, and the acknowledgement", true,
			[][]byte{part(0), answerTo(7, unix.NLMSG_ERROR, 0, make([]byte, 20)...)}, 1, nil},
		{"a single one, and the acknowledgement", true,
			[][]byte{answerTo(7, 100, 0), answerTo(7, unix.NLMSG_ERROR, 0, make([]byte, 20)...)}, 1, nil},
		{"a single one", false, [][]byte{answerTo(7, 100, 0), part(0)}, 1, nil},
		{"answers to others", false, [][]byte{answerTo(6, unix.NLMSG_ERROR, 0, failed...), answerTo(8, 100, 0),
			answerTo(7, 100, 0)}, 1, nil},
		{"a refusal that is cut off", true, [][]byte{answerTo(7, unix.NLMSG_ERROR, 0, 1)}, 0, unix.EBADMSG},
	} {
		var all []byte
		for _, b := range c.bytes {
			for all = append(all, b...); len(all)%4 != 0; {
				all = append(all, 0)
			}
		}
		n := 0
		if err := stuffed(all).answer(t.Context(), 7, c.acked, func(Message) error { n++; return nil }); !errors.Is(err,
			c.want) || n != c.n {
			t.Errorf("%s: %d messages, %v; want %d, %v", c.what, n, err, c.n, c.want)
		}
	}
}

// FuzzAnswer searches for bytes that are split wrongly.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte{})
	f.Add(answerTo(1, 100, unix.NLM_F_MULTI, 1, 2, 3, 4))
	f.Add(answerTo(1, unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS|unix.NLM_F_CAPPED, append(make([]byte, 20), 5, 0, 1, 0, 'x',
		0, 0, 0, 8, 0, 2, 0, 1, 0, 0, 0)...))
	f.Add(answerTo(1, unix.NLMSG_DONE, unix.NLM_F_MULTI|unix.NLM_F_ACK_TLVS, 0xff, 0xff, 0xff, 0xff, 8, 0, 1, 0, 'x', 0,
		0, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := stuffed(b)
		for left := len(b); left > 0; left = len(c.unread) {
			m, err := c.cut()
			if err != nil {
				if len(c.unread) != 0 {
					t.Fatalf("%d bytes left after %v", len(c.unread), err)
				}
				return
			}
			if len(c.unread) >= left || len(m.Body) > left-unix.SizeofNlMsghdr {
				t.Fatalf("%d bytes left of %d after a message of %d", len(c.unread), left, len(m.Body))
			}
			if err := m.outcome(); err != nil && err.Error() == "" {
				t.Fatal("an error that says nothing")
			}
		}
	})
}
